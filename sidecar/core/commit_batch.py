"""The batch that a lane gives to the committer (many settled records, one transaction), and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.position_ranges import PartitionResets
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit, Written


class SettledRecord(msgspec.Struct, frozen=True, gc=False):
    """A record whose decision is made. It is done once `writes` are in Kafka.

    `outputs`: how many of them, the last ones, are records that the service asked for. `settled_by`: the id of the
    operator's decision that this carries out; empty if it carries out none. `is_early`: it had not begun, so progress
    does not say that it is done: a note does (`notes.py`).
    """

    record: Record
    decision: Commit | Written
    writes: tuple[Copy, ...]
    outputs: int = 0
    settled_by: str = ""
    is_early: bool = False

    @property
    def own_writes(self) -> tuple[Copy, ...]:
        """The writes that are ours: the copy and the event."""
        return self.writes[: len(self.writes) - self.outputs] if self.outputs else self.writes

    @property
    def output_writes(self) -> tuple[Copy, ...]:
        """The writes that the service asked for."""
        return self.writes[len(self.writes) - self.outputs :]


class PartitionCommit(NamedTuple):
    """The part of one partition in a batch: its assignment epoch, and its progress once the whole batch is done.

    `under`: the main partition with whose assignment a queue partition is owned; None: it is assigned itself. `resets`:
    those that are noted with it, where it moves the position.
    """

    epoch: int
    progress: Progress
    under: Partition | None = None
    resets: PartitionResets | None = None


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """One transaction: the writes of all entries, and the progress of their partitions and of others."""

    entries: tuple[SettledRecord, ...]
    commits: Mapping[Partition, PartitionCommit]
    alone: bool = False
    """Whether it holds a single entry, or a single partition's progress, that Kafka refused before."""
    padded: bool = False
    """Whether it only tries if the brokers take the longest progress: a position as it is, filled up with spaces."""
    notes: tuple[Copy, ...] = ()
    """What the owner notes about these partitions (`topics/owner_notes.py`). The progress of each partition that a note
    is about is among the commits."""


WrittenAt: TypeAlias = tuple[int, int]
"""Where the copy of an entry lies in its queue, as the broker has told: its offset, and its timestamp in epoch ms."""


RefusedBy: TypeAlias = Literal["topic", "partition", "record"]
"""The extent of a refusal. `topic`: the target topic accepts no record now. `partition`: the target partition has no
leader, or too few replicas in sync; records for other partitions can be written. `record`: this record alone is too
large."""


class Refusal(NamedTuple):
    """An entry whose writes the broker refuses.

    `about`: how far the refusal reaches. `reason`: a text for people. `where`: the topic or partition that accepts
    nothing; one entry is retried there on behalf of all. `too_large`: no record of this size is accepted there.
    """

    entry: SettledRecord
    about: RefusedBy
    reason: str
    where: str = ""
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a batch. Every entry is in exactly one of `done`, `refused`, `again`, or in a `fenced` partition.

    `fenced`: partitions that another member owns by now. `again`: entries that are not in Kafka, although nothing is
    known against them. `committed`: whether the progress of the partitions that are not fenced is in Kafka. `apart`:
    the next batches must be smaller, because Kafka refuses this one and names no cause, or a quota holds it back.
    `unwritable`: the partitions whose progress Kafka refuses, with the reason for people; their entries are in `again`.
    `too_long`: the brokers refuse a padded batch for its length.
    `located`: where copies lie in queues, by the index of their entry in `done`, as far as the broker has told.
    `producer`: a number that rises with each producer, which has written them. `notes_refused`: why Kafka does not take
    the notes of the batch; empty if it does, or was not asked.
    """

    batch: CommitBatch
    committed: bool
    done: tuple[SettledRecord, ...] = ()
    again: tuple[SettledRecord, ...] = ()
    refused: tuple[Refusal, ...] = ()
    fenced: frozenset[Partition] = frozenset()
    apart: bool = False
    unwritable: Mapping[Partition, str] = field(default_factory=dict)
    too_long: bool = False
    located: Mapping[int, WrittenAt] = field(default_factory=dict)
    producer: int = 0
    notes_refused: str = ""
