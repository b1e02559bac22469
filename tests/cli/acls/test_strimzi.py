"""Strimzi's resources: names that Kubernetes takes, and the true ones inside."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.cli.exports import (
    LONGEST_NAME,
    NAME,
    Authentication,
    resource_name,
    strimzi_topic,
    strimzi_user,
    yaml_documents,
)
from reconsume.topics.acls import GroupShape, User, permissions_of
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import TopicSpec

SPEC = TopicSpec("billing-RETRY-10s", Kind.LEVEL, 3, 2, {"retention.ms": "604810000", "cleanup.policy": "delete"})


@pytest.mark.parametrize("name", ["orders", "a.b-c", "0"])
def test_a_name_that_kubernetes_takes_stays(name: str) -> None:
    assert resource_name(name) == name


def test_other_names_become_legal_and_stay_apart() -> None:
    names = ["billing-RETRY", "billing-retry", "Billing-RETRY", "a_b", "a.b", "a..b", "_", "x" * 249 + "Y"]
    made = [resource_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert re.fullmatch(r"billing-retry-[0-9a-f]{8}", made[0])


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True))
def test_every_topics_name_becomes_one_for_kubernetes(name: str) -> None:
    made = resource_name(name)
    assert NAME.fullmatch(made)
    assert len(made) <= LONGEST_NAME


def test_a_topic_has_its_true_name_and_numbers_as_numbers() -> None:
    assert strimzi_topic(SPEC, "main") == {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": {"name": resource_name(SPEC.name), "labels": {"strimzi.io/cluster": "main"}},
        "spec": {
            "topicName": "billing-RETRY-10s",
            "partitions": 3,
            "replicas": 2,
            "config": {"cleanup.policy": "delete", "retention.ms": 604810000},
        },
    }


def test_a_topic_says_who_its_group_belongs_to() -> None:
    """In annotations, because a label of Kubernetes takes neither a # nor a URL."""
    made = strimzi_topic(SPEC, "main", (("team", "payments"), ("channel", "#payments")))
    assert made["metadata"]["annotations"] == {"reconsume.io/team": "payments", "reconsume.io/channel": "#payments"}


def test_a_user_has_each_resource_once_with_its_operations() -> None:
    group = GroupShape(Names("billing"), ("orders",), (10_000,), view=True)
    made = strimzi_user("User:CN=billing-sidecar", permissions_of(User.SIDECAR, group), "main", Authentication.TLS)
    spec: dict[str, Any] = made["spec"]
    assert made["metadata"]["name"] == "billing-sidecar"
    acls = spec["authorization"]["acls"]
    places = [tuple(acl["resource"].values()) for acl in acls]
    assert spec["authentication"] == {"type": "tls"}
    assert len(set(places)) == len(places)
    by_name = {acl["resource"]["name"]: acl for acl in acls if acl["resource"]["type"] == "topic"}
    assert by_name["billing-RETRY-EVENTS"]["operations"] == ["Write", "Read", "DescribeConfigs"]
    assert {"type": "transactionalId", "name": "billing-main-", "patternType": "prefix"} in [
        a["resource"] for a in acls
    ]


def test_the_text_is_one_document_for_each_resource() -> None:
    text = yaml_documents([strimzi_topic(SPEC, "main"), strimzi_topic(SPEC, "other")])
    assert text.startswith("---\n")
    assert [document["metadata"]["labels"] for document in yaml.safe_load_all(text)] == [
        {"strimzi.io/cluster": "main"},
        {"strimzi.io/cluster": "other"},
    ]
