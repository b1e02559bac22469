"""A stop while busy: nothing new is sent, what is out is answered and committed, the next owner goes on from there."""

from __future__ import annotations

import signal
import threading

import pytest

from reconsume.sidecar.core.pace.topic_turns import RESERVE
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import SOON
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import collect, read_committed_progress
from tests.support.rings import inner
from tests.support.service.behaviours import FAIL, HANG, OK, Answer, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.pace_run import warm_up
from tests.support.sidecar.process import Reply, SidecarProcess

RECORDS = 600
IN_FLIGHT = 32
SLOW = 0.3
"""Seconds that each answer takes: at 32 a time the load lasts 5 s, so that a stop finds it in the middle."""
OVERRIDES = {"deliver": {"concurrency": IN_FLIGHT}}


def slow(request: Request) -> Behaviour:
    """Every tenth record fails once."""
    fails = (request.value or b"").endswith(b"0") and request.times == 0
    return Answer(500 if fails else 200, after=SLOW)


def busy(service: Service, sidecar: SidecarProcess) -> None:
    """Wait until all places are taken that one topic may take, and some work is done."""
    most = IN_FLIGHT - IN_FLIGHT // RESERVE
    sidecar.until(
        lambda: len(service.ledger.taken()) > IN_FLIGHT and service.in_flight >= most - 1, 20, "the sidecar is busy"
    )


def finish(group: GroupTopics, service: Service, start_sidecar: StartSidecar) -> Report:
    """Another pod takes up what is left; the report over both."""
    service.script = lambda request: FAIL if (request.value or b"").endswith(b"0") and request.times == 0 else OK
    heir = start_sidecar(group, service.url, "pod-1")
    heir.until(lambda: len(service.ledger.taken()) == RECORDS, 20, "the next owner does what is left")
    assert heir.stop().code == 0
    return check(collect(group, service.ledger))


def done(group: GroupTopics) -> int:
    """How many records of the main topic are done, as far as Kafka knows; its logs have no gaps."""
    progress = read_committed_progress(group, group.group, group.mains).values()
    return sum(each.next + len(each.done) for each in progress)


@pytest.mark.parametrize("how", inner("SIGTERM", ["SIGTERM", "drain"]))
def test_a_stop_while_busy_answers_what_is_out_sends_nothing_new_and_costs_no_duplicate(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, how: str
) -> None:
    group = create_group(new_group())
    service = start_service(slow)
    sidecar = start_sidecar(group, service.url, overrides=OVERRIDES)
    produce(group.bootstrap, group.main, [b"%d" % number for number in range(RECORDS)])
    busy(service, sidecar)
    if how == "drain":
        reply = sidecar.request("POST", "/drain?timeout=10s")
        acknowledged = len(service.ledger.deliveries())
        assert (reply.status, reply.json) == (200, {"drained": True, "left": 0})
        assert sidecar.running
        again = sidecar.request("POST", "/drain")
        assert (again.status, again.json) == (200, {"drained": True, "left": 0})
        assert len(service.ledger.deliveries()) == acknowledged, "an attempt began after the drain was acknowledged"
    else:
        acknowledged = 0
    end = sidecar.stop()
    assert end.code == 0
    assert end.seconds < 9, "it has not waited for the end of the drain, which may take 10 s"
    assert len(service.ledger.deliveries()) == acknowledged or how == "SIGTERM"
    unanswered = [delivery for delivery in service.ledger.deliveries() if delivery.answered is None]
    assert unanswered == [], "an answer was not waited for"
    assert len(service.ledger.taken()) < RECORDS, "there was nothing left to do: the stop was not in the middle"
    report = finish(group, service, start_sidecar)
    assert (report.committed, report.waiting, report.duplicates) == (RECORDS, 0, 0), report


def test_a_drain_that_waits_may_be_asked_for_again_and_both_learn_the_end(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    service = start_service(lambda request: OK if (request.value or b"").startswith(b"warm") else Answer(after=2.0))
    sidecar = start_sidecar(group, service.url, overrides=OVERRIDES)
    warm_up(group, service, sidecar, 4)
    produce(group.bootstrap, group.main, [b"%d" % number for number in range(4)])
    sidecar.until(lambda: service.in_flight == 4, 20, "the records are out")
    replies: list[Reply] = []
    first = threading.Thread(target=lambda: replies.append(sidecar.request("POST", "/drain?timeout=10s")))
    first.start()
    replies.append(sidecar.request("POST", "/drain?timeout=10s"))
    first.join(10)
    assert [(reply.status, reply.json) for reply in replies] == [(200, {"drained": True, "left": 0})] * 2
    assert sidecar.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.duplicates) == (4 + 4, 0, 0)


def test_a_service_that_hangs_does_not_hold_up_the_end_and_no_attempt_is_counted_for_it(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    hanging = 5
    group = create_group(new_group())
    service = start_service(lambda request: HANG if (request.value or b"").startswith(b"hang") else OK)
    overrides = {"deliver": {"timeout": "60s"}, "drain_timeout": "1s"}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    records = [*(b"hang %d" % number for number in range(hanging)), *(b"%d" % n for n in range(RECORDS - hanging))]
    produce(group.bootstrap, group.main, records)
    sidecar.until(lambda: len(service.ledger.deliveries()) == RECORDS, 20, "all have been delivered")
    sidecar.until(lambda: len(service.ledger.taken()) == RECORDS - hanging, 5, "all others are taken")
    sidecar.until(lambda: done(group) == RECORDS - hanging, 20, "Kafka knows it")
    end = sidecar.stop()
    assert end.code == 0
    assert end.seconds < SOON, "it has not waited for the answers, which may take 60 s"
    assert all(rows == () for rows in collect(group, service.ledger).retries.values())
    report = finish(group, service, start_sidecar)
    assert report.duplicates == hanging, report
    assert (report.committed, report.waiting) == (RECORDS, 0)


def test_a_kill_in_a_drain_repeats_only_what_the_service_has_not_answered(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    let_go = threading.Event()
    group = create_group(new_group())
    service = start_service(lambda request: HANG if request.value == b"hang" else Answer(until=let_go))
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"timeout": "60s"}, "drain_timeout": "60s"})
    produce(group.bootstrap, group.main, [b"hang", b"a", b"b", b"c"])
    sidecar.until(lambda: service.in_flight == 4, 20, "all are out")
    sidecar.signal(signal.SIGTERM)
    sidecar.until(lambda: sidecar.status()["state"] == "draining", 5, "the drain has begun")
    let_go.set()
    sidecar.until(lambda: done(group) == 3, 20, "what was answered is committed although the drain goes on")
    sidecar.kill()
    service.script = lambda _request: OK
    heir = start_sidecar(group, service.url, "pod-1")
    heir.until(lambda: len(service.ledger.taken()) == 4, 20, "the next owner delivers the last one")
    assert heir.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting, report.duplicates) == (4, 0, 1), report


def test_a_second_sigterm_ends_at_once(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    service = start_service(lambda _request: HANG)
    sidecar = start_sidecar(group, service.url)
    produce(group.bootstrap, group.main, [b"hang"])
    sidecar.until(lambda: service.in_flight == 1, 20, "the record is out")

    sidecar.signal(signal.SIGTERM)
    sidecar.until(lambda: sidecar.status()["state"] == "draining", 5, "the drain has begun")
    end = sidecar.stop()
    assert end.code == 1
    assert end.seconds < 9, "it has not waited for the end of the drain, which may take 10 s"
