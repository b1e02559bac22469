"""What the reader of the queues tells the lane of copies that the lane knows already."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.core.partition import FetchedRecords
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.queues.own_appends import OwnAppends
from reconsume.sidecar.kafka.queues.queue_intake import FAR_AHEAD, REST
from reconsume.sidecar.kafka.queues.queue_thread import QueueThread
from tests.sim.ladder_rig import QUEUE, rules
from tests.sim.samples import WALL
from tests.unit.kafka.queue_messages import END, Copy


class Reader:
    """The thread that reads one queue, empty so far, whose lane says up to where it knows it."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.told: list[FetchedRecords] = []
        listener: Any = SimpleNamespace(
            queue_opened=lambda _grant: None, queue_read=lambda run, _caught_up: self.told.append(run)
        )
        registry: Any = SimpleNamespace(register=lambda _name: None)
        policy = rules()
        self.appends = OwnAppends()
        more: Any = (registry, 1 << 20, lambda _wanted: frozenset(), self.appends)
        self.thread = QueueThread({"bootstrap.servers": "localhost:1"}, "billing", "c", listener, lambda: policy, *more)
        self.followed: list[int] = []
        """From where the queue was followed, and −1 where it was left."""
        self.calls: list[list[TopicPartition]] = []
        client: Any = SimpleNamespace(
            incremental_assign=self._assigned,
            incremental_unassign=lambda _left: self.followed.append(-1),
        )
        clients = self.thread._clients
        clients.following = clients.reader = client
        self.thread._open(QUEUE, 1)
        self.thread._opening._begin(QUEUE, self.thread._readings[QUEUE], progress, (0, 0))
        self.told.clear()

    def _assigned(self, assigned: list[TopicPartition]) -> None:
        self.calls.append(assigned)
        self.followed.append(assigned[0].offset)

    def take(self, *messages: Copy, known_to: int, awaited: bool = False) -> list[FetchedRecords]:
        """Take in messages, of which the lane knows those below `known_to`; return what the lane is told."""
        self.thread.known(QUEUE, 1, known_to, WALL, [], awaited=awaited)
        told, self.told[:] = len(self.told), self.told[:]
        taken: Any = messages
        self.thread._intake.take(taken)
        return self.told[told:]


def test_the_lane_hears_the_time_of_a_log_of_which_it_knows_all_without_its_end() -> None:
    """While more comes without a pause, the client never reports an end; without the time of its first record nobody
    would know that the log is the one which was read, and all of it would be read again."""
    reader = Reader()
    (run,) = reader.take(Copy(0), Copy(1, WALL + 5), known_to=2)
    assert (run.records, run.end, run.last_at_ms) == ([], None, WALL + 5)


def test_what_the_lane_knows_is_handed_over_no_more() -> None:
    reader = Reader()
    reader.take(Copy(0), known_to=1)
    assert reader.take(Copy(2), Copy(4), known_to=5) == []
    (run,) = reader.take(Copy(6), Copy(7, code=END), known_to=7)
    assert (run.records, run.end) == ([], 7)


@pytest.mark.parametrize("known_to", [0, 1])
def test_what_the_lane_does_not_know_is_handed_over(known_to: int) -> None:
    (run,) = Reader().take(Copy(0), Copy(1), known_to=known_to)
    assert [record.offset for record in run.records] == [0, 1][known_to:]


class Busy(Reader):
    """The reader of a queue into which its own lane writes much, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)
        super().__init__()

    def hear(self, known_to: int, at_ms: int = WALL, *, awaited: bool = False) -> list[int]:
        """Hear up to where the lane knows the queue; return from where it is followed since, and −1 if it was left."""
        before = len(self.followed)
        self.thread.known(QUEUE, 1, known_to, at_ms, [], awaited=awaited)
        self.thread._intake.rest()
        return self.followed[before:]


def test_what_the_lane_writes_in_masses_is_passed_without_being_read_and_others_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Busy(monkeypatch)
    assert reader.hear(FAR_AHEAD - 1) == [], "so little is read on the way"
    assert reader.hear(FAR_AHEAD) == [-1]
    reader.seconds += REST / 2
    assert reader.hear(3_000, WALL + 9) == []
    reader.seconds += REST
    assert reader.hear(3_100) == [3_100]
    (run,) = reader.take(Copy(3_099, WALL + 99), Copy(3_100, WALL + 5), known_to=3_100)
    assert [record.offset for record in run.records] == [3_100], "what others write is handed over"
    assert reader.thread._readings[QUEUE].read == (3_101, WALL + 9), "none below it is younger, read or not"


def test_a_queue_rests_as_soon_as_a_copy_of_our_own_is_read_that_lies_far_below_what_the_lane_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Busy(monkeypatch)
    (run,) = reader.take(Copy(0), Copy(1), Copy(9_000), known_to=9_000)
    assert (run.records, reader.followed) == ([], [0, -1])
    reader.seconds += REST
    assert reader.hear(9_000) == [9_000], "what came with it is read then"


def test_a_copy_of_our_own_that_the_lane_does_not_know_yet_is_read_later_and_at_most_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lane hears of a commit after thousands of others on its loop; to parse and hand it over costs more."""
    reader = Busy(monkeypatch)
    copied: Any = SimpleNamespace(writes=[SimpleNamespace(topic=QUEUE.topic, spread=QUEUE.number)])
    reader.appends.appended([copied], {0: (7, WALL)})
    assert reader.take(Copy(6), Copy(7), known_to=0) == []
    reader.seconds += REST
    assert reader.hear(0) == [0]
    (run,) = reader.take(Copy(6), Copy(7, WALL + 3), Copy(8), known_to=0)
    assert [record.offset for record in run.records] == [6, 7, 8], "nothing waits for ever"


def test_a_queue_does_not_rest_while_the_lane_waits_for_what_others_have_written_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each record of others between masses of our own would take a rest: four or five a second."""
    reader = Busy(monkeypatch)
    assert reader.hear(9_000, awaited=True) == []
    assert reader.hear(9_000) == [-1]
    assert reader.hear(9_100, awaited=True) == [9_100], "at once"
    copied: Any = SimpleNamespace(writes=[SimpleNamespace(topic=QUEUE.topic, spread=QUEUE.number)])
    reader.appends.appended([copied], {0: (9_500, WALL)})
    (run,) = reader.take(Copy(9_100), Copy(9_101), known_to=9_100, awaited=True)
    assert [record.offset for record in run.records] == [9_100, 9_101], "nothing is waited for"
    assert reader.hear(9_300) == [-1], "it is none of theirs that comes next"


def test_queues_of_which_the_lane_says_nothing_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be ten thousand, and a turn comes up to two hundred times a second."""
    reader = Busy(monkeypatch)
    other = SimpleNamespace()  # without the attributes that a look would ask for
    reader.thread._readings[Partition("billing-ORDERED-others", 0)] = other  # type: ignore[assignment]
    assert reader.hear(9_000) == [-1]


def test_new_clients_follow_all_queues_with_one_call() -> None:
    reader = Reader()
    other = Partition(QUEUE.topic, QUEUE.number + 1)
    reader.thread._open(other, 1)
    reader.thread._opening._begin(other, reader.thread._readings[other], None, (0, 0))
    reader.thread._clients._followed.clear()
    before = len(reader.calls)
    reader.thread._begin_anew()
    assert [len(assigned) for assigned in reader.calls[before:]] == [2]


def test_a_queue_is_read_up_to_its_first_end_whatever_the_lane_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Busy(monkeypatch)
    reader.thread._readings[QUEUE].caught_up = False
    assert reader.hear(9_000) == []


def test_other_clients_follow_a_queue_that_rests_from_where_the_lane_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Busy(monkeypatch)
    assert reader.hear(9_000) == [-1]
    reader.thread._begin_anew()
    assert reader.followed[-1] == 9_000
    reader.seconds += REST
    assert reader.hear(9_001) == [], "it rests no more"


def test_a_queue_that_rests_is_closed_without_being_left_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Busy(monkeypatch)
    assert reader.hear(9_000) == [-1]
    reader.thread._close(QUEUE)
    reader.thread._intake.rest()
    assert reader.followed == [0, -1]


@pytest.mark.parametrize("answer", [KafkaError.OFFSET_NOT_AVAILABLE, KafkaError._TIMED_OUT, None])
def test_a_queue_whose_edges_are_not_told_is_neither_cut_nor_another_log(answer: int | None) -> None:
    """The reader's position is not in the log, and the leader has just become it: what follows is asked for again."""

    def edges(*_: object, **__: object) -> tuple[int, int]:
        if answer is None:
            return OFFSET_INVALID, OFFSET_INVALID
        raise KafkaException(KafkaError(answer))

    reader = Reader()
    reader.thread._clients.reader.get_watermark_offsets = edges  # type: ignore[method-assign]
    reading = reader.thread._readings[QUEUE]
    reader.thread._intake._on_error(QUEUE, reading, KafkaError(KafkaError._AUTO_OFFSET_RESET))
    assert (reader.followed[-1], reading.position) == (0, 0)
