"""Events folded into the file: the rows are the fold whatever the batches and restarts, and each offset counts once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconsume.sidecar.view.query import Filters, questions
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import Bound, ViewStore
from reconsume.sidecar.view.store_file import open_store
from reconsume.sidecar.view.tables import Item
from reconsume.topics.events import Event, State, encode_event
from reconsume.topics.fold import row_of
from reconsume.topics.names import Kind
from tests.support.event_histories import BASE, EVENT, GROUP, changed, disturbed, histories, truth
from tests.support.kafka.topic_io import Row
from tests.support.kafka.view_topics import summed

TOPIC = f"{GROUP}-RETRY-EVENTS"


def item(event: Event, offset: int, partition: int = 0, written: int | None = None) -> Item:
    moment = event.at if written is None else written
    one = row_of(event, partition, offset, moment)
    return Item(Kind.EVENTS, event.id, one.row, offset, moment, partition, event)


def take(store: ViewStore, events: Sequence[Event], first: int = 0) -> list[Item]:
    items = [item(event, first + number) for number, event in enumerate(events)]
    return store.take_events(items, {(TOPIC, 0): first + len(events)}, 0)


def rows(store: ViewStore) -> dict[str, dict[str, Any]]:
    with questions(store.path) as ask:
        found = [msgspec.json.decode(value) for value in ask.every_message(Filters())]
    return {row["id"]: {name: value for name, value in row.items() if name != "v"} for row in found}


def sums(store: ViewStore) -> dict[str, Any]:
    with questions(store.path) as ask:
        found = [msgspec.json.decode(value) for value in ask.every_sum(0)]
    return {f"{row['minute']}|{row['topic']}|{row['level'] or ''}|{row['reason']}": row for row in found}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ViewStore]:
    store = open_store(tmp_path, GROUP, Source.EVENTS)
    yield store
    store.close()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=True))
def test_any_order_repeats_splits_and_restarts_give_the_rows_of_the_fold_and_count_each_event_once(
    tmp_path: Path, random: Random
) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    events = [event for event in disturbed(random, histories(random, 8)) if event.group == GROUP]
    store, done = open_store(folder, GROUP, Source.EVENTS), 0
    while done < len(events):
        size = random.randrange(1, 20)
        take(store, events[done : done + size], done)
        if random.random() < 0.3:
            store.close()
            store = open_store(folder, GROUP, Source.EVENTS)
        done = store.positions()[TOPIC, 0]
    assert rows(store) == {identity: row for (_, identity), row in truth(events).items()}
    records = [Row(0, number, event.at, b"", encode_event(event), ()) for number, event in enumerate(events)]
    assert sums(store) == summed(records)
    store.close()


def test_a_batch_that_fails_leaves_rows_sums_and_positions_as_they_were(store: ViewStore) -> None:
    take(store, [EVENT])
    before = rows(store), sums(store), store.positions()
    with pytest.raises(OverflowError):
        store.take_events([item(changed(id="orders:3:7"), 1), item(changed(id="x"), 2**70)], {(TOPIC, 0): 9}, 0)
    assert (rows(store), sums(store), store.positions()) == before


def test_what_a_batch_has_changed_is_told_as_it_is_now(store: ViewStore) -> None:
    first, later = EVENT, changed(times=2, at=BASE + 5)
    (told,) = take(store, [later])
    assert (told.kind, told.value) == (Kind.VIEW, item(later, 0).value)
    assert take(store, [later], 0) == [], "nothing is new"
    assert take(store, [first], 1) == [], "an older state is no news"
    committed = changed(state=State.COMMIT, times=2, level=None, due=0, at=BASE + 9, last_failed_at=BASE + 5)
    (told,) = take(store, [committed], 2)
    assert (told.value.state, told.value.last_failed_at) == (State.COMMIT, BASE + 5)  # type: ignore[union-attr]


@pytest.mark.parametrize("identity", ["a\0b", "", "'; DROP TABLE message", "😀" * 300, "x" * 60_000])
def test_any_id_is_kept_and_found_again(store: ViewStore, identity: str) -> None:
    take(store, [changed(id=identity)])
    take(store, [changed(id=identity, times=2)], 1)
    assert rows(store)[identity]["times"] == 2


def test_a_topic_made_anew_leaves_nothing_of_the_former(store: ViewStore) -> None:
    take(store, [EVENT])
    store.begin_anew(Kind.EVENTS, TOPIC, "two")
    assert (rows(store), sums(store), store.positions(), store.identity(Kind.EVENTS)) == ({}, {}, {}, "two")
    assert store.facts() == (None, 0, 0)


def events_of(state: State, numbers: range) -> list[Event]:
    return [changed(id=f"orders:3:{number}", state=state, at=BASE + number) for number in numbers]


def test_beyond_its_bound_the_oldest_done_records_make_room_and_others_never(tmp_path: Path) -> None:
    store = open_store(tmp_path, GROUP, Source.EVENTS, Bound(records=40))
    take(store, [*events_of(State.COMMIT, range(20)), *events_of(State.DLQ, range(20, 38))])
    assert store.tight
    store.make_room()
    kept = rows(store)
    assert sorted(kept) == sorted(f"orders:3:{number}" for number in range(2, 38))
    assert store.missing == (2, 0)
    for _ in range(20):
        store.make_room()
    assert len(rows(store)) == 18
    store.close()


def test_a_full_copy_goes_on_with_what_it_has_and_says_what_it_left_out(tmp_path: Path) -> None:
    store = open_store(tmp_path, GROUP, Source.EVENTS, Bound(records=3))
    take(store, events_of(State.WAITING_RETRY, range(5)))
    take(store, [changed(id="orders:3:1", times=2), changed(id="orders:3:4", times=2)], 5)
    assert {identity: row["times"] for identity, row in rows(store).items()} == {
        "orders:3:0": 1, "orders:3:1": 2, "orders:3:2": 1,
    }  # fmt: skip
    assert store.missing == (0, 3)
    assert sum(row["waiting"] for row in sums(store).values()) == 7, "the sums count every event"
    store.close()
    again = open_store(tmp_path, GROUP, Source.EVENTS, Bound(records=3))
    assert (again.missing, again.tight) == ((0, 3), True)
    again.close()


def test_a_file_has_a_bound_in_bytes_too(tmp_path: Path) -> None:
    store = open_store(tmp_path, GROUP, Source.EVENTS, Bound(bytes=300_000))
    for begin in range(0, 2_000, 100):
        take(store, events_of(State.WAITING_RETRY, range(begin, begin + 100)), begin)
    assert 0 < len(rows(store)) < 2_000
    assert store.missing.events == 2_000 - len(rows(store))
    store.close()
