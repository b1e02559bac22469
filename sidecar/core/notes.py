"""What the owner of partitions notes about them in its transactions (`topics/owner_notes.py`), and reads at a start.

Progress has no room for what was settled far before its turn, and need not have it: a *chunk* says it, one record of
the policy topic for 65 536 offsets. `PartitionNotes` is what is noted of one partition: `Offsets.begin` asks it, and
takes what was settled early for done (`partition_notes.py`). `NoteKeeper` is the machine of a lane:

- *A partition begins.* If its progress says that there are notes, it is not fetched before they are read
  (`UNREAD_NOTES`): what they name must not be delivered. The reader answers with all notes that Kafka had when the
  group's progress was known. Later ones of a former owner are refused, because each goes with progress.
- *Notes that are not there* are waited for `LOST_AFTER_MS`, then named (`notes-lost`): the policy topic was recreated.
- *A batch is taken.* It carries the chunks that its early records are in, deletes those that progress has passed, and
  what decisions have done (`decided`, set by `settling.py`). Progress with notes has a `unique`, so that a transaction
  whose end is unknown can be told from none at all.
- *A batch has ended.* What it settled early is in the bitmaps. Where Kafka refuses notes, what was to be settled early
  is forgotten: it waits for its turn, or for the next scan.

A lane of which nothing is noted pays one comparison for each batch. Event loop alone.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.commit_batch import CommitResult, PartitionCommit, SettledRecord
from reconsume.sidecar.core.fetching import Fetching
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.outbox import Commits
from reconsume.sidecar.core.partition import PartitionState
from reconsume.sidecar.core.partition_notes import PartitionNotes
from reconsume.sidecar.core.ports import NotesReads, Notice
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.sidecar.core.room import Room
from reconsume.topics.owner_notes import (
    CHUNK,
    PARTITION,
    ChunkNote,
    NotesOfPartition,
    OwnerNotes,
    chunk_key,
    pack_bits,
    render_note,
    unpack_bits,
)
from reconsume.topics.position_ranges import PartitionResets, render_resets, reset_key
from reconsume.topics.transition_records import Copy

NOTES, REFUSED = "notes", "refused notes"
"""The names in the agenda of the next look for notes that were not there, and of the next try to write some."""
LOST_AFTER_MS, LOOK_EVERY_MS = 30_000, 2_000
"""ms after which notes that are not in the policy topic count as lost, and between two looks for them."""
REFUSED_FOR_MS = 5_000
"""ms for which nothing is settled early after Kafka has refused notes."""


SettledCounts: TypeAlias = Mapping[tuple[str, Partition], int]


class NoteKeeper:
    """The notes of one lane's partitions. `topic`: returns the name of the policy topic.

    Invariant: a partition whose notes are unread is paused, and was asked for.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, PartitionState],
        fetching: Fetching,
        commits: Commits,
        room: Room,
        agenda: Agenda,
        reads: NotesReads,
        topic: Callable[[], str],
        notice: Notice,
    ) -> None:
        self.decided: Callable[[SettledCounts, Partition], Iterable[tuple[bytes, bytes]]]
        """Returns what decisions have done in a partition, as keys and values of notes; with how many records a batch
        settles by each decision in each partition."""
        self.resets_read: Callable[[Partition, PartitionResets | None, Now], None]
        """Takes in the resets of a partition whose notes are read."""
        self._partitions, self._fetching, self._commits, self._room = partitions, fetching, commits, room
        self._agenda, self._reads, self._topic, self._notice = agenda, reads, topic, notice
        self._requested: dict[Partition, int] = {}
        """The epochs of the partitions whose notes are being read."""
        self._since: dict[Partition, int] = {}
        """Since when the notes of partitions are looked for, and not found (steady ms)."""
        self.is_refused = False
        """Whether Kafka has refused notes a moment ago: none is written then that may wait."""
        self.forgotten: Callable[[Partition, int], None]
        """Told of records that are not settled early after all."""

    def use(self) -> None:
        """Have notes go with each batch from now on."""
        self._commits.note = self.notes_for

    @property
    def in_use(self) -> bool:
        """Whether anything was ever noted of a partition of the lane."""
        return self._commits.note is not None

    # --- a partition begins -----------------------------------------------------------------------------------------

    def begin_partitions(self, partitions: Iterable[PartitionState], now: Now) -> None:
        """Fetch nothing of partitions whose progress says that there are notes, before these are read."""
        unread = [partition for partition in partitions if partition.commit.progress.notes]
        for partition in unread:
            self._since[partition.source] = now.steady_ms
            self._fetching.pause(partition, partition.offsets.unread, NEVER, NotFetched.UNREAD_NOTES)
        if unread:
            self.use()
            self.read(unread)

    def read(self, partitions: Iterable[PartitionState]) -> None:
        """Have the notes of partitions read. `take_notes` gets them."""
        wanted = {partition.source: partition.epoch for partition in partitions}
        if wanted:
            self._requested |= wanted
            self._reads.read_notes(wanted)

    def take_notes(self, wanted: Mapping[Partition, int], notes: OwnerNotes, now: Now) -> list[PartitionState]:
        """Take in what the policy topic has of partitions, which were `wanted` under these epochs; return those that
        are still owned."""
        owned = list[PartitionState]()
        for source, epoch in wanted.items():
            partition = self._partitions.get(source)
            if self._requested.get(source) == epoch:
                del self._requested[source]
            if partition is None or partition.epoch != epoch:
                continue
            owned.append(partition)
            own = partition.offsets.notes
            if own is not None and own.is_unread:
                self._begin(partition, own, notes.of(source), now)
        return owned

    def _begin(self, partition: PartitionState, own: PartitionNotes, noted: NotesOfPartition, now: Now) -> None:
        since_ms = self._since.get(partition.source, now.steady_ms)
        if noted.is_empty and now.steady_ms - since_ms < LOST_AFTER_MS:
            self._agenda.set_earlier(NOTES, now.steady_ms + LOOK_EVERY_MS)
            return
        self._since.pop(partition.source, None)
        if noted.is_empty:  # contract 10.5: the policy topic was recreated, and its former owner did not write it again
            self._notice("notes-lost", partition.source, 0, partition.offsets.first)
        log, former = partition.commit.progress.log, 0
        for number, chunk in noted.chunks.items():
            bits = unpack_bits(chunk.bits)
            # A chunk of a former topic of the same name means nothing.
            if bits is None or (log is not None and chunk.id != log.topic):
                own.obsolete.add(number)
                former += 1
            else:
                own.settled[number] = bits
        if former:
            self._notice("notes-former", partition.source, former, partition.offsets.first)
            self._commits.at_once(partition)
        own.is_unread = False
        if own.is_empty:
            partition.offsets.notes = None
        self.resets_read(partition.source, noted.resets, now)
        if partition.paused is not None and partition.paused.because is NotFetched.UNREAD_NOTES:
            self._fetching.go_on(partition, now.steady_ms)
        else:
            self._fetching.resume_if_ready(partition, now.steady_ms)

    def read_missing(self) -> None:
        """Look again for the notes that were not there."""
        self.read(self._partitions[source] for source in self._since if source not in self._requested)

    def drop_partitions(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that are gone."""
        for source in partitions:
            self._requested.pop(source, None)
            self._since.pop(source, None)

    def rewrite(self) -> None:
        """Write all chunks again: the policy topic was recreated."""
        for partition in self._partitions.values():
            notes = partition.offsets.notes
            if notes is not None and notes.settled and not partition.closing:
                notes.stale.update(notes.settled)
                self._commits.at_once(partition)

    # --- a record is settled early ----------------------------------------------------------------------------------

    def may_settle_early(self, partition: PartitionState) -> bool:
        """Return whether a record of a partition may be settled that has not begun.

        Where Kafka does not tell the ids of topics, the note could be taken for one about another log.
        """
        return partition.commit.progress.log is not None and not self.is_refused

    def settle_early(self, partition: PartitionState, record: Record) -> None:
        """Note that a record that has not begun is settled, and on its way into Kafka."""
        if partition.offsets.notes is None:
            partition.offsets.notes = PartitionNotes()
        self.use()
        partition.offsets.notes.coming[record.offset] = record
        self._room.add_bytes(partition, record.weight)

    def finish_early(self, partition: PartitionState, record: Record, *, is_written: bool) -> bool:
        """End the way of a record that was settled early; return whether it has not begun since. `is_written`: Kafka
        has it; otherwise it waits on."""
        notes = partition.offsets.notes
        if notes is None:  # its turn had come before the batch was taken, which has no note of it
            return False
        coming = notes.coming.pop(record.offset, None)
        if is_written:
            notes.add(record.offset)
        else:
            self.forgotten(partition.source, record.offset)
        if coming is None:
            return False
        self._room.add_bytes(partition, -record.weight)
        if is_written:
            partition.throughput.done_bytes += record.weight
        return True

    # --- a batch ----------------------------------------------------------------------------------------------------

    def notes_for(
        self, entries: Sequence[SettledRecord], commits: dict[Partition, PartitionCommit]
    ) -> tuple[Copy, ...]:
        """Return the notes that go with a batch, whose commits get a `unique` where they have some."""
        early, counts = defaultdict[Partition, list[int]](list), Counter[tuple[str, Partition]]()
        for entry in entries:
            if entry.settled_by:
                counts[entry.settled_by, entry.record.source] += 1
            if entry.is_early:
                early[entry.record.source].append(entry.record.offset)
        topic, notes = self._topic(), list[Copy]()
        for source, share in commits.items():
            partition = self._partitions[source]
            own = list[tuple[bytes, bytes | None]]()
            if share.resets is not None:
                own.append((reset_key(source), render_resets(share.resets)))
            if early or not self.is_refused:  # what is early cannot go without its note
                own += self._chunks_of(partition, early.get(source, ()), share.progress.next)
                own += self.decided(counts, source)
            if own:
                unique = f"{zlib.crc32(b''.join(text or b'' for one in own for text in one)):08x}"
                commits[source] = share._replace(progress=replace(share.progress, unique=unique))
                notes += (Copy(topic, key, value, [], PARTITION, scattered=True, exact=True) for key, value in own)
        return tuple(notes)

    def _chunks_of(
        self, partition: PartitionState, early: Sequence[int], next_offset: int
    ) -> Iterator[tuple[bytes, bytes | None]]:
        notes, log = partition.offsets.notes, partition.commit.progress.log
        if notes is None or notes.is_unread:
            return
        written = {*notes.stale, *(offset // CHUNK for offset in early)}
        added = {number: bytearray(notes.settled.get(number, bytes(CHUNK // 8))) for number in sorted(written)}
        for offset in early:
            added[offset // CHUNK][offset % CHUNK >> 3] |= 1 << (offset & 7)
        for number, bits in added.items():
            assert log is not None, "only what has an id is settled early"
            yield chunk_key(partition.source, number), render_note(ChunkNote(log.topic, pack_bits(bits)))
        for number in notes.passed(next_offset):
            if number not in added:
                yield chunk_key(partition.source, number), None

    def batch_ended(self, result: CommitResult, now: Now) -> None:
        """Forget the chunks that a committed batch has deleted."""
        if result.notes_refused:
            self.is_refused = True
            self._agenda.set_time(REFUSED, now.steady_ms + REFUSED_FOR_MS)
        if not result.committed:
            return
        # What the batch has noted is added to its notes after this call (`finish_early`).
        noted = {entry.record.source for entry in result.batch.entries if entry.is_early}
        for source in {*result.batch.commits}:
            partition = self._partitions.get(source)
            share = result.batch.commits[source]
            if partition is None or partition.epoch != share.epoch or partition.offsets.notes is None:
                continue
            notes = partition.offsets.notes
            if not notes.is_unread:
                for number in notes.passed(share.progress.next):
                    notes.settled.pop(number, None)
                if share.progress.unique:  # else it was taken before they were found
                    notes.obsolete.clear()
                    notes.stale.clear()
                if notes.is_empty and source not in noted:
                    partition.offsets.notes = None

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source, partition in self._partitions.items():
            if (notes := partition.offsets.notes) is not None:
                notes.check()
                ensure(not notes.is_unread or partition.paused is not None, f"{source} waits for its notes")


def coming_bytes(partition: PartitionState) -> int:
    """Return the bytes of what was settled early of a partition, and has not begun."""
    notes = partition.offsets.notes
    return 0 if notes is None else sum(record.weight for record in notes.coming.values())
