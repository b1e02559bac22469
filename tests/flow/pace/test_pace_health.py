"""The health URL on a real broker: deliveries begin, and go on after an outage, when it says so."""

from __future__ import annotations

import threading

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import produce
from tests.support.service.behaviours import OK
from tests.support.service.service import Service
from tests.support.service.stub_service import StubService, Talk, answer
from tests.support.sidecar.pace_run import finish, pace_is, values
from tests.support.sidecar.process import SidecarProcess


def test_with_a_health_url_deliveries_begin_and_go_on_only_when_it_says_so(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """A service that listens before it is ready gets nothing before then, at its start and after an outage."""
    healthy = threading.Event()

    def health(talk: Talk) -> bool:
        return answer(200 if healthy.is_set() else 503)(talk)

    group = create_group(new_group())
    service = start_service(lambda _request: OK)
    with StubService([health]) as asked:
        deliver = {"concurrency": 4, "health_url": asked.url}
        sidecar = start_sidecar(group, service.url, overrides={"deliver": deliver})
        produce(group.bootstrap, group.main, values("first", 50))
        asks_without_delivering(asked, service, sidecar)
        healthy.set()
        sidecar.until(lambda: len(service.ledger.taken()) == 50, 15, "the first are taken")
        asked_so_far = len(asked.requests)
        healthy.clear()
        service.down()
        produce(group.bootstrap, group.main, values("second", 50))
        pace_is(sidecar, "outage")
        service.up()
        asks_without_delivering(asked, service, sidecar)
        assert len(asked.requests) > asked_so_far
        healthy.set()
        sidecar.until(lambda: len(service.ledger.taken()) == 100, 15, "the second are taken")
        run = finish(group, service, sidecar, 0)
    assert (run.report.deliveries, run.spent) == (100, 0)
    assert run.log.count("health-url") == 2


def asks_without_delivering(asked: StubService, service: Service, sidecar: SidecarProcess) -> None:
    """The health URL fails three more times, and nothing is delivered meanwhile."""
    before, polls = len(service.ledger.deliveries()), len(asked.requests)
    sidecar.until(lambda: len(asked.requests) >= polls + 3, 15, "it is asked again and again")
    sidecar.until(lambda: sidecar.status()["pace_reason"] == "health URL: http-503", 5, "it says why")
    assert sidecar.status()["pace"] == "outage"
    assert len(service.ledger.deliveries()) == before
