"""SIGKILL of one of three nodes under load, whatever it leads: the sidecar goes on by itself, and all adds up.

Three nodes, because a single one can lose transaction markers at a restart. SOAK_KILLS makes it longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.load import Load, uneven
from tests.support.proof.quiet import await_quiet
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.scene import CONFIG, SOON

pytestmark = pytest.mark.long

RATE = 200
KILLS = int(os.environ.get("SOAK_KILLS", "3"))
GOES_ON_WITHIN = 30.0
QUIET_WITHIN = 45.0
STATE = "__transaction_state"
Finder = Callable[[AdminClient, GroupTopics], int]


def group_coordinator(admin: AdminClient, group: GroupTopics) -> int:
    """The node that keeps the main lane's membership and progress."""
    described = admin.describe_consumer_groups([group.group])[group.group].result(SECONDS)
    return int(described.coordinator.id)


def transaction_coordinator(admin: AdminClient, group: GroupTopics) -> int:
    """The leader of the partition of `__transaction_state` to which Kafka's hash takes the main lane's id."""
    partitions = admin.list_topics(STATE, timeout=SECONDS).topics[STATE].partitions
    return int(partitions[java_hash(f"{group.group}-main-pod-0") % len(partitions)].leader)


def leader(admin: AdminClient, group: GroupTopics) -> int:
    """The leader of a partition of the main topic."""
    return int(admin.list_topics(group.main, timeout=SECONDS).topics[group.main].partitions[0].leader)


ROLES: dict[str, Finder] = {
    "group coordinator": group_coordinator,
    "transaction coordinator": transaction_coordinator,
    "leader": leader,
}


def java_hash(text: str) -> int:
    """Java's String.hashCode without its sign bit, as Kafka takes it."""
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def test_the_hash_is_javas() -> None:
    """ "hello".hashCode() is 99162322; that of the second is Integer.MIN_VALUE, whose sign bit is taken off."""
    assert java_hash("hello") == 99_162_322
    assert java_hash("polygenelubricants") == 0


@pytest.mark.three
@pytest.mark.timeout(600 + 40 * KILLS)
def test_a_sidecar_outlives_the_kill_of_any_node_and_nothing_is_lost(
    three_nodes: EmbeddedKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed and restarted in turn: both coordinators, and a leader; the same process goes on every time."""
    group = create_group(fresh_group(three_nodes.bootstrap), partitions=3, replication=3)
    admin = AdminClient({"bootstrap.servers": three_nodes.bootstrap, "log_level": 2})
    gaps: list[str] = []
    with ExitStack() as stack:
        service = stack.enter_context(Service(tmp_path / "ledger.jsonl", uneven))
        sidecar = stack.enter_context(SidecarProcess(group, service.url, tmp_path, overrides=CONFIG))
        load = stack.enter_context(Load(group, RATE))

        def works(more: int, seconds: float) -> None:
            """Records that came later are taken, and failures get through to a retry."""
            before = len(service.ledger.deliveries())
            retried = sum(d.times > 0 for d in service.ledger.deliveries())
            until(lambda: len(service.ledger.deliveries()) > before + more, seconds, "records are delivered")
            until(lambda: sum(d.times > 0 for d in service.ledger.deliveries()) > retried, seconds, "and retried")

        works(RATE, SOON)
        for role in islice(cycle(ROLES), KILLS):
            node = three_nodes.node(ROLES[role](admin, group))
            node.kill()
            begin = time.monotonic()
            works(2 * RATE, GOES_ON_WITHIN)
            gaps.append(f"{role} {time.monotonic() - begin:.1f} s")
            node.start()
            works(RATE, GOES_ON_WITHIN)
        load.end()
        await_quiet(group, QUIET_WITHIN)
        assert sidecar.running
        sidecar.stop()
        report = check(collect(group, service.ledger))
    with capsys.disabled():
        print(f"\n  400 records after the kill of the {', '.join(gaps)}: {report}", end=" ")  # noqa: T201
    assert report.committed + report.dead_lettered == load.sent
