"""What the reader of the queues tells the lane, and the process, whatever Kafka tells the reader."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from msgspec.structs import replace

from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.queues.queue_thread import LOOK_AT_LOGS_EVERY, SURE_AFTER
from tests.sim.ladder_rig import QUEUE, rules
from tests.unit.kafka.queue_messages import END, Copy
from tests.unit.kafka.queue_reader import Reader, offsets_of

LADDER = rules()
WITHOUT = replace(LADDER, queued=False, drained=True, in_place=InPlace(1_000))
FIRST, SECOND = LogId.of("cluster", "first"), LogId.of("cluster", "second")
RESET = KafkaError._AUTO_OFFSET_RESET


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    """The reader of one queue, empty so far, that the lane has opened."""
    reader = Reader(monkeypatch)
    reader.open()
    reader.turn()
    assert reader.heard == ["opened"]
    return reader


# --- queues that are missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [LADDER, WITHOUT], ids=["ladder", "no ladder"])
@pytest.mark.parametrize("size", [0, 1], ids=["missing", "narrower than its main topic"])
def test_for_a_queue_that_is_made_later_the_process_restarts_with_a_ladder_and_without(
    monkeypatch: pytest.MonkeyPatch, policy: Policy, size: int
) -> None:
    reader = Reader(monkeypatch, policy)
    reader.kafka.size = size
    reader.open(1)
    reader.go_on(20)
    assert reader.heard == ["absent"]
    reader.kafka.size = 2
    reader.go_on(4, lambda: len(reader.heard) > 1)
    assert reader.heard == ["absent", "restart"]


def test_for_a_queue_that_is_made_once_the_ladder_has_ended_the_process_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given copies that were refused while the ladder was in force: they are written as soon as the topic is there."""
    reader = Reader(monkeypatch)
    reader.kafka.size = 0
    reader.open()
    reader.go_on(10)
    reader.policy, reader.kafka.size = WITHOUT, 1
    reader.go_on(4, lambda: len(reader.heard) > 1)
    assert reader.heard == ["absent", "restart"]


def test_a_queue_is_not_missing_for_five_seconds_by_two_answers_with_none_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader(monkeypatch)
    reader.open()
    for size, seconds in ((0, 1.0), (None, 5.0), (0, 1.0), (1, 1.0)):
        reader.kafka.size = size
        reader.go_on(seconds)
    assert reader.heard == ["opened"]


def test_one_wrong_answer_is_not_enough_where_the_group_has_a_ladder_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a broker that does not know yet of a queue in which a former owner has written."""
    reader = Reader(monkeypatch, WITHOUT)
    reader.thread.expect_queues()
    reader.kafka.size = 0
    reader.open()
    reader.go_on(0.5)
    reader.kafka.size = 1
    reader.go_on(2)
    assert reader.heard == ["opened"]


def test_a_leader_that_does_not_answer_keeps_no_other_queue_from_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(monkeypatch)
    reader.kafka.size, reader.kafka.silent = 10, frozenset({3})
    listed = reader.kafka.list_topics

    def with_leaders(topic: str, timeout: float) -> object:
        topics = listed(topic, timeout)
        for number, one in topics.topics[topic].partitions.items():
            one.leader = number
        return topics

    reader.kafka.list_topics = with_leaders  # type: ignore[method-assign]
    reader.open(*range(10))
    reader.go_on(30)
    assert {grant.partition.number for grant in reader.grants} == set(range(10)) - {3}
    reader.kafka.silent = frozenset()
    reader.go_on(30)
    assert len(reader.grants) == 10


# --- where the reading begins -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "begins"),
    [
        (None, Progress(2, ours=False, log=FIRST)),
        (Progress(4, frozenset({6}), log=FIRST), Progress(4, frozenset({6}), log=FIRST)),
        (Progress(4), Progress(4, log=FIRST)),
        (Progress(0, frozenset({1, 5}), log=FIRST), Progress(2, frozenset({5}), log=FIRST)),
        (Progress(4, frozenset({6}), log=SECOND), Progress(2, ours=False, log=FIRST)),
        (Progress(9, log=FIRST), Progress(2, ours=False, log=FIRST)),
        (Progress(4, frozenset({8}), log=FIRST), Progress(2, ours=False, log=FIRST)),
        (Progress(4, deaths=2, mark=8, log=FIRST), Progress(2, ours=False, log=FIRST)),
    ],
    ids=["none", "same", "unnamed", "cut", "recreated", "ends before", "done behind the end", "marked behind the end"],
)
def test_a_queue_begins_where_the_group_is_in_this_log(
    monkeypatch: pytest.MonkeyPatch, progress: Progress | None, begins: Progress
) -> None:
    reader = Reader(monkeypatch)
    reader.kafka.low, reader.kafka.high, reader.kafka.progress = 2, 8, progress
    reader.open()
    reader.turn()
    (grant,) = reader.grants
    assert grant.progress == begins
    assert reader.kafka.followed == [begins.next]


# --- what the lane knows ----------------------------------------------------------------------------------------------


def test_what_the_lane_knows_is_handed_over_no_more(reader: Reader) -> None:
    assert reader.take(Copy(0), Copy(4), known_to=5) == []
    (run,) = reader.take(Copy(6), Copy(7, code=END), known_to=7)
    assert (run.records, run.end) == ([], 7)


@pytest.mark.parametrize("known_to", [0, 1])
def test_what_the_lane_does_not_know_is_handed_over(reader: Reader, known_to: int) -> None:
    assert offsets_of(reader.take(Copy(0), Copy(1), known_to=known_to)) == [0, 1][known_to:]


def test_new_clients_follow_all_queues_with_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(monkeypatch)
    reader.kafka.size = 2
    reader.open(QUEUE.number, 1)
    reader.turn()
    reader.take(Copy(0), Copy(1), known_to=2)
    reader.thread._clients._followed.clear()
    reader.thread._follow_opened()
    assert sorted(one.offset for one in reader.kafka.calls[-1]) == [0, 2]


# --- logs that were cut, and other logs -------------------------------------------------------------------------------


def test_the_lane_hears_of_a_log_that_begins_behind_what_was_read(reader: Reader) -> None:
    """Else it would wait for ever for a copy that was committed there, and not read back (`UnseenCopies`)."""
    reader.kafka.low, reader.kafka.high = 3, 5
    reader.take(Copy(0, code=RESET))
    assert (reader.heard, reader.kafka.followed[-1]) == (["opened", "cut"], 3)


def test_a_queue_whose_edges_are_not_told_is_neither_cut_nor_another_log(reader: Reader) -> None:
    """The reader's position is not in the log, and the leader has just become it: what follows is asked for again."""
    reader.kafka.silent = frozenset({QUEUE.number})
    reader.take(Copy(0, code=RESET))
    assert (reader.heard, reader.kafka.followed[-1]) == (["opened"], 0)


def test_for_a_log_that_ends_before_what_was_read_the_process_restarts(reader: Reader) -> None:
    reader.take(Copy(0), Copy(1))
    reader.kafka.high = 1
    reader.take(Copy(2, code=RESET))
    assert reader.heard == ["opened", "restart, broken", "dropped"]


def test_for_a_queue_topic_that_was_recreated_the_process_restarts_however_long_the_new_log_is(reader: Reader) -> None:
    reader.take(Copy(0), Copy(1))
    reader.kafka.log, reader.kafka.high = SECOND, 9_000
    reader.go_on(LOOK_AT_LOGS_EVERY + 1)
    assert reader.heard == ["opened", "restart, broken", "dropped"]


def test_a_queue_that_was_deleted_is_taken_over_once_more_without_it(reader: Reader) -> None:
    reader.kafka.size = 0
    reader.go_on(LOOK_AT_LOGS_EVERY + SURE_AFTER - 1)
    assert reader.heard == ["opened"], "a broker that has just started may not know of it"
    reader.go_on(LOOK_AT_LOGS_EVERY + 1, lambda: len(reader.heard) > 1)
    assert reader.heard == ["opened", "taken over once more"]


def test_a_broker_that_tells_no_id_of_a_topic_says_nothing_of_its_log(reader: Reader) -> None:
    reader.kafka.log = None
    reader.go_on(3 * LOOK_AT_LOGS_EVERY)
    assert (reader.heard, Partition(QUEUE.topic, 0) in reader.thread._readings) == (["opened"], True)
