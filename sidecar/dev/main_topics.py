"""Create main topics on an embedded Kafka, as the owner of a real cluster would have done before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.changes import CreateState, TopicAdmin
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.names import LEGAL, Kind
from reconsume.topics.specs import TopicSpec

LONGEST = 249
"""Characters of a topic's name (Kafka's own bound)."""
MOST = 1_000
"""Partitions of one topic: an embedded Kafka has a small heap."""


class Wanted(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int


def parse_wanted(text: str) -> Wanted:
    """Parse `NAME` or `NAME:PARTITIONS`; without a number it is one partition. Raises ValueError with one sentence."""
    name, _, count = text.rpartition(":") if ":" in text else (text, "", "1")
    if LEGAL.fullmatch(name) is None or len(name) > LONGEST:
        raise ValueError(f"{text[:60]!r} names no topic: it is NAME or NAME:PARTITIONS, such as orders:3")
    if not (count.isascii() and count.isdecimal() and 1 <= int(count[:9]) <= MOST):
        raise ValueError(f"{text[:60]!r} has no number of partitions from 1 to {MOST} behind its colon")
    return Wanted(name, int(count))


def create_main_topics(bootstrap: str, wanted: Sequence[Wanted], replicas: int) -> None:
    """Create the topics. Raises BrokerError for one that cannot be created."""
    admin = TopicAdmin(Cluster({"bootstrap.servers": bootstrap}))
    for result in admin.create([TopicSpec(name, Kind.MAIN, count, replicas, {}) for name, count in wanted]):
        if result.state is CreateState.FAILED:
            raise BrokerError(f"topic {result.name} cannot be created: {result.error}")
