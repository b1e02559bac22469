"""Which records that are read by their offsets count as gone: those that were passed, and never those still to come."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from sidecar.kafka.queues.offset_reads import Payloads
from tests.sim.ladder_rig import QUEUE

END, RESET, OTHER = KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError._TRANSPORT
WANTED = 5


class Found:
    """What the client tells of an offset: a record there, or an error."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset, self._code = offset, code

    def topic(self) -> str:
        return QUEUE.topic

    def partition(self) -> int:
        return QUEUE.number

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def key(self) -> bytes:
        return b"k"

    value = key


class Log:
    """A client that says the same again each time that it is placed anew; `at`: where it was placed."""

    def __init__(self, *says: Found) -> None:
        self.says, self.at = says, list[int]()
        self._next: list[Found] = []

    def incremental_assign(self, placed: list[TopicPartition]) -> None:
        self.at.append(placed[0].offset)
        self._next = list(self.says)

    def incremental_unassign(self, _left: list[TopicPartition]) -> None:
        self._next = []

    def consume(self, _most: int, _wait: float) -> list[Found]:
        return [self._next.pop(0)] if self._next else []


@pytest.mark.parametrize(
    ("says", "arrives", "gone"),
    [
        ([Found(5)], True, False),
        ([Found(3), Found(5)], True, False),
        ([Found(6)], False, True),  # it was deleted, and what is behind it was not
        ([Found(3), Found(7)], False, True),
        ([Found(6, END)], False, True),  # a marker lies there
        ([Found(3), Found(6, END)], False, True),
        ([Found(5, RESET)], False, True),  # the log begins behind it
        ([Found(5, END)], False, False),  # its leader does not know yet that it is committed
        ([Found(4), Found(5, END)], False, False),
        ([Found(3, END)], False, False),
        ([Found(5, END), Found(5)], True, False),
        ([Found(4, END), Found(4), Found(5)], True, False),
        ([Found(5, OTHER)], False, False),
        ([], False, False),
    ],
)
def test_a_record_is_gone_if_the_log_goes_on_or_begins_behind_it(says: list[Found], arrives: bool, gone: bool) -> None:
    arrived, lost = list[int | None](), list[int]()
    payloads = Payloads(
        lambda _queue, message: arrived.append(message.offset()),
        lambda _queue, _message: None,
        lambda _queue, offset: lost.append(offset),
    )
    log: Any = Log(*says)
    payloads.want(QUEUE, WANTED)
    for _ in range(5):
        payloads.turn(log, 0.0)
    assert (arrived, lost) == ([WANTED] * arrives, [WANTED] * gone)
    assert not gone or log.at[:2] == [WANTED, WANTED], "what was fetched for another offset may arrive late, once"
