"""Records that are read by their offsets: which go first, which are at hand then, and which count as gone.

Gone are those that were passed, and never those still to come.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from reconsume.sidecar.kafka.queues.queue_clients import FAR, REST, RecentRecords, RecordReads
from tests.sim.ladder_rig import QUEUE
from tests.sim.samples import record
from tests.unit.kafka.queue_messages import END, Copy

RESET, OTHER = KafkaError._AUTO_OFFSET_RESET, KafkaError._TRANSPORT
WANTED = 5


class Log:
    """A client that says the same again each time that it is placed anew; `at`: where it was placed."""

    def __init__(self, *says: Copy) -> None:
        self.says, self.at = says, list[int]()
        self._next: list[Copy] = []

    def incremental_assign(self, placed: list[TopicPartition]) -> None:
        self.at.append(placed[0].offset)
        self._next = list(self.says)

    def incremental_unassign(self, _left: list[TopicPartition]) -> None:
        self._next = []

    def consume(self, _most: int, _wait: float) -> list[Copy]:
        return [self._next.pop(0)] if self._next else []


@pytest.mark.parametrize(
    ("says", "arrives", "gone"),
    [
        ([Copy(5)], True, False),
        ([Copy(3), Copy(5)], True, False),
        ([Copy(6)], False, True),  # it was deleted, and what is behind it was not
        ([Copy(3), Copy(7)], False, True),
        ([Copy(6, code=END)], False, True),  # a marker lies there
        ([Copy(3), Copy(6, code=END)], False, True),
        ([Copy(5, code=RESET)], False, True),  # the log begins behind it
        ([Copy(5, code=END)], False, False),  # its leader does not know yet that it is committed
        ([Copy(4), Copy(5, code=END)], False, False),
        ([Copy(3, code=END)], False, False),
        ([Copy(5, code=END), Copy(5)], True, False),
        ([Copy(4, code=END), Copy(4), Copy(5)], True, False),
        ([Copy(5, code=OTHER)], False, False),
        ([], False, False),
    ],
)
def test_a_record_is_gone_if_the_log_goes_on_or_begins_behind_it(says: list[Copy], arrives: bool, gone: bool) -> None:
    arrived, lost = list[int | None](), list[int]()
    reads = RecordReads(
        RecentRecords(0),
        lambda _queue, message: arrived.append(message.offset()),
        lambda _queue, _message: None,
        lambda _queue, offset: lost.append(offset),
    )
    log: Any = Log(*says)
    reads.want(QUEUE, WANTED)
    for _ in range(5):
        reads.turn(log, 0.0)
    assert (arrived, lost) == ([WANTED] * arrives, [WANTED] * gone)
    assert not gone or log.at[:2] == [WANTED, WANTED], "what was fetched for another offset may arrive late, once"


class Rows:
    """A client of a log in which records lie at all offsets."""

    def __init__(self) -> None:
        self.at = list[int]()
        """Where it was placed; −1: nowhere."""
        self._next = -1

    def incremental_assign(self, placed: list[TopicPartition]) -> None:
        self.at.append(placed[0].offset)
        self._next = placed[0].offset

    def incremental_unassign(self, _left: list[TopicPartition]) -> None:
        self.at.append(-1)

    def consume(self, _most: int, _wait: float) -> list[Copy]:
        self._next += 1
        return [Copy(self._next - 1)]


class Readers:
    """Reads of such a log; what arrived, and what is at hand, by offset."""

    def __init__(self) -> None:
        self.client: Any = Rows()
        self.arrived = list[int | None]()
        self.reads = RecordReads(
            RecentRecords(1 << 20),
            lambda _queue, message: self.arrived.append(message.offset()),
            lambda queue, message: self.reads.recent.keep([record(message.offset() or 0, source=queue)]),
            lambda _queue, offset: pytest.fail(f"{offset} is there"),
        )

    def at_hand(self, *offsets: int) -> bool:
        return self.reads.recent.missing(QUEUE, offsets) == []


def test_what_is_read_ahead_is_at_hand_and_what_is_asked_for_goes_first() -> None:
    readers = Readers()
    readers.reads.want_ahead(QUEUE, [3, 5])
    readers.reads.want(QUEUE, 9)
    for _ in range(2):
        readers.reads.turn(readers.client, 0.0)
    assert (readers.arrived, readers.at_hand(3, 5), readers.client.at) == ([9], True, [9, -1, 3])
    assert not readers.at_hand(4), "of what lies between nothing is kept"


def test_what_is_asked_for_while_it_is_read_ahead_arrives_once() -> None:
    readers = Readers()
    readers.reads.want_ahead(QUEUE, [3])
    readers.reads.want(QUEUE, 3)
    readers.reads.want_ahead(QUEUE, [3])
    for _ in range(3):
        readers.reads.turn(readers.client, 0.0)
    assert (readers.arrived, readers.at_hand(3)) == ([3], False)


def test_what_is_at_hand_already_is_not_read_again() -> None:
    readers = Readers()
    readers.reads.recent.keep([record(3, source=QUEUE)])
    readers.reads.want_ahead(QUEUE, [3])
    readers.reads.turn(readers.client, 0.0)
    assert not readers.reads


def test_the_client_rests_where_it_has_read_and_leaves_it_only_if_nothing_is_wanted_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    readers = Readers()
    for offset in (3, 4, 4 + FAR):
        readers.reads.want(QUEUE, offset)
        readers.reads.turn(readers.client, 0.0)
        readers.reads.turn(readers.client, 0.0)
        now += REST / 2
    assert (readers.arrived, readers.client.at, bool(readers.reads)) == ([3, 4, 4 + FAR], [3], True)
    now += REST
    readers.reads.turn(readers.client, 0.0)
    assert (readers.client.at, bool(readers.reads)) == ([3, -1], False)


def test_a_record_that_is_read_ahead_and_is_not_there_is_left_to_who_asks_for_it() -> None:
    lost = list[int]()
    reads = RecordReads(RecentRecords(0), print, print, lambda _queue, offset: lost.append(offset))
    log: Any = Log(Copy(3), Copy(7))
    reads.want_ahead(QUEUE, [WANTED])
    reads.turn(log, 0.0)
    assert (lost, reads.wanted) == ([], {})
