"""What goes to the committer, and what comes back: many verdicts, one transaction, an answer for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from sidecar.core.copies import Copy
from sidecar.core.decide import Commit, Written
from sidecar.core.progress import Progress
from sidecar.core.record import Partition, Record


class SettledRecord(NamedTuple):
    """A settled record: it is done once `writes` are in Kafka."""

    record: Record
    decision: Commit | Written
    writes: tuple[Copy, ...]


class PartitionCommit(NamedTuple):
    """One partition's part in a batch: its assignment, and its progress once the whole batch is done."""

    epoch: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """One transaction: the writes of all entries, and the progress of every partition that they come from."""

    entries: tuple[SettledRecord, ...]
    commits: Mapping[Partition, PartitionCommit]
    alone: bool = False
    """A single entry that was refused before, tried by itself."""


RefusedBy: TypeAlias = Literal["topic", "place", "record"]
"""What a refusal is about: the target topic (no record can go there now), the target partition (no leader, or too few
replicas in sync: records for other partitions can go), or this record alone (too large)."""


class Refusal(NamedTuple):
    """The broker will not take an entry's writes. `about` says how far that reaches, `reason` is for people, `where`
    names the topic, or the partition, that takes nothing: one entry is tried there for all."""

    entry: SettledRecord
    about: RefusedBy
    reason: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of a batch. Every entry is in exactly one of `done`, `refused`, `again`, or in a `fenced` partition.

    `fenced` partitions belong to somebody else by now. `again`: nothing is known against these, and they are not in
    Kafka. `committed` says whether the progress of the partitions that are not fenced is in Kafka. `apart`: Kafka
    refuses the batch and names no entry, so smaller batches must find the one that it is about.
    """

    batch: CommitBatch
    committed: bool
    done: tuple[SettledRecord, ...] = ()
    again: tuple[SettledRecord, ...] = ()
    refused: tuple[Refusal, ...] = ()
    fenced: frozenset[Partition] = frozenset()
    apart: bool = False
