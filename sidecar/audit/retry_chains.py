"""Follow one retry through the topics: its first copy, then the copies made by hops and forwards.

A hop or a forward follows a copy. A second copy that follows none means that one attempt was counted twice. Whether a
chain continues too early is checked in `copy_rules.early`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from reconsume.sidecar.audit.facts import Fact, Terms

RetryChain: TypeAlias = list[Fact]
"""Copies with the same retry count. Each follows the one before it."""


def retry_chains(copies: Sequence[Fact], terms: Terms) -> list[RetryChain]:
    """Return copies of one count, in the order of their times, as chains.

    There is one chain for each time that the attempt was counted.
    """
    found: list[RetryChain] = []
    for copy in copies:
        way = next((way for way in found if follows(copy, way[-1], terms)), None)
        if way is None:
            found.append([copy])
        else:
            way.append(copy)
    return found


def follows(copy: Fact, before: Fact, terms: Terms) -> bool:
    """Whether a copy may be a later step of the same retry as `before`.

    Both must have the same due time, unless the service postponed the attempt: then the later copy is due later. The
    copy must be in another topic, or come after the wait. Two copies in one topic at nearly the same time are one
    attempt that was counted twice. From the ready topic a copy goes only to a level, when its reader does not consume
    its main topic. What is parked, and what a person has tried now, waits anew.
    """
    if copy.by_hand:
        return copy.at + terms.slack >= before.at
    is_postponed = copy.postponed and copy.due > before.due
    if (copy.due != before.due and not is_postponed) or before.topic == copy.topic == terms.names.ready:
        return False
    return copy.topic != before.topic or copy.at + terms.slack >= terms.release(before)


def last_below(numbered: dict[int, list[Fact]], times: int) -> Fact | None:
    """Return the last copy with the greatest count below `times`; None if there is none."""
    below = [number for number in numbered if number < times]
    return numbered[max(below)][-1] if below else None
