"""Progress that belongs to its partition: the metadata of an offset states for which offset of which log it was made.

The done set is read by distances from the offset that it hangs on. Tools that copy a group's offsets keep the metadata
and change the offset (MirrorMaker 2 translates it for another cluster), or give it to another partition. There the same
bits name records that were never delivered. So each commit carries a *stamp*: partition, offset, a check sum of the
topic's name, and Kafka's own id of the topic where it is known.
"""

from __future__ import annotations

import re
import zlib

from sidecar.core.progress import Progress
from sidecar.core.progress_codec import LONGEST, STAMP_AT, decode, encode
from sidecar.core.record import Partition

_STAMP = re.compile(r"([0-9]{1,6})-([0-9]{1,19})-([0-9a-f]{8})(?:-([A-Za-z0-9+/=_-]{1,40}))?")
"""The id as the client writes it: base64, in either alphabet."""


def stamp_of(source: Partition, offset: int, topic_id: str) -> str:
    """Return the stamp of progress that is made for this offset. `topic_id`: Kafka's id; empty if it is not known."""
    place = f"{source.number}-{offset}-{zlib.crc32(source.topic.encode()):08x}"
    return f"{place}-{topic_id}" if topic_id else place


def encode_at(source: Partition, progress: Progress, topic_id: str = "", most: int = LONGEST, once: str = "") -> str:
    """Return the metadata with its stamp. `most`: as in `encode`. `once`: another part behind the stamp.

    Where `most` leaves no room for a stamp the done set, mark and reach are left out with it: without a stamp they
    would be believed at any offset.
    """
    stamp = stamp_of(source, progress.next, topic_id)
    return encode(progress, f"{stamp}.{once}" if once else stamp, most)


def decode_at(source: Partition, topic_id: str, offset: int, metadata: str | None) -> Progress:
    """Return the progress in a committed offset. Metadata that was made for another place counts as absent.

    Where the topic's id alone differs, the topic was perhaps created again. The time of the last record that was read
    is kept then: by it the consumer recognises a level's new log, and reads it from its beginning.
    """
    found = decode(offset, metadata)
    if misplaced(source, "", offset, metadata):
        return Progress(offset, ours=False)
    if misplaced(source, topic_id, offset, metadata):
        return Progress(offset, ours=False, last_at=found.last_at)
    return found


def misplaced(source: Partition, topic_id: str, offset: int, metadata: str | None) -> str:
    """Return for which other place metadata of ours was made, as a text for people; empty if it is in its place.

    Older versions wrote no stamp: their progress counts wherever it is. An id that is not known on either side is not
    compared.
    """
    parts = (metadata or "").split(".", STAMP_AT + 1)
    stamp = _STAMP.fullmatch(parts[STAMP_AT]) if len(parts) > STAMP_AT and parts[0].startswith("rc") else None
    if stamp is None:
        return ""
    number, at, name, made_in = int(stamp[1]), int(stamp[2]), int(stamp[3], 16), stamp[4] or ""
    if name != zlib.crc32(source.topic.encode()):
        return "it was made for another topic"
    if topic_id and made_in and topic_id != made_in:
        return f"it was made for a topic of this name with the id {made_in}, not {topic_id}"
    if (number, at) != (source.number, offset):
        return f"it was made for partition {number} at offset {at}, and stands at offset {offset}"
    return ""
