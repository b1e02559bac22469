"""The group's policy in tests: its topic, what is written to it, and what a sidecar says of it."""

from __future__ import annotations

import json
from typing import Any

from reconsume.topics.names import Kind
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.sidecar.process import SidecarProcess

SECONDS = 30.0
"""Within which every instance follows."""
CALM = {"deliver": {"outage_failures": None}}
"""For scripts that let everything fail."""


def with_policy(group: GroupTopics) -> GroupTopics:
    """The group's topics, with that of its policy."""
    return create_group(group, also=(Kind.POLICY,))


def write(group: GroupTopics, value: bytes | None, key: bytes = b"policy") -> None:
    """Write to the policy topic, as anybody may who has the right."""
    produce(group.bootstrap, group.names.policy, [Out(value, key)])


def set_policy(group: GroupTopics, **policy: object) -> None:
    """Write a good policy."""
    write(group, json.dumps({"v": 1, "policy": policy, "who": "test", "at": 1}).encode())


def follows(sidecar: SidecarProcess, **policy: object) -> None:
    """Wait until the sidecar's policy has these values."""

    def same() -> bool:
        found = sidecar.request("GET", "/v1/policy").json["policy"]
        return bool(policy.items() <= found.items())

    sidecar.until(same, SECONDS, f"it follows {policy}")


def policy_of(sidecar: SidecarProcess) -> Any:
    return sidecar.request("GET", "/v1/policy").json
