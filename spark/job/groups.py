"""Which groups a query serves: those whose topics are all there, so that none can stop the others. Pure.

A query reads exactly the groups that it can write. One that is left out is a stranger to the checkpoint, so its events
are read from the beginning once it is served.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spark.names import EVENTS_SUFFIX


class Plan(NamedTuple):
    """The groups that are read, sorted; the topic that each of the others lacks; the ids of the events topics read."""

    served: tuple[str, ...]
    lacking: Mapping[str, str]
    ids: Mapping[str, str] = {}

    def topics(self, suffix: str) -> list[str]:
        """The topics of the served groups that end in `suffix`."""
        return [f"{group}{suffix}" for group in self.served]


def planned(groups: Sequence[str], pattern: str | None, topics: Mapping[str, str], target: str | None) -> Plan:
    """What a query that writes `<group><target>` does for `groups`, or for those that `pattern` matches as a whole.

    `topics` are all that Kafka has, with their ids. A group of a pattern is one that has events. Without a `target`
    events are enough.
    """
    wanted = groups if pattern is None else matching(pattern, topics)
    needed = [EVENTS_SUFFIX, *([] if target is None else [target])]
    lacks = {group: [group + suffix for suffix in needed if group + suffix not in topics] for group in wanted}
    served = tuple(sorted(group for group, missing in lacks.items() if not missing))
    lacking = {group: missing[0] for group, missing in sorted(lacks.items()) if missing}
    return Plan(served, lacking, {group + EVENTS_SUFFIX: topics[group + EVENTS_SUFFIX] for group in served})


def matching(pattern: str, topics: Collection[str]) -> list[str]:
    """The groups with events whose whole name matches."""
    whole = re.compile(pattern)
    found = (topic.removesuffix(EVENTS_SUFFIX) for topic in topics if topic.endswith(EVENTS_SUFFIX))
    return [group for group in found if whole.fullmatch(group)]
