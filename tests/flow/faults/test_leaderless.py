"""A partition without a leader, or with too few replicas in sync, stops what needs it and nothing else. Three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.committer.target_topics import murmur2_partition
from reconsume.sidecar.settings.load import load
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.view.journey import read_journey
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group, fresh_group, set_config
from tests.support.kafka.topic_io import SECONDS, Out, Row, dump, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect, read_committed_progress
from tests.support.service.behaviours import FAIL, OK, by_name, verdict
from tests.support.service.service import Service
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.sidecar.dlq_calls import actions
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.redrive import dead_letter
from tests.support.sidecar.relay import RELAY, now, post, post_of

pytestmark = pytest.mark.long

GOOD = 300
LEVEL = 1_000
SCRIPT = by_name({"flaky": (FAIL, OK), "later": (verdict("retry; delay=2s"), OK)})


class Scene:
    """A group on three nodes whose first level has one partition on node 0 alone, and another on node 1 alone."""

    def __init__(self, cluster: EmbeddedKafka, folder: Path, stack: ExitStack) -> None:
        self.cluster, self._folder, self._stack = cluster, folder, stack
        self.group = fresh_group(cluster.bootstrap)
        level = self.group.names.level(LEVEL, self.group.main)
        create_group(self.group, 2, replication=3, leave_out=[level])
        placed = NewTopic(level, 2, replica_assignment=[[0], [1]], config={"message.timestamp.type": "LogAppendTime"})
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([placed])[level].result(SECONDS)
        self.level = level
        self.service = stack.enter_context(Service(folder / "ledger.jsonl", SCRIPT))

    def start(self, **overrides: object) -> SidecarProcess:
        """A sidecar of the group that has started."""
        sidecar = SidecarProcess(self.group, self.service.url, self._folder, overrides=overrides)
        self._stack.enter_context(sidecar)
        sidecar.wait_ready()
        return sidecar

    def lose_leader(self) -> None:
        """Kill node 0, and wait until the cluster says that the level's first partition has no leader."""
        self.cluster.node(0).kill()
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})

        def lost() -> bool:
            return bool(admin.list_topics(self.level, timeout=SECONDS).topics[self.level].partitions[0].leader == -1)

        until(lost, SECONDS, "the partition has no leader")

    def done(self, partition: int) -> int:
        """How far the main topic's partition is committed."""
        progress = read_committed_progress(self.group, self.group.group, (self.group.main,))
        found = progress.get((self.group.main, partition))
        return 0 if found is None else found.next

    def finish(self, sidecar: SidecarProcess, records: int) -> None:
        """All records are taken in the end, and all adds up."""
        sidecar.until(lambda: len(self.service.ledger.taken()) == records, 60, "every record is taken")
        assert sidecar.stop().code == 0
        self.cluster.heal()  # to read what the lost node alone has
        report = check(collect(self.group, self.service.ledger))
        assert (report.committed, report.waiting) == (records, 0), report


@pytest.fixture
def scene(three_nodes: EmbeddedKafka, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(three_nodes, tmp_path, stack)


def test_a_failure_whose_level_partition_has_no_leader_holds_up_no_other_partition(scene: Scene) -> None:
    """One such record aborted the transaction of all, for ever: 300 successes stayed uncommitted."""
    sidecar = scene.start()
    scene.lose_leader()
    produce(scene.group.bootstrap, scene.group.main, [Out(b"flaky:", partition=0)])
    sidecar.until(lambda: bool(scene.service.ledger.deliveries()), 20, "it has failed")
    produce(scene.group.bootstrap, scene.group.main, [Out(b"good:%d" % number, partition=1) for number in range(GOOD)])
    sidecar.until(lambda: scene.done(1) == GOOD, 30, "the other partition's successes are committed")
    assert scene.done(0) == 0
    scene.cluster.heal()
    scene.finish(sidecar, GOOD + 1)


def test_a_sidecar_starts_although_a_level_partition_has_no_leader(scene: Scene) -> None:
    """Asked where the partition begins, the client raised in the callback, and the retry lane's thread ended."""
    scene.lose_leader()
    sidecar = scene.start()
    records = [Out(b"flaky:%d" % number, partition=1) for number in range(4)]
    produce(scene.group.bootstrap, scene.group.main, records)
    sidecar.until(lambda: len(scene.service.ledger.taken()) == 4, 30, "retries of the other level partition flow")
    assert sidecar.request("GET", "/livez").status == 200
    produce(scene.group.bootstrap, scene.group.main, [Out(b"flaky:", partition=0)])
    sidecar.until(lambda: len(scene.service.ledger.deliveries()) == 9, 20, "one for the lost partition has failed")
    scene.cluster.heal()
    scene.finish(sidecar, 5)


def test_a_level_with_too_few_replicas_in_sync_holds_up_no_success(scene: Scene) -> None:
    sidecar = scene.start()
    level = scene.group.names.level(2_000, scene.group.main)
    set_config(scene.group.bootstrap, level, "min.insync.replicas", "3")
    scene.lose_leader()
    main, failing = scene.group.main, 20
    produce(scene.group.bootstrap, main, [Out(b"later:%d" % number, partition=0) for number in range(failing)])
    sidecar.until(lambda: len(scene.service.ledger.deliveries()) == failing, 20, "all have failed")
    produce(scene.group.bootstrap, main, [Out(b"good:%d" % number, partition=1) for number in range(GOOD)])
    sidecar.until(lambda: scene.done(1) == GOOD, 30, "the successes are committed")
    sidecar.until(lambda: sidecar.metric("reconsume_refused_records") == failing, 20, "the failures are held")
    set_config(scene.group.bootstrap, level, "min.insync.replicas", "2")
    scene.finish(sidecar, GOOD + failing)


def test_a_post_whose_level_partition_has_no_leader_is_refused_and_holds_up_no_other(scene: Scene) -> None:
    """Each transaction of posts tried that partition anew, and could not end."""
    relay = scene.start(**RELAY)
    scene.lose_leader()
    lost, led = (post_of(scene.group.main, Row(0, number, now(), key_for(number), b"v", ())) for number in (0, 1))
    for _ in range(2):
        refused = post(relay, lost)
        assert refused.status == 503
        assert "takes no records" in refused.json["detail"]
    for _ in range(3):
        assert post(relay, led).status == 201
    scene.cluster.heal()
    until(lambda: post(relay, lost).status == 201, SECONDS, "the partition takes records again")


def test_a_broadcast_begins_where_it_can_and_skips_nothing_of_a_partition_without_a_leader(
    three_nodes: EmbeddedKafka, tmp_path: Path
) -> None:
    """It was not ready before the node was back, and began at the end of that moment in all partitions."""
    group, admin = fresh_group(three_nodes.bootstrap), AdminClient({"bootstrap.servers": three_nodes.bootstrap})
    placed = NewTopic(group.main, 3, replica_assignment=[[0], [1], [2]])
    admin.create_topics([placed])[group.main].result(SECONDS)
    with Service(tmp_path / "ledger.jsonl", lambda _request: OK) as service:

        def seen() -> set[bytes | None]:
            return {delivery.value for delivery in service.ledger.deliveries()}

        three_nodes.node(0).kill()

        def lost() -> bool:
            return bool(admin.list_topics(group.main, timeout=SECONDS).topics[group.main].partitions[0].leader == -1)

        until(lost, SECONDS, "the partition has no leader")
        overrides = {"deliver": {"broadcast": True}}
        with SidecarProcess(group, service.url, tmp_path, overrides=overrides) as sidecar:
            sidecar.wait_ready()
            produce(group.bootstrap, group.main, [Out(b"led:%d" % number, partition=number) for number in (1, 2)])
            sidecar.until(lambda: seen() == {b"led:1", b"led:2"}, SECONDS, "the other partitions' records are taken")
            first = Producer({"bootstrap.servers": group.bootstrap, "linger.ms": 0})
            first.produce(group.main, b"first", partition=0)  # written as soon as there is a leader
            three_nodes.heal()
            assert first.flush(SECONDS) == 0
            sidecar.until(lambda: b"first" in seen(), SECONDS, "what was written as soon as it could be is taken")
            assert sidecar.stop().code == 0
        assert len(service.ledger.deliveries()) == 3


def key_for(partition: int) -> bytes:
    """A key of the first level's partition."""
    return next(key for key in (b"%d" % number for number in range(99)) if murmur2_partition(key, 2) == partition)


def test_what_reads_goes_on_without_the_partitions_that_have_no_leader_and_names_them(
    three_nodes: EmbeddedKafka, tmp_path: Path
) -> None:
    """Given a DLQ, events and a level whose first partitions are lost, then the others are shown and redriven."""
    group = fresh_group(three_nodes.bootstrap, delays=(LEVEL,))
    names = group.names
    level, lost = names.level(LEVEL, group.main), (group.dlq, names.events, names.level(LEVEL, group.main))
    create_group(group, 2, replication=3, leave_out=lost)
    admin = AdminClient({"bootstrap.servers": three_nodes.bootstrap})
    placed = [NewTopic(topic, 2, replica_assignment=[[0], [1]]) for topic in lost]
    for future in admin.create_topics(placed).values():
        future.result(SECONDS)
    for partition in (0, 1):
        letters = (dead_letter(group, 10 * partition + n, key=None, partition=partition) for n in range(10))
        produce(group.bootstrap, group.dlq, letters)
    produce(group.bootstrap, names.events, [Out(b"{}", b"other", partition=1)])
    file = tmp_path / "reconsume.yaml"
    file.write_text(yaml.safe_dump(config_of(group, "http://127.0.0.1:1/", 8471, {})), encoding="utf-8")
    three_nodes.node(0).kill()
    for topic in lost:
        until(lambda topic=topic: unled(admin, topic), SECONDS, f"{topic} has lost its first partition")  # type: ignore[misc]

    listed = reconsume("dlq", "list", "-c", file)
    assert (listed.exit_code, len(listed.stdout.splitlines())) == (0, 10), listed.stderr
    assert f"left out, as they have no leader now: {group.dlq}[0]" in listed.stderr
    settings = load(file)
    journey = read_journey(Cluster(settings.kafka), names, f"{group.main}:0:1", None, 100, lambda _read, _total: None)
    assert journey.missing == f"without a leader, and so not read: {names.events}[0]"
    lags = Queries(settings, build_policy(settings, "test")).lags()
    assert lags.unled == (f"{level}[0]",)
    redriven = reconsume("dlq", "redrive", "--yes", "-c", file)
    told = dict(actions(redriven))
    assert told["redriven"] + told["refused"] == 10, "an event for the lost partition refuses its letter"
    assert told["redriven"] > 0
    assert f"{group.dlq}[0]" in redriven.stderr

    three_nodes.heal()
    until(lambda: not unled(admin, group.dlq), SECONDS, "it is back")
    again = reconsume("dlq", "redrive", "--yes", "-c", file)
    assert dict(actions(again))["redriven"] == 20 - told["redriven"], again.stderr
    assert "left out" not in again.stderr


def unled(admin: AdminClient, topic: str) -> bool:
    """Whether the first partition of a topic has no leader."""
    return bool(admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions[0].leader == -1)


def test_a_redrive_leaves_the_letters_for_a_partition_without_a_leader_alone(
    three_nodes: EmbeddedKafka, tmp_path: Path
) -> None:
    """The others of their transaction come back, and those left come back with the next run."""
    group = fresh_group(three_nodes.bootstrap, delays=(LEVEL,))
    ready = group.names.ready
    create_group(group, 2, replication=3, leave_out=[ready])
    placed = NewTopic(ready, 2, replica_assignment=[[0], [1]], config={"message.timestamp.type": "LogAppendTime"})
    admin = AdminClient({"bootstrap.servers": three_nodes.bootstrap})
    admin.create_topics([placed])[ready].result(SECONDS)
    for partition in (0, 1):
        letters = (dead_letter(group, 10 * partition + n, key=None, partition=partition) for n in range(10))
        produce(group.bootstrap, group.dlq, letters)
    file = tmp_path / "reconsume.yaml"
    file.write_text(yaml.safe_dump(config_of(group, "http://127.0.0.1:1/", 8471, {})), encoding="utf-8")
    three_nodes.node(0).kill()
    until(lambda: admin.list_topics(ready, timeout=SECONDS).topics[ready].partitions[0].leader == -1, SECONDS, "lost")
    first = reconsume("dlq", "redrive", "--yes", "-c", file)
    assert (first.exit_code, actions(first)) == (3, [("redriven", 10), ("refused", 10)]), first.stderr
    assert f"{ready}[0] takes no records" in first.stdout
    three_nodes.heal()
    until(lambda: admin.list_topics(ready, timeout=SECONDS).topics[ready].partitions[0].leader == 0, SECONDS, "back")
    again = reconsume("dlq", "redrive", "--yes", "-c", file)
    assert (again.exit_code, dict(actions(again))["redriven"]) == (0, 10), again.stderr
    assert len(dump(group.bootstrap, ready)) == 20
