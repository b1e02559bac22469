"""A redrive that lacks one right: the sentence names it, and nothing is written. With it, the letters come back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

from reconsume.sidecar.dlq.archive import Importer
from reconsume.sidecar.dlq.dead_letters import DeadLetters
from reconsume.sidecar.dlq.letters import Filter, RedriveRequest
from reconsume.sidecar.dlq.redriver import Redriver
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.settings.load import load
from reconsume.sidecar.settings.policy import build_policy
from tests.support.deadline import until
from tests.support.freed import nothing_left
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.guarded import GuardedKafka
from tests.support.kafka.topic_io import SECONDS, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.redrive import dead_letter

KINDS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.BROKER)
LITERAL = ResourcePatternType.LITERAL
REDRIVER = "redriver"
REDRIVING = (f"User:{REDRIVER}", "*")


@pytest.fixture(scope="module")
def group(guarded: GuardedKafka) -> GroupTopics:
    """A group with one dead letter, on a broker where one user may do everything by rules that a denial overrides."""
    made = create_group(fresh_group(guarded.bootstrap, delays=(1_000,)), partitions=1)
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    allow = (*REDRIVING, AclOperation.ALL, AclPermissionType.ALLOW)
    names = {kind: "kafka-cluster" if kind is ResourceType.BROKER else "*" for kind in KINDS}
    rules = [AclBinding(kind, name, LITERAL, *allow) for kind, name in names.items()]
    for future in admin.create_acls(rules).values():
        future.result(SECONDS)
    produce(made.bootstrap, made.dlq, [dead_letter(made, 1)])
    return made


@contextmanager
def denied(group: GroupTopics, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
    """Without one right."""
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    rule = (kind, name, LITERAL, *REDRIVING, operation, AclPermissionType.DENY)
    for future in admin.create_acls([AclBinding(*rule)]).values():
        future.result(SECONDS)
    try:
        yield
    finally:
        for gone in admin.delete_acls([AclBindingFilter(*rule)]).values():
            assert len(gone.result(SECONDS)) == 1


Name = Callable[[GroupTopics], str]
LACKING: dict[str, tuple[ResourceType, AclOperation, Name]] = {
    "WRITE on topic": (ResourceType.TOPIC, AclOperation.WRITE, lambda group: group.names.ready),
    "WRITE on topic ": (ResourceType.TOPIC, AclOperation.WRITE, lambda group: group.names.events),
    "READ on group": (ResourceType.GROUP, AclOperation.READ, lambda group: group.names.redrive_group),
    "WRITE on transactional id": (
        ResourceType.TRANSACTIONAL_ID,
        AclOperation.WRITE,
        lambda group: group.names.redrive_group,
    ),
    "READ on topic": (ResourceType.TOPIC, AclOperation.READ, lambda group: group.dlq),
}


@pytest.fixture
def file(guarded: GuardedKafka, group: GroupTopics, tmp_path: Path) -> Path:
    """The configuration of that user."""
    file = tmp_path / "c.yaml"
    tree = {"group": group.group, "topics": [group.main], "kafka": guarded.login(REDRIVER)}
    file.write_text(json.dumps({**tree, "deliver": {"url": "http://127.0.0.1:1/"}}), encoding="utf-8")
    return file


@pytest.mark.parametrize("right", LACKING)
def test_a_lacking_right_is_named_and_nothing_is_written(group: GroupTopics, file: Path, right: str) -> None:
    kind, operation, name = LACKING[right]
    with denied(group, kind, name(group), operation):
        shown = reconsume("dlq", "redrive", "--yes", "-c", file)
    assert shown.exit_code == 1
    assert f"a right is missing: {right.strip()}" in shown.stderr
    assert name(group) in shown.stderr
    assert dump(group.bootstrap, group.names.ready) == []
    assert dump(group.bootstrap, group.names.events) == []


@pytest.mark.parametrize("right", ["READ on group", "WRITE on transactional id"])
def test_a_redrive_and_an_import_that_fail_at_their_start_leave_no_client(
    group: GroupTopics, file: Path, right: str
) -> None:
    """Each client has five threads and as many descriptors. The dashboard makes one for each redrive."""
    kind, operation, name = LACKING[right]
    settings = load(file)
    policy = build_policy(settings, "redrive:test")
    letters = DeadLetters(Cluster(settings.kafka), policy)

    def redrive() -> None:
        with Redriver(letters, RedriveRequest(Filter()), threading.Event()) as redriver:
            redriver.run(None, None, lambda read, of: None)

    def fail() -> None:
        with pytest.raises(BrokerError, match=right):
            redrive()
        if kind is ResourceType.TRANSACTIONAL_ID:
            with pytest.raises(BrokerError, match=right):
                Importer(letters)

    with denied(group, kind, name(group), operation):
        fail()
        with nothing_left(mib=40, threads=10, descriptors=20):
            for _ in range(10):
                fail()


def test_with_all_rights_the_same_letter_comes_back(group: GroupTopics, file: Path) -> None:
    assert reconsume("dlq", "redrive", "--yes", "-c", file).exit_code == 0
    until(lambda: len(dump(group.bootstrap, group.names.ready)) == 1, SECONDS, "it is back")
