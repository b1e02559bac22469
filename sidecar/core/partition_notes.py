"""What is noted of one partition in the policy topic, as its owner has it: what was settled before its turn.

A value of `Offsets` (`partition.py`); `NoteKeeper` (`notes.py`) reads and writes it. Pure.
"""

from __future__ import annotations

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import Record
from reconsume.topics.owner_notes import CHUNK


class PartitionNotes:
    """What is noted of one partition.

    `is_unread`: whether a former owner's notes are to be read before anything of it is fetched. `settled`: the bitmaps
    of what was settled early, by the number of the chunk. `coming`: what was settled early and is on its way into
    Kafka. `obsolete`: chunks in the policy topic that mean nothing any more. `stale`: those that are to be written
    again.

    Invariant: what is on its way was not settled before.
    """

    __slots__ = ("coming", "is_unread", "obsolete", "settled", "stale")

    def __init__(self, *, is_unread: bool = False) -> None:
        self.is_unread = is_unread
        self.settled: dict[int, bytearray] = {}
        self.coming: dict[int, Record] = {}
        self.obsolete: set[int] = set()
        self.stale: set[int] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is noted, nor to be."""
        return not (self.is_unread or self.settled or self.coming or self.obsolete or self.stale)

    def has(self, offset: int) -> bool:
        """Return whether Kafka knows that the record at `offset` was settled early."""
        bits = self.settled.get(offset // CHUNK)
        return bits is not None and bool(bits[offset % CHUNK >> 3] >> (offset & 7) & 1)

    def add(self, offset: int) -> None:
        """Note that Kafka knows it now."""
        self.settled.setdefault(offset // CHUNK, bytearray(CHUNK // 8))[offset % CHUNK >> 3] |= 1 << (offset & 7)

    def remain(self, next_offset: int) -> bool:
        """Return whether a new owner must read notes, if the partition's progress is at `next_offset`."""
        return self.is_unread or bool(self.coming) or any(last_of(*one) >= next_offset for one in self.settled.items())

    def passed(self, next_offset: int) -> list[int]:
        """Return the chunks that mean nothing once the partition's progress is at `next_offset`."""
        passed = [number for number, bits in self.settled.items() if last_of(number, bits) < next_offset]
        return [*passed, *self.obsolete]

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not any(map(self.has, self.coming)), "what is on its way was not settled before")


def last_of(number: int, bits: bytearray) -> int:
    """Return the last offset of a chunk that was settled."""
    content = bits.rstrip(b"\0")
    return number * CHUNK + (len(content) - 1) * 8 + content[-1].bit_length() - 1 if content else -1
