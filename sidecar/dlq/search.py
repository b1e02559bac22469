"""Search dead letters for display: the newest that a request selects, or all stays of one id.

The number of records read is bounded, and the result says whether older ones were left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import weight_of
from reconsume.sidecar.dlq.copies import with_copies
from reconsume.sidecar.dlq.letters import OPEN, Eligibility, Filter, Letter, RedriveRequest
from reconsume.sidecar.dlq.plan import Progress, judged
from reconsume.sidecar.dlq.preview import BEGINNING
from reconsume.sidecar.dlq.redrive_history import MOST_REDRIVES_EVER
from reconsume.sidecar.dlq.scan import Scan
from reconsume.sidecar.dlq.topics import DlqTopics, Layout, Span, narrowed, position_in

STAYS = 10
"""Stays of one id that are returned in full, the newest ones. A record is redriven three times, as a rule."""
MOST_BYTES = 16 * 1024 * 1024
"""Bytes (`Record.weight`) of letters that are returned in full. A single one may have more."""


class SearchResult(NamedTuple):
    """The letters that were found, newest first, each with what a redrive would do with it.

    `matched` may be more than the letters in the list. `scanned` of `total` records were read, at `rate` a second.
    `cut`: whether older records were not read.
    """

    letters: list[tuple[Letter, Eligibility]]
    matched: int
    scanned: int
    total: int
    rate: float
    cut: bool


def slim(letter: Letter) -> Letter:
    """Return the letter without key, value and headers, which most lists do not show."""
    return replace(letter, record=replace(letter.record, key=None, value=None, headers=None, weight=0))


def whole(letter: Letter) -> Letter:
    """Return the letter as it is."""
    return letter


def beginning(letter: Letter) -> Letter:
    """Return the letter with the first BEGINNING bytes of its key and value, and without headers."""
    record = letter.record
    key, value = (None if data is None else data[:BEGINNING] for data in (record.key, record.value))
    weight = weight_of(key, value, None, None)
    return replace(letter, record=replace(record, key=key, value=value, headers=None, weight=weight))


def search(
    topics: DlqTopics,
    policy: Policy,
    request: RedriveRequest,
    most: int,
    scan_most: int,
    progress: Progress,
    states: Collection[Eligibility] = OPEN,
    *,
    keep: Callable[[Letter], Letter] = slim,
) -> SearchResult:
    """Return the newest letters that a request selects: at most `most`, from the newest `scan_most` records.

    `keep` returns what is kept of a letter; of whole ones a list of a hundred would take a hundred MB. Those that are
    kept have MOST_BYTES together, or are one. Raises BrokerError.
    """
    everything = topics.layout()
    looked_at = newest(everything, scan_most)
    pasts = with_copies(topics, policy, looked_at, topics.pasts(everything, only_shown=True), progress)
    stretches = narrowed(topics.since(everything, request.filter.since), request.filter, topics.topics)
    layout = newest(stretches, scan_most)
    total = sum(span.end - span.begin for span in stretches.values())
    cut = any(layout[partition].begin > span.begin for partition, span in stretches.items())
    kept, matched = Newest(most), 0
    with Scan(topics, layout) as scan:
        for letter, verdict in judged(scan, request, policy, pasts):
            matched += verdict in states
            progress(scan, matched)
            if verdict is not None and verdict in states:
                kept.add(keep(letter), verdict)
        return SearchResult(kept.letters(), matched, scan.read, total, scan.rate, cut)


class Newest:
    """The newest letters of those that are added: at most `most`, and MOST_BYTES of them, but always one."""

    def __init__(self, most: int) -> None:
        self._most, self._weight = most, 0
        self._kept: list[tuple[int, int, int, Letter, Eligibility]] = []
        """A heap, the oldest letter first. A number of its own keeps letters from being compared."""
        self._added = 0

    def add(self, letter: Letter, verdict: Eligibility) -> None:
        """Add a letter, and drop the oldest ones that are too many or too heavy with it."""
        record = letter.record
        self._added -= 1
        heapq.heappush(self._kept, (record.timestamp, record.offset, self._added, letter, verdict))
        self._weight += record.weight
        while len(self._kept) > self._most or (self._weight > MOST_BYTES and len(self._kept) > 1):
            self._weight -= heapq.heappop(self._kept)[3].record.weight

    def letters(self) -> list[tuple[Letter, Eligibility]]:
        """Return the letters, the newest first."""
        return [(letter, verdict) for *_, letter, verdict in sorted(self._kept, key=lambda row: row[:3], reverse=True)]


def newest(layout: Layout, most: int) -> Layout:
    """Return the last `most` offsets, shared evenly among the partitions.

    Offsets that one partition does not need are not given to the others.
    """
    share = max(1, most // max(1, len(layout)))
    return {partition: span._replace(begin=max(span.begin, span.end - share)) for partition, span in layout.items()}


def find_id(topics: DlqTopics, policy: Policy, ident: str, scan_most: int, progress: Progress) -> SearchResult:
    """Return the newest stays of a record in the DLQ by its origin id, or one letter by its position in a DLQ topic."""
    request = RedriveRequest(Filter(ids=(ident,)), MOST_REDRIVES_EVER, forgotten=False)
    position = position_in(ident, topics.topics)
    if position is None:
        return search(topics, policy, request, STAYS, scan_most, progress, frozenset(Eligibility), keep=whole)
    partition, offset = position
    layout = topics.layout()
    if partition not in layout or not layout[partition].begin <= offset < layout[partition].end:
        return SearchResult([], 0, 0, 1, 0.0, cut=False)
    looked_at = newest(layout, scan_most)
    pasts = with_copies(topics, policy, looked_at, topics.pasts(layout, only_shown=True), progress)
    with Scan(topics, {partition: Span(offset, offset + 1)}) as scan:
        letters = [(one, verdict) for one, verdict in judged(scan, request, policy, pasts) if verdict]
        return SearchResult(letters, len(letters), scan.read, 1, scan.rate, cut=False)
