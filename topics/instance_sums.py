"""What an instance's heartbeat says of its last minutes: failures, new dead letters, and how long records wait.

`doctor` adds up what the running instances say. A heartbeat is read by every instance of the group, so the sums are
bounded (`bounded`): what is worst comes first, and how much was left out is said. They are as untrusted as any
record (`policy_record.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, TypeAlias, TypeVar

import msgspec

LARGEST = 1_200
"""Bytes of the sums in a heartbeat, which has 2 KiB (`policy_record.fitted`)."""
FAILURES_MS = 5 * 60_000
"""ms over which failures are counted."""
DEAD_LETTERS_MS = 15 * 60_000
"""ms over which new dead letters are counted."""
MOST_REASONS = 5
"""Reasons that are named for a topic; the others are `other`."""
OTHER = "other"
MOST_TOPICS = 64

T = TypeVar("T")
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=300)]
Reasons: TypeAlias = Annotated[dict[Name, Count], msgspec.Meta(max_length=MOST_REASONS + 1)]


class TopicFailures(msgspec.Struct, frozen=True):
    """Attempts of one main topic in the last five minutes, how many of them failed, and why."""

    topic: Name
    attempts: Count
    failed: Count
    reasons: Reasons


class TopicDeadLetters(msgspec.Struct, frozen=True):
    """New dead letters of one main topic in the last 15 minutes, by reason."""

    topic: Name
    reasons: Reasons


class TopicLag(msgspec.Struct, frozen=True):
    """How long (ms) the oldest undelivered record of one topic waits, in the partitions that the instance owns.

    `next`: the same of the partition that comes second; None if the instance owns one partition. `grows`: it has
    waited longer than a minute before, by more than half a minute. `why`: the word for why that record is not
    delivered; empty if none waits.
    """

    topic: Name
    partition: Count
    oldest: Count
    next: Count | None
    grows: bool
    why: Name = ""


class InstanceSums(msgspec.Struct, frozen=True):
    """The sums of one instance. `at`: epoch ms. `omitted`: how many topics did not fit. `parked`: keys that it owns and
    that are parked."""

    at: Count
    failures: Annotated[list[TopicFailures], msgspec.Meta(max_length=MOST_TOPICS)] = []
    dead_letters: Annotated[list[TopicDeadLetters], msgspec.Meta(max_length=MOST_TOPICS)] = []
    lag: Annotated[list[TopicLag], msgspec.Meta(max_length=MOST_TOPICS)] = []
    omitted: Count = 0
    parked: Count = 0


def top(reasons: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the most frequent reasons, and all others as `other`."""
    ordered = sorted(reasons, key=lambda item: -item[1])
    named, rest = dict(ordered[:MOST_REASONS]), sum(count for _, count in ordered[MOST_REASONS:])
    if rest:
        named[OTHER] = named.get(OTHER, 0) + rest
    return named


def bounded(
    at: int,
    failures: Iterable[TopicFailures],
    dead_letters: Iterable[TopicDeadLetters],
    lag: Iterable[TopicLag],
    parked: int = 0,
) -> InstanceSums:
    """Return the sums with what fits, the worst of each kind first."""
    room = _Room(LARGEST - len(_ENCODER.encode(InstanceSums(at, omitted=2**63 - 1, parked=2**63 - 1))))
    # Each kind has a third of the room, and what those before it have left.
    worst = room.fill(sorted(failures, key=lambda one: -one.failed), room.size // 3)
    newest = room.fill(sorted(dead_letters, key=lambda one: -sum(one.reasons.values())), room.size // 2)
    oldest = room.fill(sorted(lag, key=lambda one: -one.oldest), room.size)
    return InstanceSums(at, worst, newest, oldest, room.omitted, parked)


class _Room:
    """The bytes (`size`) that topics of some sums may still take."""

    def __init__(self, size: int) -> None:
        self.size, self.omitted = size, 0

    def fill(self, topics: Sequence[T], share: int) -> list[T]:
        """Return the first topics that fit in `share` bytes, and count the others."""
        taken: list[T] = []
        for topic in topics[:MOST_TOPICS]:
            size = len(_ENCODER.encode(topic)) + 1
            if size > share:
                break
            taken.append(topic)
            share, self.size = share - size, self.size - size
        self.omitted += len(topics) - len(taken)
        return taken


_ENCODER = msgspec.json.Encoder()
