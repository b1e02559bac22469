"""The ordered groups of a soak: what each is configured with, and how their service answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from reconsume.topics.names import Kind
from tests.soak.layout import REPLICAS
from tests.soak.service import luck, pause_of
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.service.behaviours import Answer, Behaviour, Request, Script

PARTITIONS, SLOTS = 4, 2
ALWAYS_FAIL = 4
"""Of 1000 records, at every attempt."""
ILL, TURN = 50, 30
"""So many of 1000 keys fail in each turn of so many seconds, as the accounts of a partner that is down."""
Retry = Mapping[str, object]


def by_key(request: Request) -> Behaviour:
    """Some keys fail for a while, and a few records always; all else is taken after a few milliseconds."""
    key = (request.key or b"").decode()
    ill = luck(f"{key}/{time.time() // TURN:.0f}") < ILL
    failing = ill or luck(request.id) < ALWAYS_FAIL
    return Answer(500 if failing else 200, after=pause_of(request))


class OrderedKind(NamedTuple):
    """A group's name, and its section `retry`: in the beginning, and in a roll-out. Then its service, how many pods it
    has, and its load: how many keys, and records a second."""

    name: str
    base: Retry
    rolled: Retry
    script: Script = by_key
    slots: int = SLOTS
    keys: int = 200
    rate: int = 30

    def config(self, variant: str, bootstrap: str) -> dict[str, Any]:
        """What differs from a test's sidecar: `base`, or else the roll-out's."""
        return {
            "deliver": {
                "order": "key",
                "timeout": "5s",
                "concurrency": 64,
                "outage_failures": 20,
                "outage_interval": "200ms",
            },
            "retry": {"max_deaths": 1000, **(self.base if variant == "base" else self.rolled)},
            "kafka": {"bootstrap.servers": bootstrap},
            "drain_timeout": "8s",
        }

    def new_group(self, bootstrap: str) -> GroupTopics:
        """The group and its topics, of names that nobody has used; made and led."""
        token = uuid.uuid4().hex[:8]
        group = GroupTopics(bootstrap, f"soak-{self.name}-{token}", (f"{self.name}-{token}",), (), queued=True)
        return create_group(group, PARTITIONS, replication=REPLICAS, also=(Kind.POLICY,))


LADDER = OrderedKind(
    "ladder",
    {"ordered_ladder": ["1s", "2s", "5s", "10s"], "max_reconsume_times": 5},
    # In place: what waits in the queue drains in order.
    {"ordered_interval": "500ms", "ordered_max_times": 4},
)
PARK = OrderedKind(
    "park",
    {"ordered_ladder": ["1s", "2s"], "max_reconsume_times": 2, "ordered_exhausted": "park"},
    # What is parked goes to the DLQ.
    {"ordered_ladder": ["1s", "3s"], "max_reconsume_times": 3},
)
ORDERED = (LADDER, PARK)
