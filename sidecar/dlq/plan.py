"""Find out what a redrive would do, by reading every dead letter that it may take; count the letters by outcome.

Nothing is written and no other command is fenced here. The redrive itself is in `redriver.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.copies import with_copies
from reconsume.sidecar.dlq.letters import Eligibility, Letter, RedriveRequest, read_letter
from reconsume.sidecar.dlq.redrive_history import RedriveHistory, eligibility, first_open
from reconsume.sidecar.dlq.redriven_range import read_from
from reconsume.sidecar.dlq.scan import Scan
from reconsume.sidecar.dlq.topics import DlqTopics, Layout, Span, narrowed

REFUSED = "refused"
"""Used beside the values of Eligibility: Kafka does not accept the copy."""
MOST_KINDS = 1_000
OTHERS = "(others)"
SAMPLE = 10
"""Ids that are kept of each group of letters."""

Progress = Callable[[Scan, int], None]
"""Called with the scan, which knows its progress, and the number of letters found so far."""


class LetterGroup(NamedTuple):
    """The properties by which letters are counted together."""

    verdict: str
    reason: str
    topic: str
    error: str = ""


@dataclass
class PlanCounts:
    """The number of letters in each group."""

    counts: Counter[LetterGroup] = field(default_factory=Counter)
    samples: dict[LetterGroup, list[str]] = field(default_factory=dict)
    """The ids of the first letters of each group."""
    complete: bool = True
    """Whether every record was read that was there at the beginning."""
    scanned: int = 0

    def count(self, letter: Letter, verdict: str, error: str = "") -> None:
        """Count one letter; `error` says why it is not redriven."""
        kind = LetterGroup(
            verdict,
            letter.reason,
            "" if letter.retry_state is None else letter.retry_state.topic,
            error or letter.fault,
        )
        # Any reason is allowed, so there may be any number of groups.
        if len(self.counts) >= MOST_KINDS and kind not in self.counts:
            kind = LetterGroup(verdict, OTHERS, "")
        self.counts[kind] += 1
        sample = self.samples.setdefault(kind, [])
        if len(sample) < SAMPLE:
            sample.append(letter.id)

    def of(self, verdict: str) -> int:
        """Return how many letters have this verdict."""
        return sum(count for kind, count in self.counts.items() if kind.verdict == verdict)


def why(kind: LetterGroup, most_redrives: int) -> str:
    """Return why the letters of this group are not redriven; empty if they are redriven."""
    match kind.verdict:
        case Eligibility.QUARANTINED:
            return f"came back {most_redrives} times or more; --max-redrives takes more"
        case Eligibility.COPY:
            return "another dead letter with its id and attempt counts"
        case Eligibility.DISMISSED:
            return "dismissed by `settle --commit`"
        case Eligibility.FORGOTTEN:
            return "so old that Kafka no longer knows whether it was redriven; --forgotten takes it too"
        case _:
            return kind.error


def to_read(
    topics: DlqTopics, layout: Layout, request: RedriveRequest, pasts: Mapping[Partition, RedriveHistory]
) -> Layout:
    """Return the offsets in which the redrive may still find letters, by partition."""
    stretches = topics.since(layout, request.filter.since)
    open_ = {
        partition: _open(span, layout[partition].begin, request, pasts[partition])
        for partition, span in stretches.items()
    }
    return narrowed(open_, request.filter, topics.topics)


def _open(span: Span, begin: int, request: RedriveRequest, history: RedriveHistory) -> Span:
    """Return the part of the span where the redrive may find letters, or an earlier redriven range may be extended.

    `begin` is where the partition begins.
    """
    first = min(span.end, first_open(request, history, span.begin))
    return span._replace(begin=max(begin, read_from(request, history, first)))


def judged(
    scan: Scan, request: RedriveRequest, policy: Policy, pasts: Mapping[Partition, RedriveHistory]
) -> Iterator[tuple[Letter, Eligibility | None]]:
    """Yield every letter that is read, with what a redrive does with it; None if the filter does not select it."""
    for record in scan:
        letter = read_letter(record, policy)
        yield letter, eligibility(letter, request, pasts[record.source])


def plan_redrive(
    topics: DlqTopics,
    policy: Policy,
    request: RedriveRequest,
    most: int | None,
    progress: Progress,
    counts: PlanCounts | None = None,
) -> PlanCounts:
    """Return what a redrive of at most `most` letters would do, counted in `counts` if they are given.

    Raises BrokerError, and ContractError if a topic does not exist.
    """
    request, layout = replace(request, topics=policy.topics), topics.layout()
    pasts = with_copies(topics, policy, layout, topics.pasts(layout), progress)
    counts = counts or PlanCounts()
    with Scan(topics, to_read(topics, layout, request, pasts)) as scan:
        ready = 0
        for letter, verdict in judged(scan, request, policy, pasts):
            if verdict is not None:
                counts.count(letter, verdict)
                ready += verdict is Eligibility.READY
            progress(scan, ready)
            if ready == most:
                break
        counts.complete, counts.scanned = scan.complete, scan.read
    return counts
