"""Progress as the metadata of a committed offset: a bitmap of the done offsets, and a few numbers behind it."""

from __future__ import annotations

import base64
import binascii
import re
import zlib

from sidecar.core.progress import SPAN, Progress

_TAG = "rc1"
_OURS = re.compile(r"rc[0-9]+")
"""The start of the tag of any version: `rc`, and a number that rises when older versions cannot read what follows."""
_CLEAN, _OPEN = "c", "o"
MOST_DEATHS = 9_999
"""Crashes in a row: the count stops here, because no setting asks for more."""
MOST_WIDTH = 99_999
"""Partitions: more than any topic has."""
MOST_AT = 9_999_999_999_999
"""Epoch ms of the year 2286: later timestamps are not kept."""
LONGEST = 4_096
"""Characters of the metadata: Kafka's default of `offset.metadata.max.bytes`. Our longest form has 2 900."""
STAMP_AT = 7
"""The position of the stamp (`progress_stamp.py`) among the parts."""


def encode(progress: Progress, stamp: str = "", most: int = LONGEST) -> str:
    """Return the metadata of a commit, of `most` characters at most.

    It is a tag, the clean mark, a dot, and the done set as a compressed bitmap. Then follow, each after a dot: the
    crashes, the distances of mark and reach from the next offset, the width, the time of the last record, and the
    stamp. Empty parts at the end are left out.

    Offsets further off than `SPAN` are left out, and so are the furthest ones where `most` is too little for all. That
    can only cost a second delivery, never a record. Where `most` is too little for the numbers too, all is left out.
    """
    head, tail = f"{_TAG}{_CLEAN if progress.clean else _OPEN}.", _numbers(progress, stamp)
    if len(head) + len(tail) > most:
        return ""
    return f"{head}{_body(progress, most - len(head) - len(tail))}{tail}"


def _body(progress: Progress, room: int) -> str:
    """Return the bitmap of the done set as text: all of it, or its beginning if that alone fits."""
    bits = bytearray(SPAN // 8)
    for offset in progress.done:
        bit = offset - progress.next
        if 0 <= bit < SPAN:
            bits[bit >> 3] |= 1 << (bit & 7)
    packed = bits.rstrip(b"\0")
    while packed:
        body = base64.urlsafe_b64encode(zlib.compress(packed, 1)).decode()
        if len(body) <= room:
            return body
        packed = packed[: len(packed) * 3 // 4].rstrip(b"\0")
    return ""


def _numbers(progress: Progress, stamp: str) -> str:
    deaths = str(min(progress.deaths, MOST_DEATHS) or "")
    mark = "" if progress.mark is None else _distance(progress.mark - progress.next)
    reach = "" if progress.reach is None else _distance(progress.reach - progress.next + 1)
    width = "" if progress.width is None else str(min(progress.width, MOST_WIDTH))
    last_at = str(progress.last_at) if progress.last_at is not None and 0 <= progress.last_at <= MOST_AT else ""
    return f".{deaths}.{mark}.{reach}.{width}.{last_at}.{stamp}".rstrip(".")


def _distance(distance: int) -> str:
    return str(distance) if 0 <= distance <= SPAN else ""


def decode(offset: int, metadata: str | None) -> Progress:
    """Return the progress in a committed offset. Foreign metadata, or a broken part of it, counts as absent."""
    head, _, rest = (metadata or "").partition(".")
    if head not in (_TAG + _CLEAN, _TAG + _OPEN):
        return Progress(offset, ours=False)
    body, _, rest = rest.partition(".")
    numbers = [*rest.split("."), *[""] * 4]  # a newer version may have written more parts
    mark, reach = _number(numbers[1], SPAN), _number(numbers[2], SPAN)
    return Progress(
        offset,
        _offsets(offset, body),
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
    if head not in (_TAG + _CLEAN, _TAG + _OPEN):
        return f"a newer version of Reconsume wrote it, in the form {head[:12]!r}"
    body = rest.partition(".")[0]
    return "its done set is broken" if body and not _bits(body) else ""


def _number(text: str, most: int) -> int | None:
    if not 1 <= len(text) <= 13 or not text.isascii() or not text.isdigit():
        return None
    return number if (number := int(text)) <= most else None


def _offsets(start: int, body: str) -> frozenset[int]:
    bits = _bits(body) if body else b""
    return frozenset(start + i for i in range(len(bits) * 8) if bits[i >> 3] >> (i & 7) & 1)


def _bits(body: str) -> bytes:
    """Return the bitmap; empty only if it is broken, because `encode` never writes an empty bitmap."""
    try:
        packed = base64.b64decode(body.encode("ascii"), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        bits = unpacking.decompress(packed, SPAN // 8 + 1)  # bounded: metadata may be a decompression bomb
    except (zlib.error, binascii.Error, ValueError):
        return b""
    if len(bits) > SPAN // 8 or not unpacking.eof or unpacking.unused_data:
        return b""  # only a complete bitmap has a checksum: a part may claim offsets that are not done
    return bits
