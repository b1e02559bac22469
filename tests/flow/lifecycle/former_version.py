"""An instance as of 0.2, made up of a plain consumer: its progress has no stamp, and its heartbeat does not say `well`.

It takes all records of its partitions but those it is told to leave unanswered, as a service does that hangs. Like 0.2
it is a member whatever its service does, and reads the done set of whatever metadata it finds.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Message, TopicPartition

from reconsume.topics.policy_record import instance_key
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import HEADERS, SECONDS, Out, produce
from tests.support.proof.evidence import Progress, read_progress
from tests.support.proof.ledger import TOOK, Delivery, Ledger

NAME = "pod-of-0.2"


class FormerInstance(threading.Thread):
    """A member of the group of main topics. `leaves`: by its value, whether a record gets no answer here.

    A context manager: leaving it commits the progress and leaves the group.
    """

    def __init__(self, group: GroupTopics, ledger: Ledger, leaves: Callable[[bytes], bool]) -> None:
        super().__init__(name=NAME, daemon=True)
        self.owned: frozenset[int] = frozenset()
        """The partitions that it has now."""
        self._progress: dict[int, Progress] = {}
        self._high: dict[int, int] = {}
        """The offset behind the last record that was read."""
        self._group, self._ledger, self._leaves = group, ledger, leaves
        self._ended = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": group.bootstrap,
                "group.id": group.group,
                "client.id": f"reconsume-{group.group}-{NAME}",
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": 500,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )

    def run(self) -> None:
        """Take records until ended, then leave in order."""
        self._consumer.subscribe([self._group.main], on_assign=self._assigned, on_revoke=self._revoked)
        while not self._ended.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._take(message)
        self._commit(self.owned)
        self._consumer.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join(SECONDS)
        assert not self.is_alive(), "the instance of 0.2 has not left"

    def tell(self) -> None:
        """Write the heartbeat as 0.2 writes it."""
        now = time.time_ns() // 1_000_000
        pace = {"state": "open", "since": now, "in_flight": 0, "limit": 64, "reason": ""}
        record = {"subscription": {self._group.main: "*"}, "at": now, "pace": pace, "overdue": 0, "v": 1}
        out = Out(json.dumps(record).encode(), instance_key(NAME), partition=0)
        produce(self._group.bootstrap, self._group.names.policy, [out])

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        found = consumer.committed(places, timeout=SECONDS)
        for place in found:
            progress = read_progress(max(0, place.offset), place.metadata)
            self._progress[place.partition], self._high[place.partition] = progress, progress.next
            place.offset = progress.next
        consumer.incremental_assign([TopicPartition(place.topic, place.partition, place.offset) for place in found])
        self.owned |= {place.partition for place in found}

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        gone = frozenset(place.partition for place in places)
        self._commit(gone)
        self.owned -= gone
        consumer.incremental_unassign(places)

    def _take(self, message: Message) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        progress = self._progress[partition]
        self._high[partition] = offset + 1
        if progress.covers(offset):
            return
        value = message.value() or b""
        ident = f"{self._group.main}:{partition}:{offset}"
        pairs = tuple((name, (data or b"").decode("latin-1")) for name, data in HEADERS(message) or ())
        delivery = Delivery(0, _now(), ident, 0, 0, f"{ident}/0/0", message.key(), message.value(), pairs)
        if self._leaves(value):
            return
        number = self._ledger.received(delivery)
        self._ledger.answered(number, NAME, TOOK, _now())
        self._progress[partition] = Progress(progress.next, progress.done | {offset})

    def _commit(self, partitions: frozenset[int]) -> None:
        """Commit the lowest open offset of each, and what is done above it, without a stamp."""
        offsets = []
        for partition in partitions:
            begin, done = self._progress[partition]
            lowest = next((at for at in range(begin, self._high[partition]) if at not in done), self._high[partition])
            above = [at for at in done if at > lowest]
            offsets.append(TopicPartition(self._group.main, partition, lowest, metadata_of(lowest, above)))
        if offsets:
            self._consumer.commit(offsets=offsets, asynchronous=False)


def metadata_of(lowest: int, done: list[int]) -> str:
    """The metadata as 0.2 writes it; `o`: something may be out."""
    bits = sum(1 << (offset - lowest) for offset in done)
    packed = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return "rc1o." + (base64.urlsafe_b64encode(zlib.compress(packed)).decode() if done else "")


def _now() -> int:
    return time.time_ns() // 1_000_000
