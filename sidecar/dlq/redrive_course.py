"""One redrive's way through one DLQ partition, and the claim that it leaves there. Pure.

A redrive every hour with another `--since` would leave a claim each time, until Kafka has no room for more (at 333). So
an earlier claim that differs in `since` alone goes on instead, as far as nothing was left out that it speaks of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest
from sidecar.dlq.redrive_history import MOST_LEFT, RedriveHistory, RedrivenRange, claimed, earlier, topics_in

LOOK_BACK = 10_000
"""Offsets that a redrive reads again at most, to see whether an earlier claim may go on: a second's reading. With none,
what was not asked for between two runs would end the claim."""


class _Scope(NamedTuple):
    """What a claim speaks of."""

    filter: Filter
    topics: tuple[str, ...]


def read_from(wish: RedriveRequest, past: RedriveHistory, begin: int) -> int:
    """Where to begin reading for a redrive that may find something from `begin` on."""
    reached = [claim.next for claim in earlier(wish, past) if claim.next <= begin]
    return max((place for place in reached if begin - place <= LOOK_BACK), default=begin)


class Course:
    """What a redrive that reads from offset `begin` on has seen so far. `note` is told each letter, in order."""

    def __init__(self, wish: RedriveRequest, past: RedriveHistory, begin: int) -> None:
        self._wish = wish
        self._own = _Scope(claimed(wish, past), topics_in(wish))
        self._claims = tuple(claim for claim in earlier(wish, past) if claim.next >= begin)
        self._ends: dict[_Scope, int] = {}
        """By claim: the first letter that it speaks of and that stays where it is."""
        self._refused: set[int] = set()

    def note(self, letter: Letter, verdict: Eligibility | None, past: RedriveHistory) -> None:
        """A letter was looked at, and judged."""
        if verdict is Eligibility.READY or verdict is Eligibility.REDRIVEN:
            return
        for claim in self._claims:
            scope, offset = _Scope(claim.filter, claim.topics), letter.record.offset
            if scope != self._own and scope not in self._ends and offset >= claim.next and claim.reaches(letter):
                if past.covers(letter):
                    return
                self._ends[scope] = offset

    def advanced(self, past: RedriveHistory, taken: Iterable[int], refused: Collection[int]) -> RedriveHistory:
        """The past once the letters at `taken` are redriven; those `refused` by Kafka are left for another run.

        All letters of the wish below the last of them must have been looked at.
        """
        offsets = set(taken)
        if self._wish.filter.ids:
            return replace(past, done=past.done | offsets)
        self._refused = (self._refused | set(refused)) - offsets
        reached = max((0, *(offset + 1 for offset in (*offsets, *refused))))
        base = self._base(past, reached)
        left = tuple(sorted((set(base.left) | self._refused) - offsets))
        claim = replace(base, next=max(base.next, reached), left=left)
        scope = _Scope(base.filter, base.topics)
        others = (other for other in past.claims if _Scope(other.filter, other.topics) != scope)
        return replace(past, claims=(*others, claim))

    def _base(self, past: RedriveHistory, reached: int) -> RedrivenRange:
        """The claim that goes on up to offset `reached`: an earlier one if it may, else our own."""
        mine = {_Scope(claim.filter, claim.topics): claim for claim in past.claims}
        for claim in self._claims:
            scope = _Scope(claim.filter, claim.topics)
            now = mine.get(scope)
            whole = scope != self._own and self._ends.get(scope, reached) >= reached
            if now is not None and whole and len({*now.left, *self._refused}) <= MOST_LEFT:
                return now
        return mine.get(self._own, RedrivenRange(self._own.filter, 0, (), self._own.topics))
