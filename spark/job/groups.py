"""Decide which groups a query serves: only those whose topics all exist. So no group can stop the others. Pure.

A query reads exactly the groups that it can write. The checkpoint does not know a group that is left out, so its events
are read from the first one when it is served.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from reconsume.spark.names import EVENTS_SUFFIX


class Plan(NamedTuple):
    """The groups that a query serves, sorted.

    `lacking` names, for each other group, a topic that is missing. `ids` are the ids of the topics that are read and
    written, by name.
    """

    served: tuple[str, ...]
    lacking: Mapping[str, str]
    ids: Mapping[str, str] = {}

    def topics(self, suffix: str) -> list[str]:
        """Return the topics of the served groups with this suffix."""
        return [f"{group}{suffix}" for group in self.served]


def planned(
    groups: Sequence[str], pattern: str | None, topics: Mapping[str, str], target: str, more: str | None = None
) -> Plan:
    """Return the plan of a query that writes `<group><target>`, for `groups` or for the groups that match `pattern`.

    The whole name of a group must match. `topics` are all topics in Kafka, with their ids. A group matches a pattern
    only if it has an events topic. `more` is another topic that is written, if it is there.
    """
    wanted = groups if pattern is None else matching(pattern, topics)
    needed = (EVENTS_SUFFIX, target)
    lacks = {group: [group + suffix for suffix in needed if group + suffix not in topics] for group in wanted}
    served = tuple(sorted(group for group, missing in lacks.items() if not missing))
    lacking = {group: missing[0] for group, missing in sorted(lacks.items()) if missing}
    used = [group + suffix for group in served for suffix in needed]
    if more is not None and more in topics:
        used.append(more)
    return Plan(served, lacking, {topic: topics[topic] for topic in used})


def matching(pattern: str, topics: Collection[str]) -> list[str]:
    """Return the groups that have an events topic and whose whole name matches."""
    whole = re.compile(pattern)
    groups = (topic.removesuffix(EVENTS_SUFFIX) for topic in topics if topic.endswith(EVENTS_SUFFIX))
    return [group for group in groups if whole.fullmatch(group)]
