"""What the reader of the queues tells the lane of copies that the lane knows already."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sidecar.core.lane.partition import FetchedRecords
from sidecar.core.progress import Progress
from sidecar.kafka.queues.own_appends import OwnAppends
from sidecar.kafka.queues.queue_thread import QueueThread
from tests.sim.ladder_rig import QUEUE, rules
from tests.sim.samples import WALL


class Copy:
    """A copy as the client returns it; an `offset` with `ends` is the end of the log."""

    def __init__(self, offset: int, at_ms: int = WALL, *, ends: bool = False) -> None:
        self._offset, self._at_ms, self._ends = offset, at_ms, ends

    def topic(self) -> str:
        return QUEUE.topic

    def partition(self) -> int:
        return QUEUE.number

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, self._at_ms

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._ends else None

    def headers(self) -> list[tuple[str, bytes]]:
        return []

    def key(self) -> bytes:
        return b"k"

    value = key


class Reader:
    """The thread that reads one queue, empty so far, whose lane says up to where it knows it."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.told: list[FetchedRecords] = []
        listener: Any = SimpleNamespace(
            queue_opened=lambda _grant: None, queue_read=lambda run, _caught_up: self.told.append(run)
        )
        registry: Any = SimpleNamespace(register=lambda _name: None)
        policy = rules()
        more: Any = (registry, 1 << 20, lambda _wanted: frozenset(), OwnAppends())
        self.thread = QueueThread({"bootstrap.servers": "localhost:1"}, "billing", "c", listener, lambda: policy, *more)
        client: Any = SimpleNamespace(incremental_assign=lambda _assigned: None)
        clients = self.thread._clients
        clients.following = clients.reader = client
        self.thread._open(QUEUE, 1)
        self.thread._opening._begin(QUEUE, self.thread._readings[QUEUE], progress, (0, 0))
        self.told.clear()

    def take(self, *messages: Copy, known_to: int) -> list[FetchedRecords]:
        """Take in messages, of which the lane knows those below `known_to`; return what the lane is told."""
        self.thread.known(QUEUE, 1, known_to, [])
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
    (run,) = reader.take(Copy(6), Copy(7, ends=True), known_to=7)
    assert (run.records, run.end) == ([], 7)


@pytest.mark.parametrize("known_to", [0, 1])
def test_what_the_lane_does_not_know_is_handed_over(known_to: int) -> None:
    (run,) = Reader().take(Copy(0), Copy(1), known_to=known_to)
    assert [record.offset for record in run.records] == [0, 1][known_to:]
