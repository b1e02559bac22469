"""The promise of order over long waits, judged by what the service saw: the records of a key, one behind the other.

A line is the records of one key and partition, in the order of their offsets. Times are epoch ms of one machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.soak.pod import Stood
from tests.support.proof.ledger import BROKEN, FAILED, TOOK, Delivery

WAKES = 2_000
"""ms. What a pod sends so soon after it stood still may be out of order: it has not looked at its clock yet."""


@dataclass(frozen=True)
class Story:
    """What is known of the records of a group in the end."""

    lines: Mapping[str, Sequence[str]]
    """The ids of each line, by a name for it."""
    deliveries: Mapping[str, Sequence[Delivery]]
    ended: Mapping[str, int] = field(default_factory=dict)
    """When a record became a dead letter, or was ended by a person."""
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The counts of the copies of each record that failed, as they lie in the queue."""
    stood: Sequence[Stood] = ()

    def awake(self, ident: str) -> list[Delivery]:
        """The deliveries of a record, without those of a pod that had just stood still."""
        return [one for one in self.deliveries.get(ident, ()) if not self.half_awake(one)]

    def half_awake(self, delivery: Delivery) -> bool:
        """Whether its pod had just stood still."""
        pod = delivery.path.rpartition("/")[2]
        return any(one.pod == pod and one.since <= delivery.received <= one.until + WAKES for one in self.stood)

    def end_of(self, ident: str) -> int | None:
        """When the record was done, dead or settled first; None if it never was."""
        ended = [self.ended[ident]] if ident in self.ended else []
        taken = [done for one in self.awake(ident) if (done := _taken(one)) is not None]
        late = [done for one in self.deliveries.get(ident, ()) if (done := _taken(one)) is not None]
        return min([*ended, *taken] or late, default=None)


def violations(story: Story) -> Iterator[str]:
    """Every breach of the promise."""
    for name, line in story.lines.items():
        yield from lost(story, line)
        yield from overtaken(story, name, line)
        yield from together(story, name, line)
    yield from miscounted(story)


def lost(story: Story, line: Sequence[str]) -> Iterator[str]:
    """Each record ends."""
    for ident in line:
        if story.end_of(ident) is None:
            yield f"order, lost: {ident} was neither taken, nor dead-lettered, nor settled"


def overtaken(story: Story, name: str, line: Sequence[str]) -> Iterator[str]:
    """No record is delivered before each earlier one of its key is done, dead or settled."""
    reached, earlier = 0, list[str]()
    for ident in line:
        first = min(story.awake(ident), key=lambda one: one.received, default=None)
        if first is not None and first.received < reached:
            for last in earlier:
                end = story.end_of(last)
                if end is not None and end > first.received and not _took_before(story, last, first):
                    ms = end - first.received
                    yield f"order, overtaken: {ident} of {name} was delivered {ms} ms before {last} had ended"
        reached = max(reached, story.end_of(ident) or 0)
        earlier.append(ident)


def _took_before(story: Story, ident: str, later: Delivery) -> bool:
    """Whether the pod of a delivery had delivered this record before, and it was taken: also as it had stood still."""
    taken = [done for one in story.deliveries.get(ident, ()) if one.path == later.path and (done := _taken(one))]
    return min(taken, default=later.received + 1) <= later.received


def together(story: Story, name: str, line: Sequence[str]) -> Iterator[str]:
    """No two requests of a key are with the service at once."""
    sent = sorted((one for ident in line for one in story.awake(ident)), key=lambda one: one.received)
    answered, other = 0, ""
    for one in sent:
        if one.received < answered:
            yield f"order, together: {one.id} of {name} came {answered - one.received} ms before {other} was answered"
        if (one.answered or 0) > answered:
            answered, other = one.answered or 0, one.id


def miscounted(story: Story) -> Iterator[str]:
    """The counts of a record are 1, 2, 3 and so on, and each of them is of a delivery that failed."""
    for ident, counts in story.counts.items():
        if sorted(set(counts)) != list(range(1, max(counts) + 1)):
            yield f"order, counted: {ident} was counted {sorted(counts)}"
        failed = {one.times for one in story.deliveries.get(ident, ()) if one.means in (FAILED, BROKEN, "")}
        if missing := {count - 1 for count in counts} - failed:
            yield f"order, counted: {ident} was counted for {sorted(missing)}, which did not fail"


def _taken(delivery: Delivery) -> int | None:
    return delivery.answered if delivery.means == TOOK else None
