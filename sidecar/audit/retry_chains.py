"""The way of one retry through topics: its copy, and the copies that are the same retry further on (hops, forwards).

A hop or a forward follows a copy; a second copy that follows none means that one attempt was counted twice. Where a
way goes on too soon is `rules.early`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sidecar.audit.facts import Fact, Terms

RetryChain: TypeAlias = list[Fact]
"""Copies of one count, each following the one before it."""


def retry_chains(copies: Sequence[Fact], terms: Terms) -> list[RetryChain]:
    """Copies of one count (in the order of their times) as ways; one for each time that the attempt was counted."""
    found: list[RetryChain] = []
    for copy in copies:
        way = next((way for way in found if follows(copy, way[-1], terms)), None)
        if way is None:
            found.append([copy])
        else:
            way.append(copy)
    return found


def follows(copy: Fact, before: Fact, terms: Terms) -> bool:
    """Whether a copy may be the same retry further on: due at the same time, and in another topic, or after the wait.

    Two copies in one topic at nearly one time are one attempt counted twice. From the ready topic a copy goes on to a
    level alone: when its reader does not consume its main topic.
    """
    if copy.due != before.due or before.topic == copy.topic == terms.names.ready:
        return False
    return copy.topic != before.topic or copy.at + terms.slack >= terms.release(before)


def last_below(numbered: dict[int, list[Fact]], times: int) -> Fact | None:
    """The last copy of the greatest count below `times`."""
    below = [number for number in numbered if number < times]
    return numbered[max(below)][-1] if below else None
