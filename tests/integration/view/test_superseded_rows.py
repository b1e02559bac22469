"""Rows of records that a reset has had delivered again: they are not rows of their state any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from reconsume.sidecar.view.copy import ViewCopy, open_copy
from reconsume.sidecar.view.query import Filters, questions
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import State
from reconsume.topics.partition import Partition
from reconsume.topics.position_ranges import PartitionResets, ResetRange, Resets
from tests.support.event_histories import EVENT, GROUP, changed
from tests.support.view_copy import take_events

WAITS = changed(id="orders:3:7", topic="orders", state=State.WAITING_RETRY, level="10s", due=EVENT.at + 10_000)
DIED = changed(id="orders:3:8", topic="orders", state=State.DLQ, level=None, due=0)
BESIDE = changed(id="orders:3:9", topic="orders", state=State.DLQ, level=None, due=0)
RESETS: Resets = {Partition("orders", 3): PartitionResets("5e6f7a8b", 1, (ResetRange(5, 9, 1, 1),), ("r1",))}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ViewCopy]:
    store = open_copy(tmp_path, GROUP, Source.EVENTS)
    yield store
    store.close()


def counts(store: ViewCopy) -> dict[str, int]:
    with questions(store.path) as ask:
        return ask.counts()


def listed(store: ViewCopy, filters: Filters = Filters()) -> dict[str, dict[str, Any]]:  # noqa: B008 - a value
    with questions(store.path) as ask:
        rows = [msgspec.json.decode(value) for value in ask.every_message(filters)]
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("is_known_before", [True, False])
def test_a_row_of_an_earlier_cycle_is_superseded_whichever_is_read_first(
    store: ViewCopy, is_known_before: bool
) -> None:
    if is_known_before:
        store.supersede(RESETS)
    take_events(store, [WAITS, DIED, BESIDE])
    store.supersede(RESETS)
    assert counts(store) == {"SUPERSEDED": 2, "DLQ": 1}
    assert listed(store, Filters(State.WAITING_RETRY)) == {}
    assert listed(store, Filters(level="10s")) == {}
    rows = listed(store)
    assert [(rows[one.id]["state"], rows[one.id].get("superseded")) for one in (WAITS, DIED, BESIDE)] == [
        ("WAITING_RETRY", True),
        ("DLQ", True),
        ("DLQ", None),
    ]
    with questions(store.path) as ask:
        assert [level.level for level in ask.levels(0)] == []


def test_the_first_event_of_its_new_cycle_makes_it_a_row_of_its_state_again(store: ViewCopy) -> None:
    store.supersede(RESETS)
    take_events(store, [DIED])
    take_events(store, [replace(DIED, cycle=1)], 1)
    assert counts(store) == {"DLQ": 1}
    assert "superseded" not in listed(store)[DIED.id]


def test_a_late_event_of_the_cycle_before_changes_nothing(store: ViewCopy) -> None:
    store.supersede(RESETS)
    take_events(store, [WAITS])
    take_events(store, [replace(WAITS, state=State.COMMIT, level=None, due=0)], 1)
    assert counts(store) == {"SUPERSEDED": 1}


def test_a_restart_keeps_what_is_superseded(tmp_path: Path) -> None:
    first = open_copy(tmp_path, GROUP, Source.EVENTS)
    take_events(first, [WAITS, DIED])
    first.supersede(RESETS)
    first.close()
    again = open_copy(tmp_path, GROUP, Source.EVENTS)
    try:
        assert counts(again) == {"SUPERSEDED": 2}
        again.supersede(RESETS)
        assert [row["superseded"] for row in listed(again).values()] == [True, True]
    finally:
        again.close()
