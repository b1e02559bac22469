"""What a redrive would do, found by looking at every dead letter that is asked for; and the counts of one that is done.

Nothing is written and nobody is fenced: that is `redrive.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from sidecar.core.policy import Policy
from sidecar.core.record import Partition
from sidecar.dlq.letters import Eligibility, Letter, RedriveRequest, read_letter
from sidecar.dlq.redrive_course import read_from
from sidecar.dlq.redrive_history import RedriveHistory, eligibility, first_open
from sidecar.dlq.scan import Scan
from sidecar.dlq.topics import DlqTopics, Layout, Span

REFUSED = "refused"
"""Beside the verdicts: Kafka does not take the copy."""
MOST_KINDS = 1_000
OTHERS = "(others)"
SAMPLE = 10
"""Ids that are kept of each kind."""

Told = Callable[[Scan, int], None]
"""Told how far the reading is, and how many letters were met."""


class LetterGroup(NamedTuple):
    """Letters that are counted together."""

    verdict: str
    reason: str
    topic: str
    error: str = ""


@dataclass
class PlanCounts:
    """How many letters of each kind were met."""

    counts: Counter[LetterGroup] = field(default_factory=Counter)
    samples: dict[LetterGroup, list[str]] = field(default_factory=dict)
    """Of each kind the ids of the first."""
    complete: bool = True
    """Whether all was read that was there at the beginning."""
    scanned: int = 0

    def count(self, letter: Letter, verdict: str, error: str = "") -> None:
        """One more; `error` says why it is not redriven."""
        kind = LetterGroup(
            verdict, letter.reason, "" if letter.life is None else letter.life.topic, error or letter.fault
        )
        if len(self.counts) >= MOST_KINDS and kind not in self.counts:  # reasons may be anything, and as many
            kind = LetterGroup(verdict, OTHERS, "")
        self.counts[kind] += 1
        sample = self.samples.setdefault(kind, [])
        if len(sample) < SAMPLE:
            sample.append(letter.id)

    def of(self, verdict: str) -> int:
        """How many have this verdict."""
        return sum(count for kind, count in self.counts.items() if kind.verdict == verdict)


def why(kind: LetterGroup, most_redrives: int) -> str:
    """Why letters are not redriven; empty for those that are."""
    match kind.verdict:
        case Eligibility.QUARANTINED:
            return f"came back {most_redrives} times or more; --max-redrives takes more"
        case Eligibility.FORGOTTEN:
            return "so old that Kafka no longer knows whether it was redriven; --forgotten takes it too"
        case _:
            return kind.error


def to_read(
    topics: DlqTopics, layout: Layout, wish: RedriveRequest, pasts: Mapping[Partition, RedriveHistory]
) -> Layout:
    """The stretches in which the wish may still find something."""
    asked = topics.since(layout, wish.filter.since)
    return {place: _open(span, layout[place].begin, wish, pasts[place]) for place, span in asked.items()}


def _open(span: Span, begin: int, wish: RedriveRequest, past: RedriveHistory) -> Span:
    """The span from where the wish may find something, or a claim may go on; the partition begins at `begin`."""
    first = min(span.end, first_open(wish, past, span.begin))
    return span._replace(begin=max(begin, read_from(wish, past, first)))


def judged(
    scan: Scan, wish: RedriveRequest, policy: Policy, pasts: Mapping[Partition, RedriveHistory]
) -> Iterator[tuple[Letter, Eligibility | None]]:
    """Every record that is read, with what a redrive does with it."""
    for record in scan:
        letter = read_letter(record, policy)
        yield letter, eligibility(letter, wish, pasts[record.source])


def plan_redrive(topics: DlqTopics, policy: Policy, wish: RedriveRequest, most: int | None, told: Told) -> PlanCounts:
    """What a redrive of at most so many letters would do. Raises BrokerError, ContractError without a topic."""
    wish, layout = replace(wish, topics=policy.topics), topics.layout()
    pasts = topics.pasts(layout)
    tally = PlanCounts()
    with Scan(topics, to_read(topics, layout, wish, pasts)) as scan:
        ready = 0
        for letter, verdict in judged(scan, wish, policy, pasts):
            if verdict is not None:
                tally.count(letter, verdict)
                ready += verdict is Eligibility.READY
            told(scan, ready)
            if ready == most:
                break
        tally.complete, tally.scanned = scan.complete, scan.read
    return tally
