"""When a process restarts in place, and what the next one knows of it; on a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from reconsume.sidecar.kafka.listeners import RestartCause, RestartReason
from reconsume.sidecar.runtime import restarts
from reconsume.sidecar.runtime.restarts import LONGEST_TURN, MOST, UNCHANGED, WITHIN, Restarts

RECREATED = RestartCause(RestartReason.TOPIC_RECREATED, "orders", "c/1")
DEAF = RestartCause(RestartReason.CLIENT_DEAF, "orders", "c/1")


def queue(name: str, *, broken: bool = False) -> RestartCause:
    return RestartCause(RestartReason.QUEUE_TOPIC, name, "c/7", broken)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(restarts, "time", SimpleNamespace(time=clock.time, monotonic=clock.time))
    return clock


def restarted(process: Restarts, *causes: RestartCause) -> Restarts:
    """The next process, after a restart for these causes."""
    for cause in causes:
        assert process.ask(cause)
    environ: dict[str, str] = {}
    process.note_restart(environ, {})
    successor = Restarts(environ)
    assert not environ, "what the process starts does not see it"
    return successor


@pytest.mark.parametrize("cause", [RECREATED, DEAF])
def test_a_broken_client_and_a_recreated_main_topic_wait_for_nobody(cause: RestartCause, clock: Clock) -> None:
    process = Restarts({})
    assert not process.is_due()
    process.ask(cause)
    assert process.is_due()
    assert process.is_broken


def test_queue_topics_are_answered_together_once_their_set_has_not_changed_for_five_seconds(clock: Clock) -> None:
    process = Restarts({})
    for number in range(4):
        process.ask(queue(f"orders-{number}-ORDERED"))
        for _ in range(3):
            clock.now += UNCHANGED / 3 - 0.1
            process.ask(queue("orders-0-ORDERED"))  # each look reports it again
            assert not process.is_due()
    clock.now += LONGEST_TURN + 1.0
    assert process.is_due()
    assert not process.is_broken
    for number in range(4):
        assert not restarted(process, queue("more-ORDERED")).ask(queue(f"orders-{number}-ORDERED"))


def test_instances_take_turns_of_up_to_five_seconds(clock: Clock) -> None:
    processes = [Restarts({}) for _ in range(200)]
    for process in processes:
        process.ask(queue("orders-ORDERED"))
    clock.now += UNCHANGED + LONGEST_TURN / 2
    assert 50 < sum(process.is_due() for process in processes) < 150
    clock.now += LONGEST_TURN / 2
    assert all(process.is_due() for process in processes)


def test_another_reason_does_not_wait_for_the_queue_topics(clock: Clock) -> None:
    process = Restarts({})
    process.ask(queue("orders-ORDERED"))
    process.ask(DEAF)
    assert process.is_due()
    assert process.is_broken


def test_one_reason_leads_to_one_restart_for_each_incarnation_of_its_topic(clock: Clock) -> None:
    process = restarted(Restarts({}), RECREATED)
    assert not process.ask(RECREATED)
    assert process.ask(DEAF), "another reason"
    assert process.ask(RECREATED._replace(incarnation="c/2")), "recreated again"
    clock.now += WITHIN
    assert process.ask(RECREATED), "what is so long ago is forgotten"


def test_five_restarts_within_ten_minutes_are_all_and_their_sum_stays(clock: Clock) -> None:
    process = Restarts({})
    for number in range(MOST):
        assert not process.are_used_up
        process = restarted(process, RECREATED._replace(incarnation=f"c/{number}"))
        clock.now += 60
    assert process.are_used_up
    assert [one["reason"] for one in process.status()] == ["topic-recreated"] * MOST
    clock.now += WITHIN - MOST * 60
    assert not process.are_used_up
    assert len(process.status()) == MOST - 1
    process = restarted(process, DEAF)
    assert process.totals() == {"topic-recreated": MOST, "queue-topic": 0, "client-deaf": 1}
