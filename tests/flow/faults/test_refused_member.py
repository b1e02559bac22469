"""A group that does not take an instance: it reads nothing, and `/status` and `doctor` say so until it is taken."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.heartbeats import heartbeats
from tests.support.kafka.topic_io import create_topic, produce
from tests.support.service.behaviours import OK
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of


@contextmanager
def stranger(group: GroupTopics) -> Iterator[None]:
    """A member of the group that divides partitions as no sidecar does, such as a service before its migration."""
    consumer = Consumer(
        {"bootstrap.servers": group.bootstrap, "group.id": group.group, "partition.assignment.strategy": "range"}
    )
    joined, over = threading.Event(), threading.Event()
    consumer.subscribe([group.main], on_assign=lambda *_: joined.set())

    def polls() -> None:
        while not over.is_set():
            consumer.poll(0.1)
        consumer.close()

    thread = threading.Thread(target=polls)
    thread.start()
    try:
        assert joined.wait(30)
        yield
    finally:
        over.set()
        thread.join()


def said_well(group: GroupTopics) -> list[bool | None]:
    """What the heartbeats of the one instance say of it, in order."""
    return [heartbeat.well for heartbeat in heartbeats(group)]


def test_beside_a_client_that_shares_in_another_way_an_instance_says_that_it_reads_nothing_until_that_has_gone(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = create_group(new_group(), partitions=1)
    create_topic(group.bootstrap, group.names.policy)
    service = start_service(lambda _: OK)
    with stranger(group):
        sidecar = start_sidecar(group, service.url)
        sidecar.until(lambda: sidecar.status()["refused_by_group"], 20, "its group does not take it")
        assert "INCONSISTENT_GROUP_PROTOCOL" in sidecar.status()["refused_by_group"]
        sidecar.until(lambda: said_well(group)[-1:] == [False], 20, "its heartbeat does not say that it is well")
        file = tmp_path / "reconsume.json"
        file.write_text(json.dumps(config_of(group, service.url, sidecar.port)), encoding="utf-8")
        shown = reconsume("-c", file, "doctor", "-o", "json")
        found = {row["check"]: row for row in json.loads(shown.stdout)}["instances"]
        assert (shown.exit_code, found["status"]) == (1, "fail")
        assert "as its group does not take it: INCONSISTENT_GROUP_PROTOCOL" in found["finding"]
    produce(group.bootstrap, group.main, [b"fine"])
    sidecar.until(lambda: service.ledger.taken(), 20, "it is a member, and delivers")
    assert sidecar.status()["refused_by_group"] is None
    sidecar.until(lambda: said_well(group)[-1:] == [True], 20, "its heartbeat says that it is well")
