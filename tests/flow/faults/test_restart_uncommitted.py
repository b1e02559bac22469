"""A restart in place whose last commits do not reach Kafka, as when the brokers are slow: it is no crash (9.7)."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from tests.flow.conftest import StartService
from tests.flow.faults.test_restarts_in_place import on_demand
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.kafka.topic_io import produce
from tests.support.service.behaviours import Answer
from tests.support.sidecar.scene import Proxied

RESTART = "restart-in-place:"
ALWAYS = 1_000


def test_a_restart_whose_last_commit_kafka_never_got_counts_no_crash(
    cleared: Proxied, start_service: StartService, tmp_path: Path
) -> None:
    """Given a record that hangs, then its second delivery follows no crash, although the progress in Kafka is that of
    an owner with a record in flight."""
    group, answer = create_group(fresh_group(cleared.kafka.bootstrap), 1), threading.Event()
    service = start_service(lambda _: Answer(until=answer))
    produce(group.bootstrap, group.main, [b"hangs"])
    overrides = {"deliver": {"timeout": "60s"}, "kafka": {"bootstrap.servers": cleared.proxy.address}}
    with on_demand(group, service.url, tmp_path, overrides) as sidecar:
        sidecar.until(lambda: len(service.ledger.deliveries()) == 1, 30, "it is in flight")
        lost = Rule(Api.TXN_OFFSET_COMMIT, f"-{group.group}-", Moment.ARRIVED, times=ALWAYS, fate=Fate.SILENCE)
        cleared.proxy.add(lost)
        sidecar.signal(signal.SIGUSR1)
        sidecar.wait_log(RESTART, 30)
        assert lost.fired.is_set()
        cleared.proxy.clear()
        sidecar.until(lambda: len(service.ledger.deliveries()) == 2, 30, "it is in flight again")
        answer.set()
        sidecar.until(lambda: bool(service.ledger.taken()), 30, "it is taken")
        assert sidecar.stop().code == 0
    assert "taken-up" not in sidecar.log()
