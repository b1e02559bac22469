"""`audit`'s words and its answer where nothing can be read; what it finds: flow/operations/test_audit.py."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter

import pytest

from reconsume.sidecar.audit.facts import Breach, Finding
from reconsume.sidecar.cli.audit import kept, row_of, sum_up
from reconsume.sidecar.errors import SetupError
from tests.support.deadline import SOON
from tests.support.sidecar.cli import reconsume

SETS = ("group=g", "topics=[t]", "kafka={bootstrap.servers: '127.0.0.1:1'}", "deliver.url=http://127.0.0.1:1/")
GIVEN = tuple(word for text in SETS for word in ("--set", text))


def test_a_broker_that_is_away_is_one_sentence_and_no_long_wait() -> None:
    began = time.monotonic()
    shown = reconsume("audit", *GIVEN)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert time.monotonic() - began < SOON
    assert shown.stderr.splitlines()[-1].startswith("reconsume: Kafka: no broker of 127.0.0.1:1 answered within 8 s")


@pytest.mark.parametrize("wrong", [("--since", "yesterday"), ("--clock-slack", "1d"), ("--max", "0")])
def test_words_that_mean_nothing_are_wrong_usage(wrong: tuple[str, str]) -> None:
    assert reconsume("audit", *GIVEN, *wrong).exit_code == 2


def test_a_folder_that_is_full_is_one_sentence_with_the_mend() -> None:
    with pytest.raises(SetupError, match=r"disk is full.*TMPDIR"), kept():
        raise sqlite3.OperationalError("database or disk is full")


def test_a_note_breaks_nothing() -> None:
    note = Finding(Breach.REPEATED, "orders:0:1", 0, 1, "twice", ("a:0:1",))
    assert row_of(note)["found"] == "note"
    assert sum_up(Counter([note.kind]), 0, 10) == 0
    assert sum_up(Counter([Breach.LOST]), 0, 10) == 1
