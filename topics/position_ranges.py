"""What the resets of a partition's position have left: which records are in which cycle, and what is superseded. Pure.

The owner of a main partition writes it in the transaction that moves the position, as the record
`reset/<topic>:<partition>` on partition 1 of the policy topic. So whoever reads it knows exactly what was moved.

- A reset backwards has a *range*: from its target to the first offset that the owner had not begun. The records in it
  are delivered again, in the cycle of the range. Where ranges overlap, the greatest cycle counts.
- A copy or a dead letter of a record in a range is *superseded* if its cycle is lower than that of the range. Nothing
  delivers it any more: the record is delivered again anyway.
- A reset forwards has no range. It names the offsets that it has skipped.

A record is believed only about the topic whose id it names (`topic`): a recreated topic has had no reset.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, TypeAlias

import msgspec

from reconsume.topics import versions
from reconsume.topics.partition import Partition

RESET = b"reset/"
"""The prefix of the key, before topic and partition."""
MOST_RANGES = 16
"""Ranges of a partition. One more reset is refused."""
MOST_RESETS = 64
"""Ids of resets that are kept. A request has no effect after an hour, so an older id never comes again."""
KEEP_MS = 40 * 86_400_000
"""ms for which a range is kept at least: longer than dead letters and levels keep a copy."""
BY_RESET = "by-reset"
"""The reason of the event that ends a superseded copy."""

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_NAME = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(0|[1-9][0-9]{0,9})")


class ResetRange(msgspec.Struct, frozen=True):
    """The offsets from `start` up to `end`, which are in `cycle` since the time `at` (epoch ms)."""

    start: Long
    end: Long
    cycle: Long
    at: Long


class PartitionResets(msgspec.Struct, frozen=True, omit_defaults=True):
    """All resets of one partition.

    `topic`: the id of its topic, as digests (`LogId.topic`). `cycle`: the last one. `ranges`: in the order in which
    they were made. `resets`: the ids of the resets that were carried out, the last one at the end. `skipped`: the
    offsets that the last reset has skipped, each from its first one up to the end; empty if it went backwards.
    """

    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    cycle: Long = 0
    ranges: Annotated[tuple[ResetRange, ...], msgspec.Meta(max_length=MOST_RANGES)] = ()
    resets: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], ...], msgspec.Meta(max_length=MOST_RESETS)
    ] = ()
    skipped: tuple[tuple[Long, Long], ...] = ()
    v: int = 1

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """Yield the offsets that ranges cover, without overlaps: from where to where, and in which cycle."""
        for start, end in pairwise(sorted({at for one in self.ranges for at in (one.start, one.end)})):
            if cycle := self.cycle_of(start):
                yield start, end, cycle

    @property
    def last_reset(self) -> str:
        """The id of the last reset; empty if there was none."""
        return self.resets[-1] if self.resets else ""

    def cycle_of(self, offset: int) -> int:
        """Return the cycle in which the record at an offset is delivered; 0 if no range covers it."""
        return max((one.cycle for one in self.ranges if one.start <= offset < one.end), default=0)

    def with_range(self, added: ResetRange) -> tuple[ResetRange, ...]:
        """Return the ranges with one more. Those that lie inside it are left out, and those that are old."""
        kept = [
            one
            for one in self.ranges
            if not (added.start <= one.start and one.end <= added.end) and one.at > added.at - KEEP_MS
        ]
        return (*kept, added)


class ResetNote(msgspec.Struct, frozen=True):
    """The resets of a partition, as partition 1 of the policy topic has them. `resets`: None if they were deleted."""

    partition: Partition
    resets: PartitionResets | None


Resets: TypeAlias = Mapping[Partition, PartitionResets]
"""The resets of a group, by main partition; most groups have none."""

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(PartitionResets)


_AS_LIBRDKAFKA = str.maketrans("-_", "+/")


def topic_digest(topic_id: str) -> str:
    """Return the digest by which notes name a topic (`LogId.topic`). `topic_id`: as any client of Kafka gives it.

    librdkafka writes an id in base64 with `+` and `/`, Java with `-` and `_`: half of all ids have one of these.
    """
    return f"{zlib.crc32(topic_id.translate(_AS_LIBRDKAFKA).encode()):08x}"


def is_superseded(resets: Resets, record_id: str, cycle: int) -> bool:
    """Return whether a copy or dead letter of the record `topic:partition:offset` is of an older cycle than its range.

    `cycle`: that of the copy. `resets`: those of the topics as they are now.
    """
    if not resets:
        return False
    try:
        topic, number, offset = record_id.rsplit(":", 2)
        known = resets.get(Partition(topic, int(number)))
        return known is not None and known.cycle_of(int(offset)) > cycle
    except ValueError:  # the id is of an event or a row, where any text may be
        return False


def reset_key(partition: Partition) -> bytes:
    """Return the key of the record about a partition's resets."""
    return RESET + f"{partition.topic}:{partition.number}".encode()


def render_resets(resets: PartitionResets) -> bytes:
    """Return the record's value, as JSON."""
    return _ENCODER.encode(resets)


def read_resets(key: bytes, value: bytes | None) -> ResetNote | str:
    """Return what a record with such a key says, or why it says nothing, as one sentence. Never raises."""
    match = _NAME.fullmatch(key, len(RESET))
    if match is None or not key.startswith(RESET) or int(match[2]) > 2**31 - 1:
        return "the key names no partition"
    partition = Partition(match[1].decode(), int(match[2]))
    if value is None:
        return ResetNote(partition, None)
    resets = versions.decoded(_DECODER, value, f"the resets of {partition} are")
    return resets if isinstance(resets, str) else ResetNote(partition, resets)
