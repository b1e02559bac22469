"""Which records that are read by their offsets count as gone: those that were passed, and never those still to come."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from reconsume.sidecar.kafka.queues.queue_clients import RecentRecords, RecordReads
from tests.sim.ladder_rig import QUEUE
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
