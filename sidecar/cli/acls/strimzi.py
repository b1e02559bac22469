"""The group's topics and users as Strimzi's custom resources (`kafka.strimzi.io/v1`). Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import yaml

from reconsume.topics.acls import Permission, Resource
from reconsume.topics.specs import TopicSpec

API = "kafka.strimzi.io/v1"
OWNER_LABEL = "strimzi.io/cluster"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain (RFC 1123): the form that Kubernetes requires of a name."""
LONGEST_NAME = 253
TYPES = {Resource.TOPIC: "topic", Resource.GROUP: "group", Resource.TRANSACTIONAL_ID: "transactionalId"}


class Authentication(StrEnum):
    """How a user authenticates."""

    SCRAM = "scram-sha-512"
    TLS = "tls"


def resource_name(name: str) -> str:
    """Return a Kafka name as a Kubernetes name: unchanged if Kubernetes accepts it.

    Else it is put into small letters, with a short hash of the name: `Orders` and `orders` must not get the same name.
    """
    if NAME.fullmatch(name) and len(name) <= LONGEST_NAME:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{plain[: LONGEST_NAME - len(mark) - 1].rstrip('-')}-{mark}".lstrip("-")


def topic_resource(spec: TopicSpec, cluster: str) -> dict[str, Any]:
    """Return a topic as a KafkaTopic."""
    config = {key: int(value) if re.fullmatch(r"-?\d+", value) else value for key, value in sorted(spec.config.items())}
    return {
        **head("KafkaTopic", resource_name(spec.name), cluster),
        "spec": {
            "topicName": spec.name,
            "partitions": spec.partitions,
            "replicas": spec.replication,
            "config": config,
        },
    }


def user_resource(
    name: str, rights: Sequence[Permission], cluster: str, authentication: Authentication
) -> dict[str, Any]:
    """Return a user with its rights as a KafkaUser."""
    return {
        **head("KafkaUser", name, cluster),
        "spec": {
            "authentication": {"type": str(authentication)},
            "authorization": {"type": "simple", "acls": [acl(same) for same in by_resource(rights)]},
        },
    }


def acl(rights: Sequence[Permission]) -> dict[str, Any]:
    """Return the rights on one resource as one entry."""
    first = rights[0]
    return {
        "resource": {
            "type": TYPES[first.resource],
            "name": first.name,
            "patternType": "prefix" if first.prefixed else "literal",
        },
        "operations": [camel(right.operation) for right in rights],
    }


def by_resource(rights: Iterable[Permission]) -> list[list[Permission]]:
    """Group the rights by the resource that they refer to."""
    groups: dict[tuple[Resource, str, bool], list[Permission]] = {}
    for right in rights:
        groups.setdefault((right.resource, right.name, right.prefixed), []).append(right)
    return list(groups.values())


def camel(operation: str) -> str:
    """Convert DESCRIBE_CONFIGS to DescribeConfigs."""
    return "".join(word.capitalize() for word in operation.split("_"))


def head(kind: str, name: str, cluster: str) -> dict[str, Any]:
    """Return the fields that every resource begins with."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, "labels": {OWNER_LABEL: cluster}}}


def documents(resources: Iterable[Mapping[str, Any]]) -> str:
    """Return the resources as one YAML text for `kubectl apply -f -`."""
    return yaml.safe_dump_all(map(dict, resources), sort_keys=False, explicit_start=True, default_flow_style=False)
