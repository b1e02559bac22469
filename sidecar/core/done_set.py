"""A done set as text, in two forms: bytes, compressed, as base64.

Near: a bitmap whose first bit is the next offset. Far: so many pairs of counts (*so many open, so many done*), then how
many are open before the bitmap, then the bitmap of the rest. The pairs are of the ranges that begin below the last
`SPAN` / 2 offsets; a set within SPAN has none. A count has seven bits a byte, the lowest first.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator

from reconsume.sidecar.core.offset_ranges import OffsetRanges, Range
from reconsume.sidecar.core.progress_bounds import SPAN

MOST_DISTANCE = 9_999_999_999_999
"""Offsets: as many as a partition gets in 300 years at a million a second."""
LONGEST_COUNT = 7
"""Bytes of the longest count."""
MOST_BYTES = SPAN // 8 + 16
"""Bytes of a far done set: no more are written or read."""


def render_done(start: int, done: OffsetRanges, *, far: bool) -> str | None:
    """Return a done set above `start` as text, empty if it is; None if it is longer than any that is read."""
    if not done.ranges:
        return ""
    content = _far_bytes(start, done) if far else _bitmap(start, done.ranges)
    if len(content) > (MOST_BYTES if far else SPAN // 8):
        return None
    return base64.urlsafe_b64encode(zlib.compress(content, 1)).decode()


def parse_done(start: int, text: str, *, far: bool) -> OffsetRanges | None:
    """Return the done set; None if it is broken."""
    if not text:
        return OffsetRanges()
    content = _unpacked(text, MOST_BYTES if far else SPAN // 8)
    if content is None:
        return None
    return _far_ranges(start, content) if far else OffsetRanges.of(_offsets(start, content))


def _far_bytes(start: int, done: OffsetRanges) -> bytes:
    ranges = done.ranges
    # Near the end most offsets are done and some are not: a bit each. Far below few are open: two counts a range.
    near = 0 if done.end - start <= SPAN else done.end - SPAN // 2
    pairs = [one for one in ranges if one[0] < near]
    rest, at = ranges[len(pairs) :], pairs[-1][1] if pairs else start
    counts = [len(pairs), *_counts(start, pairs), rest[0][0] - at if rest else 0]
    return b"".join(map(_varint, counts)) + (_bitmap(rest[0][0], rest) if rest else b"")


def _counts(start: int, ranges: Iterable[Range]) -> Iterator[int]:
    for first, end in ranges:
        yield first - start
        yield end - first
        start = end


def _far_ranges(start: int, content: bytes) -> OffsetRanges | None:
    """Return the done offsets; None if a count is not complete, or more than an offset can be."""
    numbers = _Numbers(content)
    ranges, at = list[Range](), start
    for _ in range(numbers.next(MOST_BYTES)):
        gap, length = numbers.next(MOST_DISTANCE), numbers.next(MOST_DISTANCE)
        ranges.append((at + gap, at + gap + length))
        at += gap + length
        if numbers.broken or at - start > MOST_DISTANCE:
            return None
    first = at + numbers.next(MOST_DISTANCE)
    bitmap = content[numbers.at :]
    if numbers.broken or len(bitmap) > SPAN // 8:
        return None
    return OffsetRanges(ranges).union(OffsetRanges.of(_offsets(first, bitmap)))


class _Numbers:
    """The counts at the beginning of a far done set. `broken`: one was not complete, or too large."""

    def __init__(self, content: bytes) -> None:
        self.at, self.broken = 0, False
        self._content = content

    def next(self, most: int) -> int:
        """Return the next count; any number if it is broken."""
        number = shift = 0
        for byte in self._content[self.at : self.at + LONGEST_COUNT]:
            self.at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                self.broken |= number > most
                return number
        self.broken = True
        return 0


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(128 | number & 127)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _bitmap(start: int, ranges: tuple[Range, ...]) -> bytes:
    """Return a bit for each offset from `start` on, the lowest first: 1 is done."""
    bits = bytearray((ranges[-1][1] - start + 7) // 8)
    for first, end in ranges:
        bit, last = first - start, end - start
        while bit < last:
            if bit & 7 == 0 and last - bit >= 8:
                whole = (last - bit) // 8
                bits[bit >> 3 : (bit >> 3) + whole] = b"\xff" * whole
                bit += whole * 8
            else:
                bits[bit >> 3] |= 1 << (bit & 7)
                bit += 1
    return bytes(bits)


def _offsets(start: int, bits: bytes) -> Iterator[int]:
    return (start + i for i in range(len(bits) * 8) if bits[i >> 3] >> (i & 7) & 1)


def _unpacked(text: str, most: int) -> bytes | None:
    """Return what the text holds; None if it is broken, or empty, which is never written."""
    try:
        packed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(packed, most + 1)  # bounded: metadata may be a decompression bomb
    except (zlib.error, binascii.Error, ValueError):
        return None
    if not content or len(content) > most or not unpacking.eof or unpacking.unused_data:
        return None  # only a complete body has a checksum: a part may claim offsets that are not done
    return content
