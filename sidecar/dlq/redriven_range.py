"""Follow one redrive through one DLQ partition, and compute the redriven range that it stores there. Pure.

A redrive every hour with another `--since` would store a new range each time, until Kafka has no room for more (at
333). So an earlier range that differs only in `since` is extended instead. That is allowed as long as the redrive
leaves out no letter that the earlier range selects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest
from reconsume.sidecar.dlq.redrive_history import MOST_LEFT, RedriveHistory, RedrivenRange, claimed, earlier, topics_in

LOOK_BACK = 10_000
"""Offsets that a redrive reads again at most, to see whether an earlier range can be extended: a second's reading.
Without it, letters between two runs that the later one does not select would keep the earlier range from being
extended."""


class _Scope(NamedTuple):
    """The letters that a range is about, wherever they lie."""

    filter: Filter
    topics: tuple[str, ...]


def read_from(request: RedriveRequest, history: RedriveHistory, begin: int) -> int:
    """Return the offset at which to begin reading, for a redrive that may find letters from `begin` on.

    It is lower than `begin` if an earlier range may be extended.
    """
    reached = [claim.next for claim in earlier(request, history) if claim.next <= begin]
    return max((offset for offset in reached if begin - offset <= LOOK_BACK), default=begin)


class Course:
    """The state of a redrive that reads from offset `begin` on. `note` must be called with each letter, in order."""

    def __init__(self, request: RedriveRequest, history: RedriveHistory, begin: int) -> None:
        self._request, self._begin = request, begin
        self._own = _Scope(claimed(request, history), topics_in(request))
        self._claims = tuple(claim for claim in earlier(request, history) if claim.next >= begin)
        self._ends: dict[_Scope, int] = {}
        """For each earlier range: the offset of the first letter that it selects and that this redrive leaves."""
        self._refused: set[int] = set()

    def note(self, letter: Letter, verdict: Eligibility | None, history: RedriveHistory) -> None:
        """Record a letter that this redrive leaves, if an earlier range selects it."""
        if verdict in (Eligibility.READY, Eligibility.REDRIVEN, Eligibility.COPY):
            return  # a copy does not end a range: `advanced` keeps those that it must not cover
        for claim in self._claims:
            scope, offset = _Scope(claim.filter, claim.topics), letter.record.offset
            if scope != self._own and scope not in self._ends and offset >= claim.next and claim.reaches(letter):
                if history.covers(letter):
                    return
                self._ends[scope] = offset

    def advanced(self, history: RedriveHistory, taken: Iterable[int], refused: Collection[int]) -> RedriveHistory:
        """Return the history after the letters at the offsets `taken` are redriven.

        The letters that Kafka `refused` are left for another run. Every letter of the request below the last of these
        offsets must have been passed to `note`. Call `committed` once the transaction is committed.
        """
        offsets = set(taken)
        if self._request.filter.ids:
            return replace(history, done=history.done | offsets)
        open_ = (self._refused | set(refused)) - offsets
        reached = max((0, *(offset + 1 for offset in (*offsets, *refused))))
        base = self._base(history, reached, open_)
        left = tuple(sorted((set(base.left) | open_) - offsets))
        claim = replace(base, next=max(base.next, reached), left=left)
        skipped = history.skipped.union(history.copies.of_open.within(self._begin, reached))
        if offsets.intersection(skipped):
            skipped = OffsetRanges.of(set(skipped) - offsets)
        scope = _Scope(base.filter, base.topics)
        others = (other for other in history.claims if _Scope(other.filter, other.topics) != scope)
        return replace(history, claims=(*others, claim), skipped=skipped)

    def committed(self, taken: Iterable[int], refused: Iterable[int]) -> None:
        """Record that a transaction was committed. A letter that was left may be taken by a later one."""
        self._refused = (self._refused | set(refused)) - set(taken)

    def _base(self, history: RedriveHistory, reached: int, refused: Collection[int]) -> RedrivenRange:
        """Return the range to extend up to offset `reached`: an earlier one if allowed, else this redrive's own."""
        mine = {_Scope(claim.filter, claim.topics): claim for claim in history.claims}
        for claim in self._claims:
            scope = _Scope(claim.filter, claim.topics)
            now = mine.get(scope)
            whole = scope != self._own and self._ends.get(scope, reached) >= reached
            if now is not None and whole and len({*now.left, *refused}) <= MOST_LEFT:
                return now
        return mine.get(self._own, RedrivenRange(self._own.filter, 0, self._own.topics))
