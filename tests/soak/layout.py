"""What the soak's group looks like: its topics, and the configurations that its pods are rolled out with."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from reconsume.topics.durations import parse_duration
from reconsume.topics.names import Kind
from tests.support.kafka.group_topics import GroupTopics, create_group

PARTITIONS, REPLICAS, IN_SYNC = 4, 3, 2
MAINS = ("orders", "invoices", "returns")
SLOTS = 3
"""Pods, beside one that joins for a while."""
TIMEOUT = 3.0
"""Seconds that a delivery may take."""
ASKED = 20.0
"""Seconds: the delay for which the service asks now and then; no level has it, so it is made of two."""
BRIEF = 300.0
"""A soak of fewer seconds ends with shorter waits, so that it is not all rest: `Layout.of`."""


class Layout(NamedTuple):
    """The waits of a soak: its longest delay, that of a pod that was rolled out with another ladder, and the pause
    between two attempts at a service of which all fails, as in the end only records do that always fail."""

    last: str = "1m"
    others_last: str = "30s"
    pause: str = "1s"

    @classmethod
    def of(cls, seconds: float) -> Layout:
        """Those of a soak of that length."""
        return cls("25s", "25s", "200ms") if seconds < BRIEF else cls()

    @property
    def ladder(self) -> tuple[str, ...]:
        """That of the configuration which all pods begin with; each of its delays is a level."""
        return ("2s", "5s", "15s", self.last)

    @property
    def other(self) -> tuple[str, ...]:
        """That of a roll-out."""
        return ("2s", "10s", self.others_last)

    @property
    def levels(self) -> tuple[int, ...]:
        """ms. Those of all together; their topics are made before the start, as `topics apply` would."""
        return tuple(sorted({parse_duration(delay) for delay in (*self.ladder, *self.other)}))

    @property
    def policies(self) -> tuple[Mapping[str, object], ...]:
        """What the operator sets. Spelled as the product spells it: what a pod follows is compared as text."""
        late, early = ["5s", "15s", self.last], ["2s", "10s", self.last]
        return (
            {"max_reconsume_times": 3},
            {"ladder": ["2s", "5s"], "max_reconsume_times": 4},
            {"ladder": late, "levels": late},
            {"concurrency": 16, "timeout": "2s"},
            {"levels": early, "ladder": early, "max_reconsume_times": 3},
        )

    @property
    def longest(self) -> float:
        """Seconds that the longest ladder lets a record wait; past its end each retry waits the last delay."""
        return 5 + 15 + 2 * parse_duration(self.last) / 1_000

    def new_group(self, bootstrap: str) -> GroupTopics:
        """The group and its topics, of names that nobody has used; made and led."""
        token = uuid.uuid4().hex[:8]
        group = GroupTopics(bootstrap, f"soak-{token}", tuple(f"{name}-{token}" for name in MAINS), self.levels)
        return create_group(group, PARTITIONS, replication=REPLICAS, also=(Kind.POLICY,))

    def config(self, group: GroupTopics, variant: str, sets: Mapping[str, object]) -> dict[str, Any]:
        """What differs from a test's sidecar: `base`, `rollout-topics` (without the last one) or `rollout-ladder`; with
        `sets` on top, by dotted key."""
        ladder, most = (self.other, 3) if variant == "rollout-ladder" else (self.ladder, 4)
        made: dict[str, Any] = {
            "topics": list(group.mains[:-1] if variant == "rollout-topics" else group.mains),
            "deliver": {"timeout": "3s", "concurrency": 64, "outage_failures": 20, "outage_interval": self.pause},
            "retry": {
                "ladder": list(ladder),
                "levels": list(ladder),
                "max_reconsume_times": most,
                "max_deaths": 1000,  # deaths are the rule here; who is suspected after them has its own tests
            },
            "drain_timeout": "8s",
        }
        for key, value in sets.items():
            section, dot, name = key.partition(".")
            if dot:
                made.setdefault(section, {})[name] = value
            else:
                made[section] = value
        return made
