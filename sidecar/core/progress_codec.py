"""Progress as the metadata of a committed offset: the done offsets, and a few numbers behind them.

There are two forms. `rc1` has the done set as a bitmap, up to SPAN from the next offset. `rc2` has it at any distance;
0.2 and earlier cannot read it, so it is written only where `rc1` cannot say the same (`done_set.py`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from reconsume.sidecar.core.done_set import MOST_BYTES, MOST_DISTANCE, parse_done, render_done
from reconsume.sidecar.core.offset_ranges import NONE, OffsetRanges
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_bounds import LONGEST, SPAN

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
STAMP_AT = 7
"""The position of the stamp (`progress_stamp.py`) among the parts."""
LONGEST_DONE = MOST_BYTES * 4 // 3
"""Characters of the longest done set, nearly."""
FILL_TRIES = 4
"""Tries to name as much as there is room for. Each costs about a millisecond on the committer's thread."""


class Length(NamedTuple):
    """How many characters metadata may have.

    `most`: those that the brokers take. `ceiling`: they may take so many. It is tried with what must be written alone.
    `spare`: so many are filled up behind a done set, less the numbers of crashes (`SPARE`).
    """

    most: int
    ceiling: int
    spare: int = 0


def encode(progress: Progress, stamp: str = "", most: int = LONGEST) -> str:
    """Return the metadata of a commit, of `most` characters at most.

    It is a tag, the clean mark, a dot, and the done set, compressed. Then follow, each after a dot: the
    crashes, the distances of mark and reach from the next offset, the width, the time of the last record, the stamp,
    and what means nothing (`once`, and the filling of `Length.spare`). Empty parts at the end are left out.

    The furthest offsets are left out where `most` is too little for all. That can only cost a second delivery, never a
    record. Where `most` is too little for the numbers too, all is left out.
    """
    return encode_with(progress, NONE, stamp, Length(most, most)) or ""


def encode_with(progress: Progress, kept: OffsetRanges, stamp: str, length: Length, once: str = "") -> str | None:
    """Return the same, with all `kept` offsets of the done set; None if there is no room for these.

    `once`: stands behind the stamp where an offset was left out.
    """
    done, kept = (one.within(progress.next, one.end) for one in (OffsetRanges.of(progress.done), kept))
    end = _End(stamp, "", length.spare)
    # Where all of it must be written, as much is tried as brokers may take; what is left out costs a second delivery
    # at most (contract 7.2).
    whole = _text(progress, done, end)
    if whole is not None and len(whole) <= (length.ceiling if done == kept else length.most):
        return whole
    end = end._replace(once=once)
    least = _text(progress, kept, end)
    if least is None or len(least) > length.ceiling:
        return None if kept.ranges else ""
    share = (length.most - len(least)) / ((len(whole) if whole else LONGEST_DONE) - len(least) or 1)
    return _filled(progress, (done, kept), end, length.most, least, share)


class _End(NamedTuple):
    """What stands behind the numbers. `spare`: as in `Length`."""

    stamp: str
    once: str
    spare: int


def _filled(
    progress: Progress, sets: tuple[OffsetRanges, OffsetRanges], end: _End, most: int, least: str, share: float
) -> str:
    """Return `least`, with as many of the first done ranges as there is room for, nearly. `share`: a first guess."""
    done, kept = sets
    low, high = 0, len(done.ranges)
    at = int(high * share)
    for _ in range(FILL_TRIES if len(least) < most else 0):
        at = max(low + 1, min(at, high - 1))
        if at >= high:
            break
        text = _text(progress, done.first_ranges(at).union(kept), end)
        if text is not None and len(text) <= most:
            least, low = text, at
        else:
            high = at
        at = (low + high) // 2
    return least


def _text(progress: Progress, done: OffsetRanges, end: _End) -> str | None:
    """Return the metadata with this done set; None if it is longer than any that is read."""
    marks = (progress.mark or 0) - progress.next, (progress.reach or 0) - progress.next + 1
    far = done.end - progress.next > SPAN or any(SPAN < distance <= MOST_DISTANCE for distance in marks)
    body = render_done(progress.next, done, far=far)
    head = f"{_FAR if far else _NEAR}{_CLEAN if progress.clean else _OPEN}."
    return None if body is None else f"{head}{body}{_numbers(progress, end, body)}"


def _numbers(progress: Progress, end: _End, body: str) -> str:
    crash = _crash_numbers(progress)
    width_text = "" if progress.width is None else str(min(progress.width, MOST_WIDTH))
    last_at_text = (
        str(progress.last_at_ms) if progress.last_at_ms is not None and 0 <= progress.last_at_ms <= MOST_AT else ""
    )
    spare = "_" * (end.spare - sum(map(len, crash))) if body else ""
    return ".".join(("", *crash, width_text, last_at_text, end.stamp, end.once + spare)).rstrip(".")


def _crash_numbers(progress: Progress) -> tuple[str, str, str]:
    deaths = str(min(progress.deaths, MOST_DEATHS) or "")
    mark = "" if progress.mark is None else _distance(progress.mark - progress.next)
    reach = "" if progress.reach is None else _distance(progress.reach - progress.next + 1)
    return deaths, mark, reach


def _distance(distance: int) -> str:
    return str(distance) if 0 <= distance <= MOST_DISTANCE else ""


def decode(offset: int, metadata: str | None) -> Progress:
    """Return the progress in a committed offset. Foreign metadata, or a broken part of it, counts as absent."""
    head, _, rest = (metadata or "").partition(".")
    # Any program may commit for a group: only our own tag is believed, and the offset always (contract 7.3).
    if head not in _HEADS:
        return Progress(offset, ours=False)
    body, _, rest = rest.partition(".")
    numbers = [*rest.split("."), *[""] * 4]  # a newer version may have written more parts
    most = MOST_DISTANCE if head.startswith(_FAR) else SPAN
    mark, reach = _number(numbers[1], most), _number(numbers[2], most)
    return Progress(
        offset,
        parse_done(offset, body, far=head.startswith(_FAR)) or NONE,
        head.endswith(_CLEAN),
        deaths=_number(numbers[0], MOST_DEATHS) or 0,
        mark=None if mark is None else offset + mark,
        reach=None if reach is None else offset + reach - 1,
        width=_number(numbers[3], MOST_WIDTH),
        last_at_ms=_number(numbers[4], MOST_AT),
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
    return "its done set is broken" if parse_done(0, body, far=head.startswith(_FAR)) is None else ""


def _number(text: str, most: int) -> int | None:
    if not 1 <= len(text) <= 13 or not text.isascii() or not text.isdigit():
        return None
    return number if (number := int(text)) <= most else None
