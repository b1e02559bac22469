"""Broadcast with the least rights: it belongs to no group and writes nothing, so it needs no right on either."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.support.deadline import until
from tests.support.kafka.group_topics import fresh_group
from tests.support.kafka.topic_io import SECONDS, Out, create_topic, produce
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def forbid(bootstrap: str, *kinds: ResourceType) -> None:
    """Deny everybody everything on these kinds of resources."""
    deny = ("User:ANONYMOUS", "*", AclOperation.ALL, AclPermissionType.DENY)
    rules = [AclBinding(kind, "*", ResourcePatternType.LITERAL, *deny) for kind in kinds]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: without it the answers are never told
    for made in admin.create_acls(rules).values():
        made.result(SECONDS)


@pytest.mark.long
def test_a_broadcast_needs_no_right_on_groups_or_transactions(tmp_path: Path) -> None:
    with EmbeddedKafka.start(properties=GUARDED) as kafka:
        group = fresh_group(kafka.bootstrap)
        create_topic(kafka.bootstrap, group.main, 2)
        forbid(kafka.bootstrap, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        overrides = {"deliver": {"broadcast": True}}
        with Service(tmp_path / "ledger") as service:
            with SidecarProcess(group, service.url, tmp_path, overrides=overrides) as sidecar:
                sidecar.wait_ready()
                produce(kafka.bootstrap, group.main, [b"%d" % number for number in range(20)])
                sidecar.until(lambda: len(service.ledger.taken()) == 20, 20, "all are taken")
                assert sidecar.status()["last_error"] is None
                assert sidecar.stop().code == 0
            assert "AUTHORIZATION" not in sidecar.log().upper()


def allow(bootstrap: str, kind: ResourceType, topic: str) -> None:
    """Take back what `forbid` has done about a kind of resources; the broker shows the topic then."""
    deny = (None, None, AclOperation.ANY, AclPermissionType.DENY)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for gone in admin.delete_acls([AclBindingFilter(kind, None, ResourcePatternType.ANY, *deny)]).values():
        gone.result(SECONDS)
    until(lambda: admin.list_topics(topic, timeout=SECONDS).topics[topic].error is None, SECONDS, "it is shown")


@pytest.mark.long
def test_a_topic_that_may_be_read_later_is_no_new_one(tmp_path: Path) -> None:
    """Given a right that comes after the instance, then it gets what is written since its start, and no history."""
    with EmbeddedKafka.start(properties=GUARDED) as kafka, Service(tmp_path / "ledger") as service:
        group = fresh_group(kafka.bootstrap)
        create_topic(kafka.bootstrap, group.main, 2)
        hour_ago = time.time_ns() // 1_000_000 - 3_600_000
        produce(kafka.bootstrap, group.main, [Out(b"old %d" % number, timestamp=hour_ago) for number in range(20)])
        forbid(kafka.bootstrap, ResourceType.TOPIC)
        with SidecarProcess(group, service.url, tmp_path, overrides={"deliver": {"broadcast": True}}) as sidecar:
            sidecar.wait_ready()
            allow(kafka.bootstrap, ResourceType.TOPIC, group.main)
            produce(kafka.bootstrap, group.main, [b"new %d" % number for number in range(20)])
            sidecar.until(lambda: len(service.ledger.taken()) >= 20, 30, "what is new is taken")
            assert sidecar.stop().code == 0
        assert len(service.ledger.taken()) == 20
