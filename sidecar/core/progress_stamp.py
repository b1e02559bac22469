"""Progress that belongs to its partition: the metadata of an offset states for which offset of which log it was made.

The done set is read by distances from the offset that it hangs on. Tools that copy a group's offsets keep the metadata
and change the offset (MirrorMaker 2 translates it for another cluster), or give it to another partition. There the same
bits name records that were never delivered. So each commit carries a *stamp*: partition, offset, and a check sum of the
topic's name. Kafka's own id of the topic is not in it: an owner of a topic that was created again would go on to stamp
the former id for minutes. A new log of the same name is recognised by `Progress.last_at_ms`.
"""

from __future__ import annotations

import re
import zlib

from reconsume.sidecar.core.offset_ranges import NONE, OffsetRanges
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_bounds import LONGEST
from reconsume.sidecar.core.progress_codec import STAMP_AT, Length, decode, encode_with
from reconsume.sidecar.core.record import Partition

_STAMP = re.compile(r"([0-9]{1,6})-([0-9]{1,19})-([0-9a-f]{8})(?:-[A-Za-z0-9+/=_-]{1,40})?")
"""What may stand behind the check sum is a topic's id, of a version that was never released. It means nothing."""


def stamp_of(source: Partition, offset: int) -> str:
    """Return the stamp of progress that is made for this offset."""
    return f"{source.number}-{offset}-{zlib.crc32(source.topic.encode()):08x}"


def encode_at(source: Partition, progress: Progress, most: int = LONGEST) -> str:
    """Return the metadata with its stamp. `most`: as in `encode`.

    Where `most` leaves no room for a stamp the done set, mark and reach are left out with it: without a stamp they
    would be believed at any offset.
    """
    return encode_kept_at(source, progress, NONE, Length(most, most)) or ""


def encode_kept_at(
    source: Partition, progress: Progress, kept: OffsetRanges, length: Length, once: str = ""
) -> str | None:
    """Return the same, with all `kept` offsets of the done set; None if there is no room for these.

    `once`: another part behind the stamp, where an offset was left out.
    """
    return encode_with(progress, kept, stamp_of(source, progress.next), length, once)


def decode_at(source: Partition, offset: int, metadata: str | None) -> Progress:
    """Return the progress in a committed offset. Metadata that was made for another position counts as absent."""
    return Progress(offset, ours=False) if misplaced(source, offset, metadata) else decode(offset, metadata)


def misplaced(source: Partition, offset: int, metadata: str | None) -> str:
    """Return for which other position metadata of ours was made, as a text for people; empty if for this one.

    Older versions wrote no stamp: their progress counts wherever it is.
    """
    fields = (metadata or "").split(".", STAMP_AT + 1)
    stamp = _STAMP.fullmatch(fields[STAMP_AT]) if len(fields) > STAMP_AT and fields[0].startswith("rc") else None
    if stamp is None:
        return ""
    number, at, name = int(stamp[1]), int(stamp[2]), int(stamp[3], 16)
    if name != zlib.crc32(source.topic.encode()):
        return "it was made for another topic"
    if (number, at) != (source.number, offset):
        return f"it was made for partition {number} at offset {at}, and stands at offset {offset}"
    return ""
