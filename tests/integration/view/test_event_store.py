"""Events folded into the file: the rows are the fold whatever the batches and restarts, and each offset counts once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconsume.sidecar.view.copy import Batch, Bound, Facts, ViewCopy, open_copy
from reconsume.sidecar.view.query import Filters, questions
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import Event, State, encode_event
from reconsume.topics.names import Kind
from reconsume.topics.view_record import MINUTE
from tests.support.event_histories import BASE, EVENT, GROUP, changed, disturbed, histories, truth
from tests.support.kafka.topic_io import Row
from tests.support.kafka.view_topics import summed
from tests.support.view_copy import folded
from tests.support.view_copy import take_events as take

TOPIC = f"{GROUP}-RETRY-EVENTS"


def rows(store: ViewCopy) -> dict[str, dict[str, Any]]:
    with questions(store.path) as ask:
        found = [msgspec.json.decode(value) for value in ask.every_message(Filters())]
    return {row["id"]: {name: value for name, value in row.items() if name != "v"} for row in found}


def sums(store: ViewCopy) -> dict[str, Any]:
    with questions(store.path) as ask:
        found = [msgspec.json.decode(value) for value in ask.every_sum(0)]
    return {f"{row['minute']}|{row['topic']}|{row['level'] or ''}|{row['reason']}": row for row in found}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ViewCopy]:
    store = open_copy(tmp_path, GROUP, Source.EVENTS)
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
    store, done = open_copy(folder, GROUP, Source.EVENTS), 0
    while done < len(events):
        size = random.randrange(1, 20)
        take(store, events[done : done + size], done)
        if random.random() < 0.3:
            store.close()
            store = open_copy(folder, GROUP, Source.EVENTS)
        done = store.positions()[TOPIC, 0]
    assert rows(store) == {identity: row for (_, identity), row in truth(events).items()}
    records = [Row(0, number, event.at, b"", encode_event(event), ()) for number, event in enumerate(events)]
    assert sums(store) == summed(records)
    store.close()


def test_a_batch_that_fails_leaves_rows_sums_and_positions_as_they_were(store: ViewCopy) -> None:
    take(store, [EVENT])
    before = rows(store), sums(store), store.positions()
    good, broken = changed(id="orders:3:7"), changed(id="x")
    with pytest.raises(OverflowError):
        store.store_batch(Batch([folded(good, 1), folded(broken, 2**70)], [good, broken], {(TOPIC, 0): 9}, []))
    assert (rows(store), sums(store), store.positions()) == before


@pytest.mark.parametrize("identity", ["a\0b", "", "'; DROP TABLE message", "😀" * 300, "x" * 60_000])
def test_any_id_is_kept_and_found_again(store: ViewCopy, identity: str) -> None:
    take(store, [changed(id=identity)])
    take(store, [changed(id=identity, times=2)], 1)
    assert rows(store)[identity]["times"] == 2


def test_a_topic_made_anew_leaves_nothing_of_the_former(store: ViewCopy) -> None:
    take(store, [EVENT])
    store.begin_anew(Kind.EVENTS, TOPIC, "two")
    assert (rows(store), sums(store), store.positions(), store.identity(Kind.EVENTS)) == ({}, {}, {}, "two")
    assert store.facts() == Facts(None)


def events_of(state: State, numbers: range) -> list[Event]:
    return [changed(id=f"orders:3:{number}", state=state, at=BASE + number) for number in numbers]


def test_beyond_its_bound_the_oldest_done_records_make_room_and_others_never(tmp_path: Path) -> None:
    store = open_copy(tmp_path, GROUP, Source.EVENTS, Bound(records=40))
    take(store, [*events_of(State.COMMIT, range(20)), *events_of(State.DLQ, range(20, 38))])
    assert store.is_tight
    store.make_room()
    kept = rows(store)
    assert sorted(kept) == sorted(f"orders:3:{number}" for number in range(2, 38))
    assert store.missing == (2, 0, 0)
    for _ in range(20):
        store.make_room()
    assert rows(store) == kept, "no more is given up than is needed"
    store.close()


def test_a_full_copy_goes_on_with_what_it_has_and_says_what_it_left_out(tmp_path: Path) -> None:
    store = open_copy(tmp_path, GROUP, Source.EVENTS, Bound(records=3))
    take(store, events_of(State.WAITING_RETRY, range(5)))
    take(store, [changed(id="orders:3:1", times=2), changed(id="orders:3:4", times=2)], 5)
    assert {identity: row["times"] for identity, row in rows(store).items()} == {
        "orders:3:0": 1, "orders:3:1": 2, "orders:3:2": 1,
    }  # fmt: skip
    assert store.missing == (0, 3, 0)
    assert sum(row["waiting"] for row in sums(store).values()) == 7, "the sums count every event"
    store.close()
    again = open_copy(tmp_path, GROUP, Source.EVENTS, Bound(records=3))
    assert (again.missing, again.is_tight) == ((0, 3, 0), True)
    again.close()


def test_a_file_has_a_bound_in_bytes_too(tmp_path: Path) -> None:
    store = open_copy(tmp_path, GROUP, Source.EVENTS, Bound(bytes=300_000))
    for begin in range(0, 2_000, 100):
        take(store, events_of(State.WAITING_RETRY, range(begin, begin + 100)), begin)
    assert 0 < len(rows(store)) < 2_000
    assert store.missing.events == 2_000 - len(rows(store))
    store.close()


def test_the_oldest_minutes_of_the_sums_make_room_and_their_late_events_count_no_more(tmp_path: Path) -> None:
    """Given more reasons than the sums may hold, as a service or a forger can invent, then the newest minutes stay."""
    store = open_copy(tmp_path, GROUP, Source.EVENTS, Bound(sums=20))
    for minute in range(30):
        reasons = [changed(id=f"orders:3:{minute}", at=BASE + minute * MINUTE, reason=f"r{n}") for n in range(3)]
        take(store, reasons, 3 * minute)
    kept = sorted({row["minute"] for row in sums(store).values()})
    newest = (BASE + 29 * MINUTE) // MINUTE * MINUTE
    assert kept == [newest - ago * MINUTE for ago in reversed(range(len(kept)))]
    assert 3 <= len(kept) <= 6
    assert store.missing.minute == kept[0]
    take(store, [changed(id="orders:3:99", at=kept[0] - 1)], 90)
    assert min(row["minute"] for row in sums(store).values()) == kept[0]
    assert len(rows(store)) == 31, "no row has to give way to a sum"
    store.close()


def test_the_names_in_the_sums_have_a_bound_in_bytes(tmp_path: Path) -> None:
    store = open_copy(tmp_path, GROUP, Source.EVENTS, Bound(sums_bytes=100_000))
    for minute in range(40):
        take(store, [changed(id="orders:3:1", at=BASE + minute * MINUTE, reason="x" * 10_000)], minute)
    assert 5 <= len(sums(store)) <= 10
    store.close()
    again = open_copy(tmp_path, GROUP, Source.EVENTS, Bound(sums_bytes=100_000))
    take(again, [changed(id="orders:3:1", at=BASE + 50 * MINUTE, reason="y" * 10_000)], 50)
    assert 5 <= len(sums(again)) <= 10, "a restart knows what is there"
    again.close()


def test_updates_of_known_records_take_no_room(tmp_path: Path) -> None:
    store = open_copy(tmp_path, GROUP, Source.EVENTS, Bound(records=25))
    for times in range(50):
        batch = [changed(id=f"orders:3:{number}", times=times, at=BASE + times) for number in range(20)]
        take(store, batch, 20 * times)
        store.make_room()
    assert {row["times"] for row in rows(store).values()} == {49}
    assert (len(rows(store)), store.missing) == (20, (0, 0, 0))
    store.close()
