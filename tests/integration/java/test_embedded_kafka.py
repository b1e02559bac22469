"""The embedded Kafka is a real one, comes back where it was, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.java.jars import cache_folder
from tests.conftest import MakeTopic
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, create_topic, dump, produce
from tests.support.processes import lives, words_of


@pytest.fixture(scope="module")
def own() -> Iterator[EmbeddedKafka]:
    """A single node that these tests may stop."""
    with EmbeddedKafka.start() as own:
        yield own


def values(bootstrap: str, topic: str, read_committed: bool = True) -> list[bytes | None]:
    return [row.value for row in dump(bootstrap, topic, read_committed)]


def test_records_come_back_as_they_were_sent(kafka: Broker, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    sent = [
        Out(b"a", b"k", (("h", b"1"), ("h", None), ("é", b"")), 1, 1_700_000_000_000),
        Out(None, None, (), 0, 1_700_000_000_001),
    ]
    assert produce(kafka.bootstrap, topic, sent) == [(1, 0), (0, 0)]
    assert [tuple(row) for row in dump(kafka.bootstrap, topic)] == [
        (0, 0, 1_700_000_000_001, None, None, ()),
        (1, 0, 1_700_000_000_000, b"k", b"a", (("h", b"1"), ("h", None), ("é", b""))),
    ]


def test_a_committed_transaction_is_seen_and_an_aborted_one_is_not(kafka: Broker, topic: str, group: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{group}-tx"})
    producer.init_transactions(20)
    for value, end in ((b"yes", producer.commit_transaction), (b"no", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(20)
        end(20)
    until(lambda: values(kafka.bootstrap, topic, False) == [b"yes", b"no"], 10, "both transactions have ended")
    assert values(kafka.bootstrap, topic) == [b"yes"]


def test_a_dump_waits_for_the_end_of_a_transaction_that_is_open(kafka: Broker, topic: str, group: str) -> None:
    """Else a test that reads right behind a commit may miss what was committed."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{group}-tx"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"yes")
    producer.flush(20)
    with ThreadPoolExecutor(1) as pool:
        dumped = pool.submit(values, kafka.bootstrap, topic)
        with pytest.raises(TimeoutError):
            dumped.result(0.5)
        producer.commit_transaction(20)
        assert dumped.result(60) == [b"yes"]


def test_a_consumer_group_is_assigned_without_delay(kafka: Broker, topic: str, group: str) -> None:
    produce(kafka.bootstrap, topic, [b"x"])
    config = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        [message] = until(lambda: consumer.consume(1, 0.1), 15, "the only member gets the record")
        assert (message.error(), message.value()) == (None, b"x")


def test_a_topic_that_nobody_made_does_not_appear(kafka: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.list_topics("never-made", timeout=10)
    assert "never-made" not in admin.list_topics(timeout=10).topics


@pytest.mark.long
def test_a_killed_node_comes_back_on_its_port_with_its_data(own: EmbeddedKafka) -> None:
    create_topic(own.bootstrap, "kept")
    produce(own.bootstrap, "kept", [b"1", b"2"])
    node, before, pid = own.node(0), own.bootstrap, own.node(0).pid
    node.kill()
    assert not psutil.pid_exists(pid)
    assert not node.running
    node.start()
    assert own.bootstrap == before
    assert node.pid != pid
    until(lambda: values(before, "kept") == [b"1", b"2"], 20, "the records are there again")


@pytest.mark.long
def test_a_restart_is_a_new_process_with_the_same_data(own: EmbeddedKafka) -> None:
    create_topic(own.bootstrap, "restarted")
    produce(own.bootstrap, "restarted", [b"1"])
    pid = own.node(0).pid
    own.node(0).restart()
    assert own.node(0).pid != pid
    until(lambda: values(own.bootstrap, "restarted") == [b"1"], 20, "the record is there again")


@pytest.mark.long
def test_a_paused_node_does_not_answer_until_it_is_resumed(own: EmbeddedKafka) -> None:
    create_topic(own.bootstrap, "paused")
    own.node(0).pause()
    late = Producer({"bootstrap.servers": own.bootstrap, "log_level": 0})
    late.produce("paused", b"1")
    assert late.flush(1) == 1
    own.node(0).resume()
    assert late.flush(20) == 0
    assert values(own.bootstrap, "paused") == [b"1"]


@pytest.mark.long
def test_another_kafka_on_its_port_is_not_taken_for_it(own: EmbeddedKafka) -> None:
    """As when two programs look for a free port at the same time, and both take the same one."""
    port = own.node(0).plan.port
    with pytest.raises(SetupError) as refused:
        EmbeddedKafka.start(port=port)
    assert str(refused.value) == f"Kafka node 0 cannot listen on 127.0.0.1:{port}: another program has that port"


@pytest.mark.long
def test_closing_leaves_no_process_and_no_folder() -> None:
    with EmbeddedKafka.start() as kafka:
        pid, folder = kafka.node(0).pid, kafka.folder
        assert psutil.pid_exists(pid)
        assert folder.is_dir()
        family = psutil.Process().children(recursive=True)
        ours = [child.pid for child in family if str(folder) in " ".join(words_of(child))]
        assert pid in ours
        assert len(ours) == 2, "the broker and its guard"
    assert [one for one in ours if psutil.pid_exists(one)] == []
    assert not folder.exists()
    kafka.close()


START_AND_WAIT = """
import sys
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
kafka = EmbeddedKafka.start()
print(kafka.node(0).pid, kafka.folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_a_parent_that_is_killed_takes_its_broker_and_folder_with_it() -> None:
    command = [sys.executable, "-c", START_AND_WAIT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        broker = psutil.Process(int(pid))
        assert broker.is_running()
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not lives(broker), 10, "the broker has ended")
    until(lambda: not Path(folder).exists(), 10, "the folder is removed")


@pytest.mark.long
def test_a_folder_that_was_given_keeps_the_data_for_the_next_start(tmp_path: Path) -> None:
    with EmbeddedKafka.start(folder=tmp_path / "kafka") as first:
        create_topic(first.bootstrap, "kept")
        produce(first.bootstrap, "kept", [b"1"])
    with EmbeddedKafka.start(folder=tmp_path / "kafka") as second:
        until(lambda: values(second.bootstrap, "kept") == [b"1"], 20, "the record is there again")
        assert second.bootstrap != first.bootstrap


@pytest.mark.long
def test_nodes_map_the_classes_that_the_first_node_of_a_machine_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "jars").symlink_to(cache_folder())
    monkeypatch.setenv("RECONSUME_CACHE", str(tmp_path / "cache"))  # a machine without an archive

    def archives() -> list[Path]:
        EmbeddedKafka.start().close()
        return list((tmp_path / "cache" / "kafka").glob("*.jsa"))

    (archive,) = until(archives, 60, "a node had the time to write them at its end")
    with EmbeddedKafka.start() as later:
        assert str(archive) in {part.path for part in psutil.Process(later.node(0).pid).memory_maps()}


@pytest.mark.long
def test_clients_of_the_proxied_listener_are_told_the_proxys_address() -> None:
    with EmbeddedKafka.start(advertised=lambda number: f"127.0.0.1:{7000 + number}") as kafka:
        assert kafka.proxied_bootstrap == "127.0.0.1:7000"
        behind = AdminClient({"bootstrap.servers": f"127.0.0.1:{kafka.node(0).plan.proxied_port}", "log_level": 0})
        assert [b.port for b in behind.list_topics(timeout=10).brokers.values()] == [7000]
        plain = AdminClient({"bootstrap.servers": kafka.bootstrap})
        assert [b.port for b in plain.list_topics(timeout=10).brokers.values()] == [kafka.node(0).plan.port]


def test_a_setting_that_the_broker_refuses_is_told_with_its_log() -> None:
    with pytest.raises(SetupError, match="Kafka node 0") as told:
        EmbeddedKafka.start(properties={"log.cleanup.policy": "no-such-policy"})
    assert "no-such-policy" in told.value.log


@pytest.mark.long
@pytest.mark.three
def test_three_nodes_go_on_when_one_is_killed(three_nodes: EmbeddedKafka) -> None:
    create_topic(three_nodes.bootstrap, "replicated", 3)
    produce(three_nodes.bootstrap, "replicated", [Out(b"1", partition=p) for p in range(3)])
    three_nodes.node(1).kill()
    produce(three_nodes.bootstrap, "replicated", [Out(b"2", partition=p) for p in range(3)])
    rest = f"{three_nodes.node(0).address},{three_nodes.node(2).address}"
    until(lambda: values(rest, "replicated") == [b"1", b"2"] * 3, 20, "two nodes serve all partitions")


@pytest.mark.long
@pytest.mark.three
def test_a_healed_cluster_has_all_its_nodes_again(three_nodes: EmbeddedKafka) -> None:
    three_nodes.node(0).pause()
    three_nodes.node(2).kill()
    three_nodes.heal()
    for node in three_nodes.nodes:
        admin = AdminClient({"bootstrap.servers": node.address})
        assert set(admin.list_topics(timeout=10).brokers) == {0, 1, 2}


@pytest.mark.long
def test_committed_offsets_survive_a_kill(own: EmbeddedKafka, group: str) -> None:
    create_topic(own.bootstrap, "offsets")
    config = {"bootstrap.servers": own.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    with Consumer(config) as consumer:
        consumer.commit(offsets=[TopicPartition("offsets", 0, 7)], asynchronous=False)
    own.node(0).kill()
    own.node(0).start()
    with Consumer(config) as consumer:
        assert until(lambda: committed(consumer), 20, "the coordinator answers") == 7


def committed(consumer: Consumer) -> int | None:
    """The group's offset; None while a coordinator that has just started does not say."""
    with suppress(KafkaException):
        return consumer.committed([TopicPartition("offsets", 0)], timeout=20)[0].offset
    return None
