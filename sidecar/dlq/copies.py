"""Find the dead letters that do not count, because another one has the same id, cycle and redrives.

A record dies once between two redrives. A UI that copies a dead letter back into the DLQ, edited or not, makes two
letters of one death, and so does whoever handles an old copy again. Redriven twice they would be delivered with one
Idempotency-Key and two values, and the service would keep either. So one of them counts and the others are *copies*
(contract 4.7):

- If one was redriven before, that one counts. Of several that the history covers it is the oldest: a later range of
  redriven offsets reaches over the copies of what was redriven.
- Otherwise the newest one counts, and an edit that names its author (RETRY_EDITED) counts before any that does not.

Which letters are copies depends on all others, so `DeadLetters.histories_with_copies` reads a whole layout first. It
keeps no ids and no values: 8 bytes for each letter, a hash of what names it (`LetterNames`). Only if some are equal
does it read the layout again, and keep 36 bytes for each of those (`ComparedLetters`). With more than `MOST_AT_ONCE`
letters it does so several times, each time for a part of the hashes. Letters of partitions that the layout leaves out
(without a leader) are not known to it.

Pure, and called on the thread that scans. A redrive calls it after it has fenced all others, so that nothing it looks
at is redriven meanwhile; what arrives later lies beyond its layout.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby, pairwise
from struct import Struct
from typing import NamedTuple

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.letters import Letter
from reconsume.topics.attempt import attempt_of
from reconsume.topics.dead_letter_headers import EDITED
from reconsume.topics.retry_headers import (
    LARGEST_LONG,
    ORIGIN_MESSAGE_ID,
    RETRY_CYCLE,
    RETRY_REDRIVES,
    Headers,
)

MOST_AT_ONCE = 1_000_000
"""Letters that one reading keeps in memory: 8 MB, and 36 MB if all of them are copies or have some."""
_ROW = Struct(">16sBQHQB")
"""Digest, edits, timestamp, number of the partition in the layout, offset, whether it was redriven. As bytes, the rows
of one digest sort as the letters count: the last one counts if none was redriven."""
_DIGEST = 16
_BUCKETS = 256
"""Hashes and rows are sorted in parts, so that sorting needs little memory of its own."""


def hash_of(headers: Headers | None) -> int:
    """Return a number that is the same for letters with the same id, cycle and redrives, in this process."""
    ours = dict(headers or ())
    counts = [(ours.get(name) or b"").lstrip(b"0") for name in (RETRY_CYCLE, RETRY_REDRIVES)]
    return hash((ours.get(ORIGIN_MESSAGE_ID), *counts))


class LetterNames:
    """The hashes of the letters that one of several readings looks at."""

    def __init__(self, readings: int, reading: int) -> None:
        self._readings, self._reading = readings, reading
        self._buckets = [array("q") for _ in range(_BUCKETS)]

    def add(self, headers: Headers | None) -> None:
        number = hash_of(headers)
        if (number >> 8) % self._readings == self._reading:
            self._buckets[number & (_BUCKETS - 1)].append(number)

    def shared(self) -> SharedNames:
        """Return the hashes that more than one letter has."""
        shared = array("q")
        for bucket in self._buckets:
            ordered = sorted(bucket)
            pairs = (one for one, after in pairwise(ordered) if one == after)
            shared.extend(one for one, _ in groupby(pairs))
        return SharedNames(array("q", sorted(shared)))


class SharedNames(NamedTuple):
    """A set of hashes, in order, 8 bytes each."""

    numbers: array[int]

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_left(self.numbers, number)
        return at < len(self.numbers) and self.numbers[at] == number

    def __bool__(self) -> bool:
        return bool(self.numbers)


class ComparedLetters:
    """Letters that are compared with each other. Add all of them, then ask for the copies."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        """Compare letters of these partitions."""
        self._partitions = partitions
        self._numbers = {partition: number for number, partition in enumerate(partitions)}
        self._buckets = [bytearray() for _ in range(_BUCKETS)]

    def add(self, letter: Letter, *, is_redriven: bool) -> None:
        """Add a letter. `is_redriven`: whether the history covers it."""
        if letter.retry_state is None:
            return  # nothing names it
        named = f"{attempt_of(letter.retry_state).series} {letter.id}"
        digest = blake2b(named.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()
        edits, timestamp, partition, offset = rank_of(letter)
        self._buckets[digest[0]] += _ROW.pack(digest, edits, timestamp, self._numbers[partition], offset, is_redriven)

    def copies(self) -> Iterator[tuple[Partition, int, bool]]:
        """Yield each copy: its partition, its offset, and whether the letter that counts was redriven."""
        for bucket in self._buckets:
            rows = sorted(bytes(bucket[at : at + _ROW.size]) for at in range(0, len(bucket), _ROW.size))
            for _, equal in groupby(rows, key=lambda row: row[:_DIGEST]):
                letters = [_ROW.unpack(row)[2:] for row in equal]
                redriven = min((letter for letter in letters if letter[3]), default=None)
                counts = letters[-1] if redriven is None else redriven
                yield from (
                    (self._partitions[number], offset, redriven is not None)
                    for _, number, offset, _ in letters
                    if (number, offset) != counts[1:3]
                )


def rank_of(letter: Letter) -> tuple[int, int, Partition, int]:
    """Return by what letters of one attempt are compared: of those that were not redriven, the greatest counts."""
    record = letter.record
    edits = sum(name == EDITED for name, _ in record.headers or ())
    return min(edits, 255), min(max(0, record.timestamp), LARGEST_LONG), record.source, record.offset
