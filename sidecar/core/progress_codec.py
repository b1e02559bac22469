"""Progress as the metadata of a committed offset: one text that any later owner reads, whatever wrote it.

    metadata = "rc1" "." flags "." place "." done *( "." number ) [ "." unique ]

The fields stand in this order. Empty fields at the end are left out, and spaces behind the text mean nothing.

    rc1     the version of this form. `rc` and a greater number: a newer version wrote it, and only the offset counts
    flags   letters: `c` the owner gave the partition up in order, or has delivered nothing of it; `n` the policy topic
            has records about this partition (chunks, ranges) that a new owner must read before it delivers
    place   partition "-" offset "-" topic [ "-" cluster "-" id ]: the position that it was made for. `topic` is the
            CRC-32 of the topic's name, `cluster` and `id` are those of Kafka's ids (`LogId`), eight hexadecimal digits
            each. Without the last two no statement is made about the log
    done    the done offsets above the next one, compressed by zlib, as base64url; empty: there are none
    numbers deaths   crashes in a row
            mark     distance from the next offset to the record that is delivered alone
            reach    one more than the distance to the last offset that is released for delivery
            width    how many partitions the topic had when the group began to read it at the latest record
            time     epoch ms of the last record that was read of a level
            cycle    how many resets have moved the position of the partition
    unique  eight hexadecimal digits, only where `done` had to be cut, or where notes go with the progress, so that no
            two texts are the same

The bytes of `done` are counts of seven bits a byte, the lowest first, and a bitmap: how many pairs follow; the pairs
*so many open, so many done*, from the next offset on; how many offsets are open before the bitmap; the bitmap, whose
lowest bit is the first offset. The pairs are of the ranges that begin below the last `SPAN` / 2 offsets. A set within
`SPAN` has none.

Done offsets are distances from the next one. Tools that copy a group's offsets keep the metadata and change the offset
(MirrorMaker 2 translates it for another cluster), or give it to another partition. There the same bits name records
that were never delivered. So progress whose place is not the one where it was found counts as absent.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from reconsume.sidecar.core.offset_ranges import NONE, OffsetRanges, Range
from reconsume.sidecar.core.progress import SPAN, LogId, Progress
from reconsume.sidecar.core.record import Partition

NEEDED = 4_096
"""Bytes of metadata that each broker must take: Kafka's default of `offset.metadata.max.bytes`."""
LONGEST = NEEDED - 1
"""Characters: Python's client sends one more, a zero, which the broker counts (2.16, measured)."""
MOST_DEATHS = 9_999
"""Crashes in a row: the count stops here, because no setting asks for more."""
MOST_WIDTH = 99_999
"""Partitions: more than any topic has."""
MOST_AT = 9_999_999_999_999
"""Epoch ms of the year 2286: later timestamps are not kept."""
MOST_CYCLE = 9_999_999
"""Resets of one partition: one a second for four months."""
MOST_DISTANCE = 9_999_999_999_999
"""Offsets: as many as a partition gets in 300 years at a million a second."""
LONGEST_COUNT = 7
"""Bytes of the longest count."""
MOST_BYTES = SPAN // 8 + 16
"""Bytes of a done set: no more are written or read."""

_TAG, _CLEAN, _NOTES = "rc1", "c", "n"
_OURS = re.compile(r"rc[0-9]+")
_FLAGS = re.compile(r"[a-z]*")
_UNIQUE = re.compile(r"[0-9a-f]{8}")
_POSITION = re.compile(r"([0-9]{1,6})-([0-9]{1,19})-([0-9a-f]{8})(?:-([0-9a-f]{8})-([0-9a-f]{8}))?")


def encode(source: Partition, progress: Progress) -> str:
    """Return the metadata of a commit. It has at most `LONGEST` characters.

    The bounds of a tracker (`core/progress.py`) let no done set become too long. Only forged metadata, taken over with
    a partition, can make it so: then the furthest offsets are left out, which costs second deliveries.
    """
    done = OffsetRanges.of(progress.done).within(progress.next, progress.next + MOST_DISTANCE)
    unique = progress.unique
    while len(content := _content(progress.next, done)) > MOST_BYTES:
        done, unique = done.first_ranges(len(done.ranges) // 2), secrets.token_hex(4)
    packed = base64.urlsafe_b64encode(zlib.compress(content, 1)).decode() if content else ""
    flags = _CLEAN * progress.clean + _NOTES * progress.notes
    numbers = (
        str(min(progress.deaths, MOST_DEATHS) or ""),
        "" if progress.mark is None else _distance(progress.mark - progress.next),
        "" if progress.reach is None else _distance(progress.reach - progress.next + 1),
        "" if progress.width is None else str(min(progress.width, MOST_WIDTH)),
        "" if progress.last_at_ms is None or not 0 <= progress.last_at_ms <= MOST_AT else str(progress.last_at_ms),
        str(min(progress.cycle, MOST_CYCLE) or ""),
    )
    return ".".join((_TAG, flags, _position_of(source, progress), packed, *numbers, unique)).rstrip(".")


def decode(source: Partition, offset: int, metadata: str | None) -> Progress:
    """Return the progress in a committed offset.

    Metadata counts as absent if it is foreign, of another version, or made for another position. So does a broken part.
    """
    fields = _fields_of(metadata)
    # Any program may commit for a group: only our own form is believed, and the offset always (contract 7.3).
    if fields is None or _elsewhere(fields, source, offset):
        return Progress(offset, ours=False)
    deaths, mark, reach, width, last_at, cycle = fields.numbers
    distance, end = _number(mark, MOST_DISTANCE), _number(reach, MOST_DISTANCE)
    return Progress(
        offset,
        _parse_done(offset, fields.done) or NONE,
        _CLEAN in fields.flags,
        deaths=_number(deaths, MOST_DEATHS) or 0,
        mark=None if distance is None else offset + distance,
        reach=None if end is None else offset + end - 1,
        width=_number(width, MOST_WIDTH),
        last_at_ms=_number(last_at, MOST_AT),
        log=fields.log,
        cycle=_number(cycle, MOST_CYCLE) or 0,
        notes=_NOTES in fields.flags,
        unique=fields.unique,
    )


def unread(metadata: str | None) -> str:
    """Return why metadata of ours cannot be read, as a text for people; empty if it can be read or is not ours.

    The next offset is valid all the same. Done records above it are delivered again, and their failures are counted
    again. To guess at an unknown form could skip a record that is not done.
    """
    tag = (metadata or "").partition(".")[0].rstrip()
    if _OURS.match(tag) is None:
        return ""
    if tag != _TAG:
        return f"a newer version of Reconsume wrote it, in the form {tag[:12]!r}"
    if (fields := _fields_of(metadata)) is None:
        return "it does not say for which position it was made"
    return "its done set is broken" if _parse_done(0, fields.done) is None else ""


def is_ours(metadata: str | None) -> bool:
    """Return whether Reconsume has written the metadata of a committed offset, in whatever version."""
    return _OURS.match((metadata or "").partition(".")[0]) is not None


def misplaced(source: Partition, offset: int, metadata: str | None) -> str:
    """Return for which other position metadata of ours was made, as a text for people; empty if for this one."""
    fields = _fields_of(metadata)
    return "" if fields is None else _elsewhere(fields, source, offset)


# --- the fields -------------------------------------------------------------------------------------------------------


class _Fields(NamedTuple):
    flags: str
    position: tuple[int, int, str]
    log: LogId | None
    done: str
    numbers: tuple[str, ...]
    unique: str


def _position_of(source: Partition, progress: Progress) -> str:
    position = f"{source.number}-{progress.next}-{_digest(source.topic)}"
    return position if progress.log is None else "-".join((position, *progress.log))


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _fields_of(metadata: str | None) -> _Fields | None:
    """Return the parts of metadata in this form; None for any other."""
    tag, *fields = (metadata or "").rstrip().split(".")
    flags, position, done, *numbers = [*fields, *[""] * 9]
    match = _POSITION.fullmatch(position)
    if tag != _TAG or match is None or _FLAGS.fullmatch(flags) is None:
        return None
    number, offset, topic, cluster, ident = match.groups()
    log = None if cluster is None else LogId(cluster, ident)
    unique = numbers[6] if _UNIQUE.fullmatch(numbers[6]) else ""
    return _Fields(flags, (int(number), int(offset), topic), log, done, tuple(numbers[:6]), unique)


def _elsewhere(fields: _Fields, source: Partition, offset: int) -> str:
    """Return for which other position this was made, as a text for people; empty if for this one."""
    number, at, topic = fields.position
    if topic != _digest(source.topic):
        return "it was made for another topic"
    if (number, at) != (source.number, offset):
        return f"it was made for partition {number} at offset {at}, and is at offset {offset} of {source}"
    return ""


def _distance(distance: int) -> str:
    return str(distance) if 0 <= distance <= MOST_DISTANCE else ""


def _number(text: str, most: int) -> int | None:
    if not 1 <= len(text) <= 13 or not text.isascii() or not text.isdigit():
        return None
    return number if (number := int(text)) <= most else None


# --- the done set -----------------------------------------------------------------------------------------------------


def _content(start: int, done: OffsetRanges) -> bytes:
    """Return the bytes of a done set above `start`; none if it is empty."""
    if not (ranges := done.ranges):
        return b""
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


def _parse_done(start: int, text: str) -> OffsetRanges | None:
    """Return the done set; None if it is broken."""
    if not text:
        return NONE
    content = _unpacked(text)
    if content is None:
        return None
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
    """The counts at the beginning of a done set. `broken`: one was not complete, or too large."""

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


def _unpacked(text: str) -> bytes | None:
    """Return what the text holds; None if it is broken, or empty, which is never written."""
    try:
        packed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(packed, MOST_BYTES + 1)  # bounded: metadata may be a decompression bomb
    except (zlib.error, binascii.Error, ValueError):
        return None
    if not content or len(content) > MOST_BYTES or not unpacking.eof or unpacking.unused_data:
        return None  # only a complete body has a checksum: a part may claim offsets that are not done
    return content
