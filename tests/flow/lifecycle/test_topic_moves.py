"""A topic moves from one group to another (docs/changes.md): every record is delivered once, by one of the two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml
from confluent_kafka import Consumer, TopicPartition

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_specs, specs_of
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.kubernetes.kubectl import check
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.policy import CALM, with_policy
from tests.support.sidecar.process import REPOSITORY

PAGE = REPOSITORY / "docs" / "changes.md"
SCRIPT = by_name({"flaky": (FAIL, OK)})


def committed(group: GroupTopics, topic: str) -> list[TopicPartition]:
    """The offsets that a group has committed of a topic, without their metadata: as Kafka's tool exports them."""
    asking = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group})
    answers = asking.committed([TopicPartition(topic, number) for number in range(2)], timeout=SECONDS)
    asking.close()
    return [TopicPartition(one.topic, one.partition, one.offset) for one in answers if one.offset >= 0]


def set_offsets(group: GroupTopics, offsets: list[TopicPartition]) -> None:
    """What `kafka-consumer-groups.sh --reset-offsets --from-file` does with a group that does not run."""
    asking = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group, "enable.auto.commit": False})
    asking.commit(offsets=offsets, asynchronous=False)
    asking.close()


def test_a_topic_moves_to_a_new_group_and_each_record_is_delivered_once(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given records that come before, during and after the move, some of which are retried."""
    old = with_policy(new_group())
    service = start_service(SCRIPT)
    sidecar = start_sidecar(old, service.url, overrides=CALM)
    produce(old.bootstrap, old.main, [Out(b"flaky:%d" % n, partition=n % 2) for n in range(10)])
    sidecar.until(lambda: len(service.ledger.deliveries()) >= 5, 30, "it works")
    which = ("--topic", old.main, "--level", "main", "--for", "1h", "--why", "moves", "--yes")
    held = for_group(tmp_path, old, "hold", *which)
    assert held.exit_code == 0, held.stderr
    produce(old.bootstrap, old.main, [Out(b"during:%d" % n, partition=n % 2) for n in range(10)])
    begun = len(service.ledger.taken())
    sidecar.until(lambda: len(service.ledger.taken()) == 10, 60, f"the retries go on, and nothing fresh: {begun}")
    assert sidecar.stop().code == 0
    new = replace(old, group=f"{old.group}-new")
    create_specs(new.bootstrap, [spec for spec in specs_of(new, 2, 1, ()) if spec.name not in new.mains], {})
    set_offsets(new, committed(old, old.main))
    after = start_sidecar(new, service.url)
    produce(new.bootstrap, new.main, [Out(b"after:%d" % n, partition=n % 2) for n in range(10)])
    after.until(lambda: len(service.ledger.taken()) == 30, 60, "all are taken")
    await_quiet(new, 60)
    values = [one.value for one in service.ledger.deliveries() if not (one.value or b"").startswith(b"flaky")]
    assert len(values) == len(set(values)) == 20, "what was held is delivered by the new group alone, once"


def test_the_manifest_of_the_page_is_valid() -> None:
    blocks = PAGE.read_text().split("```yaml\n")[1:]
    for block in blocks:
        check(yaml.safe_load(block.partition("```")[0]), "1.34")
    assert blocks
