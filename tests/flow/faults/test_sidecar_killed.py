"""SIGKILL of the sidecar under load, at each point of a record's way; its successor goes on under the same pod name.

After each: nothing is lost and each attempt is counted once. The points on the Kafka side are cut by a proxy that
knows which request passes; the one on the service's side by the service itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.proof.checker import Report
from tests.support.proof.load import uneven
from tests.support.rings import inner
from tests.support.service.behaviours import HANG, Behaviour, Request
from tests.support.sidecar.scene import SOON, Scene

LANES = ("main", "retry")
NTH = 5
"""The transaction of the lane in which it is killed: by then successes, failures and slow records are under way."""


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Iterator[list[Report]]:
    """Reports put in here are printed, whatever pytest captures: duplicates are to be seen, not only bounded."""
    reports: list[Report] = []
    yield reports
    with capsys.disabled():
        for report in reports:
            print(f"\n  {report}", end=" ")  # noqa: T201 - the number is what the run is for


CUTS = {
    "answered, nothing sent": (Api.ADD_PARTITIONS_TO_TXN, Moment.ARRIVED, Fate.DROP),
    "copies produced": (Api.PRODUCE, Moment.DONE, Fate.PASS),
    "offsets in the transaction": (Api.TXN_OFFSET_COMMIT, Moment.ANSWERED, Fate.DROP),
    "commit not sent": (Api.END_TXN, Moment.ARRIVED, Fate.DROP),
    "commit sent": (Api.END_TXN, Moment.FORWARDED, Fate.PASS),
    "commit not acknowledged": (Api.END_TXN, Moment.ANSWERED, Fate.DROP),
    "commit acknowledged": (Api.END_TXN, Moment.DONE, Fate.PASS),
}


@pytest.mark.parametrize("cut", inner("commit sent", CUTS))
def test_a_sidecar_killed_in_a_transaction_loses_nothing_and_counts_once(
    scene: Scene, cut: str, tell: list[Report]
) -> None:
    """First in a transaction of the main lane, then, its successor, in one of the retry lane."""
    api, moment, fate = CUTS[cut]
    for lane in LANES:
        rule = scene.proxy.add(Rule(api, scene.client(lane), moment, scene.kill, nth=NTH, fate=fate))
        if lane == "main":
            scene.begin()
        assert rule.fired.wait(SOON)
        scene.succeed()
    tell.append(scene.verify())


@pytest.mark.long
def test_a_sidecar_killed_with_deliveries_unanswered_loses_nothing_and_counts_once(
    scene: Scene, tell: list[Report]
) -> None:
    """The service kills it when it gets a request: first a first attempt, then, of its successor, a retry."""
    killed = threading.Event()
    wanted: list[int] = []

    def killing(request: Request) -> Behaviour:
        if not wanted or (request.times == 0) != (wanted[0] == 0) or request.seen:
            return uneven(request)
        wanted.pop()
        scene.kill()
        killed.set()
        return HANG

    scene.script = killing
    scene.begin()
    for times in (0, 1):
        scene.delivers(200)
        killed.clear()
        wanted.append(times)
        assert killed.wait(SOON)
        scene.succeed()
    tell.append(scene.verify())
