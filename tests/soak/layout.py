"""What the soak's group looks like: its topics, and the configurations that its pods are rolled out with."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from tests.support.kafka.group_topics import GroupTopics, create_group
from topics.names import Kind

PARTITIONS, REPLICAS, IN_SYNC = 4, 3, 2
MAINS = ("orders", "invoices", "returns")
LEVELS = (2_000, 5_000, 10_000, 15_000, 30_000, 60_000)
"""ms. The levels of every configuration together; their topics are made before the start, as `topics apply` would."""
LADDER = ("2s", "5s", "15s", "1m")
TIMEOUT = 3.0
"""Seconds that a delivery may take."""
ASKED = 20.0
"""Seconds: the delay for which the service asks now and then; no level has it, so it is made of two."""

BASE: Mapping[str, Any] = {
    "deliver": {"timeout": "3s", "concurrency": 64, "outage_failures": 20},
    "retry": {
        "ladder": list(LADDER),
        "levels": list(LADDER),
        "max_reconsume_times": 4,
        "max_deaths": 1000,  # deaths are the rule here; who is suspected after them has its own tests
    },
    "drain_timeout": "8s",
}
OTHER: Mapping[str, Any] = {"ladder": ["2s", "10s", "30s"], "levels": ["2s", "10s", "30s"], "max_reconsume_times": 3}

# Durations are spelled as the product spells them: what a pod follows is compared as text.
POLICIES: tuple[Mapping[str, object], ...] = (
    {"max_reconsume_times": 3},
    {"ladder": ["2s", "5s"], "max_reconsume_times": 4},
    {"ladder": ["5s", "15s", "1m"], "levels": ["5s", "15s", "1m"]},
    {"concurrency": 16, "timeout": "2s"},
    {"levels": ["2s", "10s", "1m"], "ladder": ["2s", "10s", "1m"], "max_reconsume_times": 3},
)
LONGEST_LADDER = 5 + 15 + 60 + 60
"""Seconds that the longest of these lets a record wait; past its end each retry waits the last delay."""


def new_group(bootstrap: str) -> GroupTopics:
    """The group and its topics, of names that nobody has used; made and led."""
    token = uuid.uuid4().hex[:8]
    group = GroupTopics(bootstrap, f"soak-{token}", tuple(f"{name}-{token}" for name in MAINS), LEVELS)
    return create_group(group, PARTITIONS, replication=REPLICAS, also=(Kind.POLICY,))


def config(group: GroupTopics, variant: str, sets: Mapping[str, object]) -> dict[str, Any]:
    """What differs from a test's sidecar: `base`, `rollout-topics` (without the last one) or `rollout-ladder`; with
    `sets` on top, by dotted key."""
    mains = group.mains[:-1] if variant == "rollout-topics" else group.mains
    retry = {**BASE["retry"], **(OTHER if variant == "rollout-ladder" else {})}
    made = {**BASE, "topics": list(mains), "deliver": dict(BASE["deliver"]), "retry": retry}
    for key, value in sets.items():
        section, dot, name = key.partition(".")
        if dot:
            made.setdefault(section, {})[name] = value
        else:
            made[section] = value
    return made
