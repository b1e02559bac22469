"""Queues that are missing: when the lane goes on without one, and that the process restarts for one made later."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.queues import queue_opening
from reconsume.sidecar.kafka.queues.own_appends import OwnAppends
from reconsume.sidecar.kafka.queues.queue_clients import EDGES_WITHIN
from reconsume.sidecar.kafka.queues.queue_thread import QueueDoubts, QueueThread
from reconsume.sidecar.kafka.restart_cause import RestartCause
from tests.sim.ladder_rig import QUEUE, rules

LADDER = rules()
WITHOUT = replace(LADDER, queued=False, drained=True, in_place=InPlace(1_000))
Answer = Callable[[float], int]


class Client:
    """Answers for the ends of the queue, as `answer` says at each time: 0 or the code of an error."""

    def __init__(self, answer: Callable[[], int]) -> None:
        self._answer = answer

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        if code := self._answer():
            raise KafkaException(KafkaError(code))
        return 0, 5

    def incremental_assign(self, *_: object) -> None:
        """Nothing is read."""

    def incremental_unassign(self, *_: object) -> None:
        """Nothing was read."""


class Looks:
    """The thread's looks for one queue, on a clock of its own; what the lane heard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: Policy, answer: Answer) -> None:
        self.heard: list[str] = []
        self.policy, self.now = policy, 0.0
        listener: Any = SimpleNamespace(
            queue_opened=lambda _grant: self.heard.append("opened"),
            queue_absent=lambda *_: self.heard.append("absent"),
            queue_cut=lambda *_: self.heard.append("cut"),
            queue_read=lambda *_: None,
        )
        registry: Any = SimpleNamespace(register=lambda _name: None)

        def missing(wanted: frozenset[str]) -> frozenset[str]:
            return wanted if answer(self.now) else frozenset()

        def ask(cause: RestartCause) -> bool:
            assert not cause.broken
            if "restart" not in self.heard:
                self.heard.append("restart")
            return True

        config = {"bootstrap.servers": "localhost:1"}
        more: Any = (listener, lambda: self.policy, registry, 1 << 20, missing, OwnAppends(), QueueDoubts(ask))
        self.thread = QueueThread(config, "billing", "c", *more)
        client: Any = Client(lambda: answer(self.now))
        clients = self.thread._clients
        clients.following = clients.reader = client
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(queue_opening, "committed", lambda _client, queues, **_: dict.fromkeys(queues))
        monkeypatch.setattr(queue_opening, "named_topics", lambda *_: None)
        self.thread._open(QUEUE, 1)

    def go_on(self, seconds: float) -> None:
        """Look as often as the loop does."""
        end = self.now + seconds
        while self.now < end:
            self.thread._opening.look_for_unknown()
            self.thread._opening.open_more()
            self.now += 0.3


def made_at(moment: float) -> Answer:
    return lambda now: 0 if now >= moment else KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize("policy", [LADDER, WITHOUT], ids=["ladder", "no ladder"])
def test_for_a_queue_that_is_made_later_the_process_restarts_with_a_ladder_and_without(
    monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    looks = Looks(monkeypatch, policy, made_at(20))
    looks.go_on(24)
    assert looks.heard == ["absent", "restart"]
    assert "KafkaError{" not in looks.thread.last_error, "/status has a sentence for people"


def test_for_a_queue_that_is_made_once_the_ladder_has_ended_the_process_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given copies that were refused while the ladder was in force: they are written as soon as the topic is there."""
    looks = Looks(monkeypatch, LADDER, made_at(20))
    looks.go_on(10)
    looks.policy = WITHOUT
    looks.go_on(14)
    assert looks.heard == ["absent", "restart"]


def test_a_queue_is_not_missing_for_five_seconds_by_two_answers_with_none_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(now: float) -> int:
        if now < 0.2 or 6 < now < 6.4:
            return KafkaError.UNKNOWN_TOPIC_OR_PART
        return KafkaError._TIMED_OUT if now < 6.4 else 0

    looks = Looks(monkeypatch, LADDER, answer)
    looks.go_on(12)
    assert looks.heard == ["opened"]


def test_one_wrong_answer_is_not_enough_where_the_group_has_a_ladder_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a broker that does not know yet of a queue in which a former owner has written."""
    looks = Looks(monkeypatch, WITHOUT, made_at(0.2))
    looks.thread.expect_queues()
    looks.go_on(2)
    assert looks.heard == ["opened"]


def test_a_ladder_that_begins_has_an_absent_queue_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, WITHOUT, made_at(2))
    looks.go_on(1)
    looks.policy = LADDER
    looks.go_on(3)
    assert looks.heard == ["absent", "restart"]


def test_leaders_that_do_not_answer_take_one_wait_of_a_look_and_the_queues_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a broker that is away: before, each queue that it leads took two seconds, in which nothing was read."""
    looks, spent = Looks(monkeypatch, LADDER, lambda _now: 0), list[float]()

    def ends(queue: TopicPartition, **_: object) -> tuple[int, int]:
        if queue.partition != 9:
            looks.now += EDGES_WITHIN
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, 5

    monkeypatch.setattr(looks.thread._clients.reader, "get_watermark_offsets", ends)
    for number in range(1, 10):
        looks.thread._open(Partition(QUEUE.topic, number), 1)
    while looks.heard != ["opened"]:
        before = looks.now
        looks.thread._opening.open_more()
        spent.append(looks.now - before)
        assert not looks.thread._opening.is_due, "there is time to read before the next look"
    assert spent == [EDGES_WITHIN] * 10


def test_queues_that_are_refused_at_once_keep_no_other_from_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given errors that cost no time: the partitions that have them are asked first."""
    looks = Looks(monkeypatch, LADDER, lambda _now: 0)

    def ends(queue: TopicPartition, **_: object) -> tuple[int, int]:
        if queue.partition != 9:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        return 0, 5

    monkeypatch.setattr(looks.thread._clients.reader, "get_watermark_offsets", ends)
    for number in range(1, 10):
        looks.thread._open(Partition(QUEUE.topic, number), 1)
    looks.thread._opening.open_more()
    assert looks.heard == ["opened"]


def test_the_lane_hears_of_a_log_that_begins_behind_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would wait for ever for a copy that was committed there, and not read back (`UnseenCopies`)."""
    looks = Looks(monkeypatch, LADDER, lambda _now: 0)
    looks.go_on(1)
    monkeypatch.setattr(looks.thread._clients.reader, "get_watermark_offsets", lambda *_, **__: (3, 5))
    looks.thread._intake._on_error(QUEUE, looks.thread._readings[QUEUE], KafkaError(KafkaError._AUTO_OFFSET_RESET))
    assert (looks.heard, looks.thread._readings[QUEUE].position) == (["opened", "cut"], 3)
