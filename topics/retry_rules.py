"""Rules by topic and by kind of failure (contract 2.11). Pure.

A rule replaces the group's ladder, most retries or age for the failures that it names. The first one that matches
decides; what it leaves out is the group's. `transitions.py` asks once for each failure.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Protocol

import msgspec

from reconsume.topics.levels import Ladder

LONGEST_NAME = 64
"""Characters of a rule's name."""
MOST_RULES = 64
"""Rules of a group. Each failure looks at them one by one."""
MOST_PATTERNS = 64
"""Topics of a rule, and reasons of a rule."""
LEASE_EXPIRED = "lease-expired"
"""The reason of a lease that ended without an answer (contract 6.6)."""
RELEASED = "released"
"""The reason of a lease that the service gave back."""


class FailureTerms(Protocol):
    """What applies to a failure: a rule's values, or the group's own."""

    @property
    def ladder(self) -> Ladder: ...
    @property
    def max_reconsume_times(self) -> int: ...
    @property
    def max_age(self) -> int | None: ...
    @property
    def dead_letter(self) -> bool: ...
    @property
    def has_own_ladder(self) -> bool: ...


class RetryRule(msgspec.Struct, frozen=True):
    """What applies to some failures of a group.

    - `name`: for people, and to change the rule by.
    - `topics`, `reasons`: main topics and classes of reasons, as names or globs (`http-5*`); none: all.
    - `ladder`, `max_reconsume_times`, `max_age` (ms, None: no bound): as in `GroupRules`; the group's where the rule as
      it is written leaves them out.
    - `dead_letter`: such a failure is the last one.
    - `has_own_ladder`: the rule has a ladder as it is written. An expired lease waits for no other (contract 6.6).
    """

    name: str
    topics: tuple[str, ...]
    reasons: tuple[str, ...]
    ladder: Ladder
    max_reconsume_times: int
    max_age: int | None = None
    dead_letter: bool = False
    has_own_ladder: bool = False

    def matches(self, topic: str, reason: str) -> bool:
        """Return whether the rule is for failures of this class at records of this main topic.

        A rule for all reasons is not for leases that end without a verdict: it must name them, or have a glob other
        than `*`.
        """
        reasons = self.reasons
        if reason in (LEASE_EXPIRED, RELEASED):
            reasons = tuple(pattern for pattern in reasons if pattern != "*")
            if not reasons:
                return False
        return _any(self.topics, topic) and _any(reasons, reason)


def _any(patterns: tuple[str, ...], name: str) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
