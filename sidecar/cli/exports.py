"""The group's topics and rights for other tools: Strimzi, Terraform, kafka-topics.sh and kafka-acls.sh. Pure.

Each function makes one text, or one resource of it, from the specifications that `topics apply` and `acls apply` would
carry out.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
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
FLAGS = {Resource.TOPIC: "--topic", Resource.GROUP: "--group", Resource.TRANSACTIONAL_ID: "--transactional-id"}
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


def kafka_topics_commands(bootstrap: str, specs: Iterable[TopicSpec], properties: str | None = None) -> str:
    """Return the kafka-topics.sh commands that create the topics, one a line. What exists is left as it is."""
    create = [*kafka_tool("kafka-topics.sh", bootstrap, properties), "--create", "--if-not-exists", "--topic"]
    lines = []
    for spec in specs:
        shape = ["--partitions", str(spec.partitions), "--replication-factor", str(spec.replication)]
        config = [word for key, value in spec.config.items() for word in ("--config", f"{key}={value}")]
        lines.append(shlex.join([*create, spec.name, *shape, *config]))
    return "".join(f"{line}\n" for line in lines)


def kafka_tool(name: str, bootstrap: str, properties: str | None = None) -> list[str]:
    """Return how a command of one of Kafka's tools begins. `properties`: the file with the login for it."""
    return [name, "--bootstrap-server", bootstrap, *(["--command-config", properties] if properties else [])]


def kafka_acls_commands(
    bootstrap: str, principal: str, rights: Iterable[Permission], properties: str | None = None
) -> str:
    """Return the kafka-acls.sh commands that give a principal its rights, one a line for each resource."""
    add = [*kafka_tool("kafka-acls.sh", bootstrap, properties), "--add", "--allow-principal", principal]
    lines = []
    for first, *others in by_resource(rights):
        operations = [word for right in (first, *others) for word in ("--operation", camel(right.operation))]
        pattern = ["--resource-pattern-type", "prefixed" if first.prefixed else "literal"]
        lines.append(shlex.join([*add, *operations, FLAGS[first.resource], first.name, *pattern]))
    return "".join(f"{line}\n" for line in lines)


def terraform_topics(specs: Iterable[TopicSpec]) -> str:
    """Return the topics as `kafka_topic` of Terraform's provider Mongey/kafka, in its JSON syntax.

    A resource's label has no dot, and begins with a letter. Two topics whose names differ by dots alone are refused by
    Kafka's metrics as well. No value of ours has a `${`, which would begin a template.
    """
    topics = {
        re.sub(r"^(?![A-Za-z_])", "_", spec.name.replace(".", "_")): {
            "name": spec.name,
            "partitions": spec.partitions,
            "replication_factor": spec.replication,
            "config": spec.config,
        }
        for spec in specs
    }
    return f"{json.dumps({'resource': {'kafka_topic': topics}}, indent=2)}\n"


def strimzi_topic(spec: TopicSpec, cluster: str) -> dict[str, Any]:
    """Return a topic as a KafkaTopic."""
    config = {key: int(value) if re.fullmatch(r"-?\d+", value) else value for key, value in sorted(spec.config.items())}
    return {
        **head("KafkaTopic", spec.name, cluster),
        "spec": {
            "topicName": spec.name,
            "partitions": spec.partitions,
            "replicas": spec.replication,
            "config": config,
        },
    }


def strimzi_user(
    principal: str, rights: Iterable[Permission], cluster: str, authentication: Authentication
) -> dict[str, Any]:
    """Return a user with its rights as a KafkaUser. Its name is that of the resource."""
    name = principal.partition(":")[2].removeprefix("CN=")
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
    """Return the fields that the resource of a topic or user begins with."""
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": resource_name(name), "labels": {OWNER_LABEL: cluster}},
    }


def yaml_documents(resources: Iterable[Mapping[str, Any]]) -> str:
    """Return the resources as one YAML text for `kubectl apply -f -`."""
    return yaml.safe_dump_all(map(dict, resources), sort_keys=False, explicit_start=True, default_flow_style=False)
