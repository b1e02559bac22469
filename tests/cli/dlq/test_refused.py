"""A redrive and an import behind letters that Kafka refuses: these are left and named, all others are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconsume.topics import retry_headers as wire
from tests.support.kafka.broker import Broker
from tests.support.kafka.dense import dense
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group, set_config
from tests.support.kafka.topic_io import delete_topics, dump
from tests.support.sidecar.dlq_calls import Call, actions, plant, ready, rows
from tests.support.sidecar.redrive import dead_letter

LETTERS = 500
LARGE = range(20, LETTERS, 60)
PARTITIONS = 3


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), partitions=PARTITIONS)


def values() -> list[bytes]:
    """The letters' values; some are larger than what the tests below let a topic take."""
    return [dense(40_000 if number in LARGE else 1_000) for number in range(LETTERS)]


def plant_all(group: GroupTopics) -> None:
    for partition in range(PARTITIONS):
        letters = (
            dead_letter(group, number, value, key=None, partition=partition)
            for number, value in enumerate(values())
            if number % PARTITIONS == partition
        )
        plant(group, *letters)


def ids(group: GroupTopics, topic: str) -> list[str]:
    return sorted((dict(row.headers)[wire.ORIGIN_MESSAGE_ID] or b"").decode() for row in dump(group.bootstrap, topic))


def named(group: GroupTopics, numbers: object) -> list[str]:
    return sorted(f"{group.main}:0:{number}" for number in numbers)  # type: ignore[attr-defined]


def test_a_redrive_goes_on_behind_letters_that_are_too_large(call: Call, group: GroupTopics) -> None:
    """Without a word from the client about the others: it sends nothing more once one is refused."""
    plant_all(group)
    set_config(group.bootstrap, group.names.ready, "max.message.bytes", "20000")
    first = call("redrive", "--yes")
    assert (first.exit_code, actions(first)) == (3, [("redriven", LETTERS - len(LARGE)), ("refused", len(LARGE))])
    refused = next(row for row in rows(first) if row["action"] == "refused")
    assert "too large" in refused["why"].lower()
    assert ids(group, group.names.ready) == named(group, set(range(LETTERS)) - set(LARGE))
    set_config(group.bootstrap, group.names.ready, "max.message.bytes", "100000")
    last = call("redrive", "--yes")
    assert (last.exit_code, dict(actions(last))["redriven"]) == (0, len(LARGE))
    assert ids(group, group.names.ready) == named(group, range(LETTERS)), "each came back once"


def test_letters_that_fit_alone_come_back_where_many_together_are_too_large(call: Call, group: GroupTopics) -> None:
    """The client packs records up to its own limit; the topic's is smaller than a pack, and larger than a record."""
    set_config(group.bootstrap, group.names.ready, "max.message.bytes", "4000")
    set_config(group.bootstrap, group.names.events, "max.message.bytes", "4000")
    plant(group, *(dead_letter(group, number, b"x" * 1_000, key=None) for number in range(LETTERS)))
    done = call("redrive", "--yes")
    assert (done.exit_code, actions(done)) == (0, [("redriven", LETTERS)])
    assert len(ready(group)) == LETTERS


def test_an_import_writes_all_but_the_letters_that_are_too_large(
    call: Call, group: GroupTopics, tmp_path: Path
) -> None:
    plant_all(group)
    file = tmp_path / "dead.jsonl"
    file.write_text(call("export").stdout, encoding="utf-8")
    delete_topics(group.bootstrap, group.dlq)
    create_group(group, PARTITIONS, leave_out=[*group.mains, *group.retries, group.names.events])
    set_config(group.bootstrap, group.dlq, "max.message.bytes", "20000")
    first = call("import", file, "--yes")
    assert (first.exit_code, dict(actions(first))) == (3, {"imported": LETTERS - len(LARGE), "refused": len(LARGE)})
    assert all("too large" in row["why"].lower() for row in rows(first) if row["action"] == "refused")
    assert ids(group, group.dlq) == named(group, set(range(LETTERS)) - set(LARGE))
    set_config(group.bootstrap, group.dlq, "max.message.bytes", "100000")
    again = call("import", file, "--yes")
    assert dict(actions(again))["imported"] == len(LARGE)
    assert ids(group, group.dlq) == named(group, range(LETTERS)), "each is there once"
    assert json.loads(call("export").stdout.splitlines()[0])["v"] == 1
