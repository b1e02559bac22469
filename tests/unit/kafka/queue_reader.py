"""The thread that reads queues, a turn at a time, on a clock and a Kafka of its own; and what its lane hears."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.listeners import RestartCause
from reconsume.sidecar.kafka.queues.queue_thread import QueueHelp, QueueThread
from tests.sim.ladder_rig import QUEUE, rules
from tests.unit.kafka.queue_messages import Copy


class Kafka:
    """Both clients of the reader. `size`: how many partitions the queue topic has, 0 if it is missing; None: Kafka does
    not tell."""

    def __init__(self) -> None:
        self.size: int | None = 1
        self.low, self.high = 0, 0
        self.silent = frozenset[int]()
        """The partitions whose leader does not answer."""
        self.log: LogId | None = LogId.of("cluster", "first")
        self.progress: Progress | None = None
        self.messages: list[Copy] = []
        self.followed: list[int] = []
        """From where the queue was followed, and −1 where it was left."""
        self.calls: list[list[TopicPartition]] = []

    def list_topics(self, topic: str, timeout: float) -> Any:
        if self.size is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        error = None if self.size else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        parts = {number: SimpleNamespace(leader=0) for number in range(self.size)}
        return SimpleNamespace(brokers=[0], topics={topic: SimpleNamespace(error=error, partitions=parts)})

    def missing(self, wanted: frozenset[str]) -> frozenset[str] | None:
        """Which of these topics do not exist, as another client hears it."""
        return None if self.size is None else frozenset() if self.size else wanted

    def committed(self, queues: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.progress is None:
            return queues
        metadata = encode(QUEUE, self.progress)
        return [TopicPartition(one.topic, one.partition, self.progress.next, metadata=metadata) for one in queues]

    def offsets_for_times(self, queues: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if any(one.partition in self.silent for one in queues):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        edges = {OFFSET_BEGINNING: self.low, OFFSET_END: self.high}
        return [TopicPartition(one.topic, one.partition, edges[one.offset]) for one in queues]

    def incremental_assign(self, assigned: list[TopicPartition]) -> None:
        self.calls.append(assigned)
        self.followed.append(assigned[0].offset)

    def incremental_unassign(self, _left: list[TopicPartition]) -> None:
        self.followed.append(-1)

    def consume(self, most: int, _wait: float) -> list[Copy]:
        taken, self.messages = self.messages[:most], self.messages[most:]
        return taken


class Reader:
    """The reader of one queue. `heard`: what the lane, and the process, are told of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: Policy | None = None) -> None:
        self.kafka, self.now, self.heard = Kafka(), 100.0, list[str]()
        self.policy = policy or rules()
        self.runs: list[FetchedRecords] = []
        self.grants: list[AssignedPartition] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        lane: Any = SimpleNamespace(
            queue_opened=self._opened,
            queue_absent=lambda *_: self.heard.append("absent"),
            queue_cut=lambda *_: self.heard.append("cut"),
            queue_read=lambda run, _caught_up: self.runs.append(run),
            queue_full=lambda: False,
            dropped=lambda _queues: self.heard.append("dropped"),
        )
        ask = QueueHelp(
            lambda: self.policy,
            self.kafka.missing,
            lambda topics: {topic: self.kafka.log for topic in topics if self.kafka.size and self.kafka.log},
            self._ask_restart,
            lambda _queue: self.heard.append("taken over once more"),
        )
        config = {"bootstrap.servers": "localhost:1", "group.id": "billing"}
        self.thread = QueueThread(config, lane, CredentialRegistry(), 1 << 20, ask)
        clients: Any = self.thread._clients
        clients.following = clients.reader = self.kafka
        clients._has_both = True
        self.thread._looks.leaders.clock = lambda: self.now
        self.thread._stopping.wait = lambda timeout=None: False  # type: ignore[method-assign]

    def _opened(self, grant: AssignedPartition) -> None:
        self.heard.append("opened")
        self.grants.append(grant)

    def _ask_restart(self, cause: RestartCause) -> bool:
        self.heard.append("restart, broken" if cause.broken else "restart")
        return True

    def open(self, *numbers: int) -> None:
        """Have the lane open queues; the one of `QUEUE` if none is named."""
        for number in numbers or (QUEUE.number,):
            self.thread.open(Partition(QUEUE.topic, number), 1)

    def turn(self) -> None:
        """One turn of the thread."""
        self.thread._commands.put(None)  # else an idle turn waits for a command
        self.thread._turn()

    def go_on(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Take turns, ten a second."""
        end = self.now + seconds
        while self.now < end and not until():
            self.turn()
            self.now += 0.1

    def take(self, *messages: Copy, known_to: int = 0) -> list[FetchedRecords]:
        """Take in messages, of which the lane knows those below `known_to`; return what the lane is told."""
        self.thread.known(QUEUE, 1, known_to, [])
        told = len(self.runs)
        taken: Any = messages
        self.thread._take_messages(taken)
        return self.runs[told:]


def offsets_of(runs: Sequence[FetchedRecords]) -> list[int]:
    """The offsets that were handed over."""
    return [record.offset for run in runs for record in run.records]
