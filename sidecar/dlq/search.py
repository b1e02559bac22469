"""Dead letters for people: the newest that are asked for, and all stays of one id. Bounded, and honest about it."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from sidecar.core.policy import Policy
from sidecar.core.record import Partition
from sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest
from sidecar.dlq.plan import Told, judged
from sidecar.dlq.redrive_history import MOST_REDRIVES_EVER
from sidecar.dlq.scan import Scan
from sidecar.dlq.topics import DlqTopics, Layout, Span

STAYS = 10
"""Stays of one id that are found whole, the newest; a record is redriven three times, as a rule."""
PLACE = re.compile(r"(.+):([0-9]{1,9}):([0-9]{1,18})")


class Found(NamedTuple):
    """Letters with what a redrive would do with them, newest first. `matched` may be more than those that are here.

    `scanned` of `total` records were looked at, `rate` a second; `cut`: older ones were not.
    """

    letters: list[tuple[Letter, Eligibility]]
    matched: int
    scanned: int
    total: int
    rate: float
    cut: bool


def search(
    topics: DlqTopics,
    policy: Policy,
    wish: RedriveRequest,
    most: int,
    scan_most: int,
    told: Told,
    states: Collection[Eligibility] = frozenset(Eligibility),
    *,
    whole: bool = False,
) -> Found:
    """The newest letters of a wish, at most so many, among the newest `scan_most` records. Raises BrokerError.

    Unless they are wanted `whole`, without key, value and headers: a list of a hundred would take a hundred MB.
    """
    everything = topics.layout()
    pasts = topics.pasts(everything, only_shown=True)
    asked = topics.since(everything, wish.filter.since)
    layout = newest(asked, scan_most)
    total = sum(span.end - span.begin for span in asked.values())
    cut = any(layout[place].begin > span.begin for place, span in asked.items())
    matched = 0
    with Scan(topics, layout) as scan:

        def selected() -> Iterator[tuple[Letter, Eligibility]]:
            nonlocal matched
            for letter, verdict in judged(scan, wish, policy, pasts):
                matched += verdict in states
                told(scan, matched)
                if verdict is not None and verdict in states:
                    yield letter if whole else slim(letter), verdict

        kept = heapq.nlargest(most, selected(), key=lambda row: (row[0].record.timestamp, row[0].record.offset))
        return Found(kept, matched, scan.read, total, scan.rate, cut)


def slim(letter: Letter) -> Letter:
    """The letter without what no list shows."""
    return replace(letter, record=replace(letter.record, key=None, value=None, headers=None))


def newest(layout: Layout, most: int) -> Layout:
    """The last `most` offsets, shared evenly among the partitions; what one does not need the others do not get."""
    share = max(1, most // max(1, len(layout)))
    return {place: span._replace(begin=max(span.begin, span.end - share)) for place, span in layout.items()}


def find_id(topics: DlqTopics, policy: Policy, ident: str, scan_most: int, told: Told) -> Found:
    """The newest stays of a record in the DLQ, by its origin id; or one letter, by its place in a dead letter topic."""
    wish = RedriveRequest(Filter(ids=(ident,)), MOST_REDRIVES_EVER, forgotten=False)
    match = PLACE.fullmatch(ident)
    if match is None or match[1] not in topics.topics:
        return search(topics, policy, wish, STAYS, scan_most, told, whole=True)
    place, offset = Partition(match[1], int(match[2])), int(match[3])
    layout = topics.layout()
    if place not in layout or not layout[place].begin <= offset < layout[place].end:
        return Found([], 0, 0, 1, 0.0, cut=False)
    with Scan(topics, {place: Span(offset, offset + 1)}) as scan:
        pasts = topics.pasts(layout, only_shown=True)
        letters = [(one, verdict) for one, verdict in judged(scan, wish, policy, pasts) if verdict]
        return Found(letters, len(letters), scan.read, 1, scan.rate, cut=False)
