"""The level topics that left the policy or the configuration, and are read until they are empty."""

from __future__ import annotations

import logging
from collections.abc import Set

from reconsume.sidecar.group_policy.removed_levels import Undrained
from reconsume.topics.names import Names
from reconsume.topics.removed import removed_topics

_LOG = logging.getLogger("reconsume.policy")


class DrainingLevels:
    """Knows the levels outside the policy that may hold records, by what is seen of the cluster's topics."""

    def __init__(self, names: Names, mains: frozenset[str]) -> None:
        self._names, self._mains = names, mains
        self.levels: frozenset[str] = frozenset()
        self.is_unsure = False
        """Whether Kafka did not say of each level whether it holds records."""

    def see(self, undrained: Undrained) -> frozenset[str] | None:
        """Take in what Kafka says. Return the levels that are empty now; None if nothing has changed.

        A level of which Kafka says nothing stays as it was.
        """
        levels = undrained.holding | (self.levels & undrained.unknown)
        if levels == self.levels:
            return None
        empty, self.levels = self.levels - levels, levels
        return empty

    def leave(self, levels: Set[str]) -> None:
        """Note levels that leave the policy: they are read until a snapshot of the topics shows that they are empty."""
        self.levels |= levels

    def rejoin(self, levels: Set[str]) -> None:
        """Note levels that are of the policy (again)."""
        self.levels -= levels

    def removed_topics(self) -> list[str]:
        """Return the main topics that left the configuration and whose own levels still hold retries."""
        return removed_topics(self._names, self.levels, self._mains)

    def log_empty(self, levels: Set[str]) -> None:
        """Log which levels are no longer read."""
        if levels:
            text, extra = "levels outside the policy are empty and no longer read: %s", {"event": "levels-empty"}
            _LOG.info(text, ", ".join(sorted(levels)), extra=extra)

    def log(self) -> None:
        """Log which levels are read, and of which topics that left the configuration."""
        if self.levels:
            names = ", ".join(sorted(self.levels))
            text, extra = "levels outside the policy are read until they are empty: %s", {"event": "levels-left"}
            _LOG.info(text, names, extra=extra)
        if removed := self.removed_topics():
            text = "retries of topics that left the configuration are passed on, and become dead letters in the end: %s"
            _LOG.warning(text, ", ".join(removed), extra={"event": "topics-removed", "about": removed})
