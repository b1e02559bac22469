"""Progress as the metadata of a committed offset: the done offsets, and a few numbers behind them.

There are two forms. `rc1` has the done set as a bitmap, up to SPAN from the next offset. `rc2` has it as ranges, at any
distance; 0.2 and earlier cannot read it, so it is written only where the bitmap cannot say the same.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator

from sidecar.core.offset_ranges import OffsetRanges, Range
from sidecar.core.progress import SPAN, Progress

_NEAR, _FAR = "rc1", "rc2"
_HEADS = tuple(form + mark for form in (_NEAR, _FAR) for mark in "co")
FAR_PROGRESS = "rc2"
"""The name of the newer form among the forms that an instance says to read (`reads` in its heartbeat)."""
_OURS = re.compile(r"rc[0-9]+")
"""The start of the tag of any version: `rc`, and a number that rises when older versions cannot read what follows."""
_CLEAN, _OPEN = "c", "o"
MOST_DEATHS = 9_999
"""Crashes in a row: the count stops here, because no setting asks for more."""
MOST_WIDTH = 99_999
"""Partitions: more than any topic has."""
MOST_AT = 9_999_999_999_999
"""Epoch ms of the year 2286: later timestamps are not kept."""
MOST_DISTANCE = 9_999_999_999_999
"""Offsets: as many as a partition gets in 300 years at a million a second."""
MOST_BYTES = 8_192
"""Bytes of all numbers of the ranges. Ours have 2 800 at most (MOST_RANGES)."""
LONGEST = 4_096
"""Characters of the metadata: Kafka's default of `offset.metadata.max.bytes`. Our longest form has 2 900."""
STAMP_AT = 7
"""The position of the stamp (`progress_stamp.py`) among the parts."""


def encode(progress: Progress, stamp: str = "", most: int = LONGEST) -> str:
    """Return the metadata of a commit, of `most` characters at most.

    It is a tag, the clean mark, a dot, and the done set, compressed. Then follow, each after a dot: the
    crashes, the distances of mark and reach from the next offset, the width, the time of the last record, and the
    stamp. Empty parts at the end are left out.

    The furthest offsets are left out where `most` is too little for all. That can only cost a second delivery, never a
    record. Where `most` is too little for the numbers too, all is left out.
    """
    done = OffsetRanges.of(progress.done)
    done = done.within(progress.next, done.end)
    far = done.end - progress.next > SPAN
    head = f"{_FAR if far else _NEAR}{_CLEAN if progress.clean else _OPEN}."
    tail = _numbers(progress, stamp, MOST_DISTANCE if far else SPAN)
    if len(head) + len(tail) > most:
        return ""
    body = _ranges_text if far else _bitmap_text
    return f"{head}{body(progress.next, done, most - len(head) - len(tail))}{tail}"


def _bitmap_text(start: int, done: OffsetRanges, room: int) -> str:
    """Return the bitmap of the done set as text: all of it, or its beginning if that alone fits."""
    bits = 0
    for first, end in done.ranges:
        bits |= ((1 << (end - first)) - 1) << (first - start)
    packed = bits.to_bytes(SPAN // 8, "little").rstrip(b"\0")
    while packed:
        text = _text(packed)
        if len(text) <= room:
            return text
        packed = packed[: len(packed) * 3 // 4].rstrip(b"\0")
    return ""


def _ranges_text(start: int, done: OffsetRanges, room: int) -> str:
    """Return the ranges of the done set as text, or the first ones if these alone fit.

    Of each range: the open offsets before it and its done ones, as numbers of seven bits a byte, the lowest first.
    """
    ranges = done.ranges
    while ranges:
        text = _text(b"".join(_varint(count) for count in _counts(start, ranges)))
        if len(text) <= room:
            return text
        ranges = ranges[: len(ranges) * 3 // 4]
    return ""


def _counts(start: int, ranges: tuple[Range, ...]) -> Iterator[int]:
    for first, end in ranges:
        yield first - start
        yield end - first
        start = end


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(128 | number & 127)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _text(packed: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(packed, 1)).decode()


def _numbers(progress: Progress, stamp: str, most: int) -> str:
    deaths = str(min(progress.deaths, MOST_DEATHS) or "")
    mark = "" if progress.mark is None else _distance(progress.mark - progress.next, most)
    reach = "" if progress.reach is None else _distance(progress.reach - progress.next + 1, most)
    width = "" if progress.width is None else str(min(progress.width, MOST_WIDTH))
    last_at = str(progress.last_at) if progress.last_at is not None and 0 <= progress.last_at <= MOST_AT else ""
    return f".{deaths}.{mark}.{reach}.{width}.{last_at}.{stamp}".rstrip(".")


def _distance(distance: int, most: int) -> str:
    return str(distance) if 0 <= distance <= most else ""


def decode(offset: int, metadata: str | None) -> Progress:
    """Return the progress in a committed offset. Foreign metadata, or a broken part of it, counts as absent."""
    head, _, rest = (metadata or "").partition(".")
    if head not in _HEADS:
        return Progress(offset, ours=False)
    body, _, rest = rest.partition(".")
    numbers = [*rest.split("."), *[""] * 4]  # a newer version may have written more parts
    most = MOST_DISTANCE if head.startswith(_FAR) else SPAN
    mark, reach = _number(numbers[1], most), _number(numbers[2], most)
    return Progress(
        offset,
        _done(head, body, offset) or OffsetRanges(),
        head.endswith(_CLEAN),
        deaths=_number(numbers[0], MOST_DEATHS) or 0,
        mark=None if mark is None else offset + mark,
        reach=None if reach is None else offset + reach - 1,
        width=_number(numbers[3], MOST_WIDTH),
        last_at=_number(numbers[4], MOST_AT),
    )


def unread(metadata: str | None) -> str:
    """Return why metadata of ours cannot be read, as a text for people; empty if it can be read or is not ours.

    The next offset is valid all the same. Done records above it are delivered again, and their failures are counted
    again. To guess at an unknown form could skip a record that is not done.
    """
    head, _, rest = (metadata or "").partition(".")
    if _OURS.match(head) is None:
        return ""
    if head not in _HEADS:
        return f"a newer version of Reconsume wrote it, in the form {head[:12]!r}"
    body = rest.partition(".")[0]
    return "its done set is broken" if _done(head, body, 0) is None else ""


def _number(text: str, most: int) -> int | None:
    if not 1 <= len(text) <= 13 or not text.isascii() or not text.isdigit():
        return None
    return number if (number := int(text)) <= most else None


def _done(head: str, body: str, start: int) -> OffsetRanges | None:
    """Return the done set of a body; None if it is broken."""
    if not body:
        return OffsetRanges()
    far = head.startswith(_FAR)
    packed = _bytes(body, MOST_BYTES if far else SPAN // 8)
    if packed is None:
        return None
    ranges = _ranges_of(packed, start) if far else _bit_ranges(packed, start)
    return None if ranges is None else OffsetRanges(ranges)


def _bit_ranges(bits: bytes, start: int) -> list[Range]:
    return [(start + i, start + i + 1) for i in range(len(bits) * 8) if bits[i >> 3] >> (i & 7) & 1]


def _ranges_of(packed: bytes, start: int) -> list[Range] | None:
    """Return the ranges; None if a number is not complete, or more than an offset can be."""
    counts, number, shift = list[int](), 0, 0
    for byte in packed:
        number |= (byte & 127) << shift
        shift += 7
        if number > MOST_DISTANCE or shift > 49:
            return None
        if byte < 128:
            counts.append(number)
            number = shift = 0
    if shift or len(counts) % 2:
        return None
    ranges, at = list[Range](), start
    for still_open, done in zip(counts[::2], counts[1::2], strict=True):
        ranges.append((at + still_open, at + still_open + done))
        at += still_open + done
    return ranges if at - start <= MOST_DISTANCE else None


def _bytes(body: str, most: int) -> bytes | None:
    """Return what the text holds; None if it is broken, or empty, which is never written."""
    try:
        packed = base64.b64decode(body.encode("ascii"), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(packed, most + 1)  # bounded: metadata may be a decompression bomb
    except (zlib.error, binascii.Error, ValueError):
        return None
    if not content or len(content) > most or not unpacking.eof or unpacking.unused_data:
        return None  # only a complete body has a checksum: a part may claim offsets that are not done
    return content
