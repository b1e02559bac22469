"""A pod with a native sidecar is deleted, replayed with real processes: preStop of both at once, then SIGTERM in turn.

All shutdowns are played side by side, each once; each test looks at one claim about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import pytest

from tests.flow.lifecycle.pod import KILLED
from tests.flow.lifecycle.shutdowns import GRACE, IN_FLIGHT, PLOTS, RECORDS, Shutdown, play
from tests.support.kafka.broker import Broker

pytestmark = pytest.mark.long

CUT_SHORT = {"second sigterm", "grace too short"}
LEAVES = 2.0
"""Seconds of the grace period that must be left when the sidecar has ended."""
AT_ONCE = 4
"""Shutdowns that are played at the same time."""
Shutdowns: TypeAlias = Mapping[str, "Future[Shutdown]"]


@pytest.fixture(scope="module")
def shutdowns(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Shutdown]]]:
    """Every shutdown, under way or over."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        longest_first = sorted(PLOTS, key=lambda name: not PLOTS[name].own_kafka)
        yield {
            name: pool.submit(play, PLOTS[name], kafka.bootstrap, tmp_path_factory.mktemp(name.replace(" ", "-")))
            for name in longest_first
        }


@pytest.mark.parametrize("name", PLOTS)
def test_nothing_is_lost_nothing_dead_lettered_and_only_what_was_cut_off_comes_twice(
    shutdowns: Shutdowns, name: str
) -> None:
    shutdown = shutdowns[name].result()
    report = shutdown.report
    assert (report.committed, report.dead_lettered, report.waiting) == (RECORDS, 0, 0), report
    if name in ("idle", "busy", "slow service"):
        assert shutdown.cut_off == 0
        assert shutdown.taken_again == set()
        # Only where some fail: a failure that is answered while the service refuses connections is no attempt.
        assert report.duplicates == 0 or name == "busy"
    elif name not in ("kafka down", "service gone first"):
        assert report.duplicates == IN_FLIGHT


@pytest.mark.parametrize("name", sorted(PLOTS.keys() - CUT_SHORT))
def test_no_attempt_is_made_after_the_drain_is_acknowledged(shutdowns: Shutdowns, name: str) -> None:
    shutdown = shutdowns[name].result()
    assert shutdown.deletion.acknowledged is not None
    assert all(delivery.received <= shutdown.deletion.acknowledged for delivery in shutdown.by_pod)


@pytest.mark.parametrize("name", sorted(PLOTS.keys() - CUT_SHORT))
def test_the_sidecar_ends_in_order_two_seconds_before_the_grace_period_does(shutdowns: Shutdowns, name: str) -> None:
    ended = shutdowns[name].result().deletion.sidecar
    assert ended.code == 0
    assert ended.seconds <= GRACE - LEAVES


def test_the_work_was_not_over_when_the_pod_was_deleted(shutdowns: Shutdowns) -> None:
    for name in PLOTS.keys() - {"idle"}:
        assert len({delivery.id for delivery in shutdowns[name].result().by_pod}) < RECORDS, name


def test_a_drain_that_left_nothing_says_so(shutdowns: Shutdowns) -> None:
    for name in ("busy", "slow service", "service gone first", "service cuts off", "service breaks"):
        assert shutdowns[name].result().deletion.drained == {"drained": True, "left": 0}, name
    assert shutdowns["idle"].result().deletion.drained == 0, "the exit code of the command"


def test_a_drain_without_kafka_says_how_much_kafka_has_not_heard(shutdowns: Shutdowns) -> None:
    shutdown = shutdowns["kafka down"].result()
    drained = shutdown.deletion.drained
    assert drained["drained"] is False
    assert shutdown.cut_off == 0, "all answers were waited for nevertheless"
    assert IN_FLIGHT <= drained["left"] <= len(shutdown.by_pod)
    assert 0 < shutdown.report.duplicates <= drained["left"]


def test_a_second_sigterm_ends_the_sidecar_at_once(shutdowns: Shutdowns) -> None:
    code, seconds = shutdowns["second sigterm"].result().notes["ended"]
    assert code == 1
    assert seconds < 5, "the drain would have taken 8 s"


def test_a_grace_period_that_is_too_short_ends_in_a_kill(shutdowns: Shutdowns) -> None:
    deletion = shutdowns["grace too short"].result().deletion
    assert (deletion.drained, deletion.sidecar.code, deletion.service.code) == (None, KILLED, KILLED)
