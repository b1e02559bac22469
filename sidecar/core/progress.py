"""The progress of a partition as it is committed: *the next offset, and the set of done offsets above it*.

Both are in the committed offset: the set is in its metadata (`progress_codec.py`), so a new owner repeats no attempt
that was counted. Offsets have gaps (compaction, transaction markers), so nothing assumes that the one after n is n + 1.
`Offsets` in `partition.py` computes it from what is open, and lets no record begin beyond what can be written.
"""

from __future__ import annotations

import zlib
from collections.abc import Set
from typing import NamedTuple

import msgspec

from reconsume.sidecar.core.offset_ranges import NONE

SPAN = 16_384
"""Offsets: up to this distance from the next one a bitmap says the whole done set. It takes 2 048 bytes."""


class Bounds(NamedTuple):
    """How far a partition may go beyond its first open record.

    `span`: offsets within which any set of them may be open. `window`: beyond the span, the last offsets, of which a
    bitmap says which are done. `far_bytes`: what the open records below the window may cost in bytes. `skip`: so many
    done offsets in a row are not read: a seek costs as much as some thousand records.
    """

    span: int = SPAN
    window: int = SPAN // 2
    far_bytes: int = 1_000
    skip: int = 4_096


class LogId(NamedTuple):
    """Which log a partition's offsets belong to: digests of the cluster's id and of the topic's id.

    Each is the CRC-32 of the id that Kafka gives, as eight hexadecimal digits. Kafka draws both ids at random. So the
    ids of a topic and of its successor have the same digest once in four billion times; the successor is then taken for
    the same log, as with a broker that has no topic ids. Two clusters are only mistaken for each other if, in addition,
    topic, partition and committed offset are the same; the records are then delivered again.
    """

    cluster: str
    topic: str

    @classmethod
    def of(cls, cluster_id: str, topic_id: str) -> LogId:
        """Return the digests of two ids as Kafka gives them."""
        return cls(*(f"{zlib.crc32(one.encode()):08x}" for one in (cluster_id, topic_id)))


def is_recreated(stated: LogId | None, present: LogId | None) -> bool:
    """Whether `present` is the log of a topic that was created again since progress named `stated`.

    Only the same cluster with another topic id says so. None, on either side, says nothing.
    """
    return (
        stated is not None
        and present is not None
        and stated.cluster == present.cluster
        and stated.topic != present.topic
    )


class Progress(msgspec.Struct, frozen=True):
    """A partition's progress. `done` holds offsets at or above `next`.

    `clean`: the owner had delivered nothing of the partition, or was alive when it gave the partition up. Without this
    mark the owner crashed. `ours`: a sidecar committed it.

    For the crash gate: `deaths` is how many owners in a row had crashed before this one. `mark` is the offset that
    this owner delivers alone. `reach` is the last offset that this owner releases for delivery (None: it does not say).

    `width`: how many partitions the topic had when the group began to read it at the latest record (`start: latest`).
    Partitions from that number on were added later and are read from their beginning.

    `last_at_ms`: the timestamp (epoch ms) of the last record that was read of a level. If a log ends before `next` and
    all of it is younger than this, the topic was created anew. 0: no record was read since the log's beginning. Then
    `next` may have passed over markers of aborted transactions alone, and the next owner of the partition starts at the
    beginning again: the offset says nothing of another log of the same name.

    `log`: the log that this owner reads; None: Kafka has not told. `cycle`: how many resets moved the position.
    `notes`: whether the policy topic has records about this partition (chunks, ranges) to be read first. `unique`:
    eight hexadecimal digits that tell this commit from others of the same progress, where it goes with notes; else
    empty.
    """

    next: int
    done: Set[int] = NONE
    clean: bool = False
    ours: bool = True
    deaths: int = 0
    mark: int | None = None
    reach: int | None = None
    width: int | None = None
    last_at_ms: int | None = None
    log: LogId | None = None
    cycle: int = 0
    notes: bool = False
    unique: str = ""

    def covers(self, offset: int) -> bool:
        """Return whether the record at `offset` is done."""
        return offset < self.next or offset in self.done
