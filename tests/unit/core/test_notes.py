"""The notes of a lane: what was settled early is read first of all, written with progress, and deleted behind it.

What settles records early is `test_settling.py`; here a record is put on its way as that does.
"""

from reconsume.sidecar.core.commit_batch import CommitResult, SettledRecord
from reconsume.sidecar.core.partition import AssignedPartition
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import Record
from reconsume.topics.owner_notes import CHUNK, ChunkNote, OwnerNotes, chunk_key, pack_bits, parse_note, render_note
from reconsume.topics.transitions import DONE
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import WALL

LEVEL = next(topic for topic in sorted(samples.waits(samples.policy())) if topic.endswith("-10s"))
SOURCE = samples.ORDERS._replace(topic=LEVEL)
LOG = LogId("0a0b0c0d", "deadbeef")


def owner(progress: Progress) -> Rig:
    """A retry lane that has just got one level partition."""
    rig = Rig(retry=True)
    rig.lane.assigned([AssignedPartition(SOURCE, 1, progress)], rig.now)
    return rig


def retry(offset: int) -> Record:
    return samples.record(offset, source=SOURCE, timestamp=WALL - 60_000, life=samples.life())


def noted(*offsets: int, log: str = LOG.topic) -> OwnerNotes:
    bits = bytearray(CHUNK // 8)
    for offset in offsets:
        bits[offset >> 3] |= 1 << (offset & 7)
    notes = OwnerNotes()
    notes.take(chunk_key(SOURCE, 0), render_note(ChunkNote(log, pack_bits(bits))))
    return notes


def settle_early(rig: Rig, offset: int) -> SettledRecord:
    """Put a record on its way that has not begun."""
    record = retry(offset)
    rig.lane.notes.settle_early(rig.part(SOURCE), record)
    rig.lane.machines.outbox.pending.append(entry := SettledRecord(record, DONE, (), settled_by="d", is_early=True))
    rig.lane.machines.commits.entry_added()
    return entry


def test_a_partition_with_notes_is_fetched_once_they_are_read_and_what_they_name_is_done() -> None:
    rig = owner(Progress(3, log=LOG, notes=True))
    assert rig.wait().not_fetched is NotFetched.UNREAD_NOTES
    rig.run(60_000)
    assert (rig.notes_read, rig.fetches) == ([{SOURCE: 1}], [("pause", SOURCE)])
    rig.lane.notes_read({SOURCE: 1}, noted(4, 5), rig.now)
    assert rig.fetches[1:] == [("resume", SOURCE, 3, 1)]
    rig.take(*map(retry, (3, 4, 5, 6)))
    assert rig.out_offsets() == [3, 6]


def test_a_partition_without_notes_waits_for_nothing() -> None:
    rig = owner(Progress(3, log=LOG))
    assert (rig.notes_read, rig.fetches) == ([], [])


def test_notes_that_were_read_for_a_former_assignment_mean_nothing() -> None:
    rig = owner(Progress(3, log=LOG, notes=True))
    rig.lane.assigned([AssignedPartition(SOURCE, 2, Progress(3, log=LOG, notes=True))], rig.now)
    rig.lane.notes_read({SOURCE: 1}, noted(4), rig.now)
    assert rig.wait().not_fetched is NotFetched.UNREAD_NOTES
    rig.lane.notes_read({SOURCE: 2}, noted(4, 5), rig.now)
    assert rig.wait().not_fetched is None


def test_notes_that_are_gone_are_looked_for_half_a_minute_and_named() -> None:
    rig = owner(Progress(3, log=LOG, notes=True))
    while rig.wait().not_fetched is NotFetched.UNREAD_NOTES:
        assert rig.clock.steady_ms <= 31_000
        rig.lane.notes_read(rig.notes_read[-1], OwnerNotes(), rig.now)
        rig.run(1_000)
    assert rig.clock.steady_ms >= 30_000
    assert rig.told == [("notes-lost", SOURCE, 0, 3)]


def test_a_chunk_of_a_former_topic_of_the_name_has_no_effect_and_is_deleted() -> None:
    rig = owner(Progress(0, log=LOG, notes=True))
    rig.lane.notes_read({SOURCE: 1}, noted(1, log="00000000"), rig.now)
    rig.take(*map(retry, (0, 1)))
    assert rig.out_offsets() == [0, 1]
    assert ("notes-former", SOURCE, 1, 0) in rig.told
    first = rig.settle()[0]
    assert [(note.key, note.value) for note in first.notes] == [(chunk_key(SOURCE, 0), None)]


def test_what_is_settled_early_goes_with_its_note_and_its_partitions_progress() -> None:
    rig = owner(Progress(0, log=LOG))
    settle_early(rig, 70_000)
    (batch,) = rig.settle()
    (note,) = batch.notes
    assert note.key == chunk_key(SOURCE, 1)
    assert parse_note(note.key, note.value).note.id == LOG.topic  # type: ignore[union-attr]
    progress = batch.commits[SOURCE].progress
    assert (progress.next, progress.notes, len(progress.unique)) == (0, True, 8)
    rig.take(retry(69_999), retry(70_000), retry(70_001))
    assert rig.out_offsets() == [69_999, 70_001]


def test_a_record_whose_turn_comes_while_it_is_on_its_way_is_open_until_kafka_has_it() -> None:
    rig = owner(Progress(0, log=LOG))
    settle_early(rig, 1)
    rig.run(30)
    rig.take(*map(retry, (0, 1, 2)))
    rig.answer_all()
    assert rig.out_offsets() == []
    assert rig.part(SOURCE).offsets.first in (0, 1)
    rig.settle()
    assert rig.kafka[SOURCE].covers(1)
    assert rig.kafka[SOURCE].next == 3


def test_the_chunk_is_deleted_with_the_progress_that_passes_it() -> None:
    rig = owner(Progress(0, log=LOG))
    settle_early(rig, 1)
    rig.settle()
    rig.take(*map(retry, (0, 1, 2)))
    rig.answer_all()
    *_, last = [batch for batch in rig.settle() if batch.notes]
    assert [(note.key, note.value) for note in last.notes] == [(chunk_key(SOURCE, 0), None)]
    assert (rig.kafka[SOURCE].next, rig.kafka[SOURCE].notes) == (3, False)


def test_where_kafka_takes_no_notes_the_record_waits_for_its_turn() -> None:
    rig = owner(Progress(0, log=LOG))
    settle_early(rig, 1)
    rig.run(30)
    batch = rig.batches.pop()
    refused = CommitResult(batch, committed=False, again=batch.entries, notes_refused="no such topic")
    rig.lane.committed(refused, rig.now)
    rig.check()
    assert not rig.lane.notes.may_settle_early(rig.part(SOURCE))
    rig.take(*map(retry, (0, 1)))
    assert rig.out_offsets() == [0, 1]
