"""Decisions about waiting records as their owner carries them out; the stories of `tests/sim` have all else at once."""

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.outcome import COMMITTED, Failed
from reconsume.sidecar.core.partition import AssignedPartition
from reconsume.sidecar.core.ports import ScannedRange
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.record import Record
from reconsume.topics.decision_record import COMMIT, DEAD_LETTER, RETRY_NOW, DecidedRange, DecisionRecord
from reconsume.topics.owner_notes import DoneNote, OwnerNotes, done_key, parse_note, render_note
from reconsume.topics.transitions import Commit, DeadLetter, Requeue
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import WALL

LEVEL = next(topic for topic in sorted(samples.waits(samples.policy())) if topic.endswith("-10s"))
SOURCE = samples.ORDERS._replace(topic=LEVEL)
LOG = LogId("0a0b0c0d", "deadbeef")


def waiting(offset: int, due_at: int = WALL + 60_000, key: bytes | None = b"k") -> Record:
    return samples.record(offset, source=SOURCE, timestamp=WALL, key=key, life=samples.life(2, due_at))


def decision(how: str, rate: str = "", **more: object) -> DecisionRecord:
    ranges = (DecidedRange(*SOURCE, LOG.topic, 0, 100),)
    return DecisionRecord(how, "ann", "seen", WALL, ranges, rate=rate, **more)  # type: ignore[arg-type]


def owner(progress: Progress = Progress(0, log=LOG), **decisions: DecisionRecord) -> Rig:  # noqa: B008 - a value
    """A lane that has a level partition, and knows these decisions and that nobody has done anything for them."""
    rig = Rig(retry=True)
    rig.lane.assigned([AssignedPartition(SOURCE, 1, progress)], rig.now)
    rig.lane.decide(decisions, rig.now)
    rig.lane.notes_read({SOURCE: 1}, OwnerNotes(), rig.now)
    return rig


def scan(rig: Rig, *records: Record) -> None:
    """Answer the scan that the lane has asked for."""
    source, epoch, begin, _ = rig.scans.pop(0)
    rig.lane.scanned(ScannedRange(source, epoch, begin, 100, records), rig.now)
    rig.check()


def settled(rig: Rig) -> dict[int, object]:
    """Commit what is to be committed; what was decided about each record, by its offset."""
    return {entry.record.offset: entry.decision for batch in rig.settle() for entry in batch.entries}


def test_records_far_before_their_turn_are_settled_and_it_is_noted_what_was_done() -> None:
    rig = owner(d=decision(DEAD_LETTER, key=b"k"))
    scan(rig, waiting(7), waiting(8, key=b"other"), waiting(9))
    batches = rig.settle()
    entries = [entry for batch in batches for entry in batch.entries]
    assert [(entry.record.offset, type(entry.decision)) for entry in entries] == [(7, DeadLetter), (9, DeadLetter)]
    assert {entry.decision.retry_state.times for entry in entries} == {2}  # type: ignore[union-attr]
    assert last_noted(batches) == (2, True)


def last_noted(batches: list[CommitBatch]) -> tuple[int, bool]:
    """How many records decision `d` has settled by the last note about it, and whether its range is finished."""
    notes = [parse_note(note.key, note.value) for batch in batches for note in batch.notes]
    done = [note.note for note in notes if getattr(note, "decision", "") == "d"]  # type: ignore[union-attr]
    return [(note.done, note.finished) for note in done if note is not None][-1]  # type: ignore[union-attr]


def test_the_end_of_a_range_is_noted_though_it_ends_while_an_earlier_note_is_on_its_way() -> None:
    """Who follows the decision would wait for the end of this part until the decision is void (found by a story)."""
    rig = owner(d=decision(COMMIT))
    rig.take(samples.record(3, source=SOURCE, timestamp=WALL - 60_000, life=samples.life(2, WALL - 1)))
    rig.run(20)
    assert [entry.record.offset for entry in rig.batches[0].entries] == [3]
    scan(rig)
    assert last_noted(rig.settle()) == (1, True)


def test_what_is_settled_before_the_notes_of_earlier_owners_are_read_is_added_to_them() -> None:
    """Given a range that is finished, its note says so to whoever follows the decision (found by a story)."""
    rig, notes = Rig(retry=True), OwnerNotes()
    notes.take(done_key("d", SOURCE), render_note(DoneNote(LOG.topic, 100, 2, 0, True, WALL)))
    rig.lane.assigned([AssignedPartition(SOURCE, 1, Progress(0, log=LOG))], rig.now)
    rig.lane.decide({"d": decision(COMMIT)}, rig.now)
    rig.take(samples.record(3, source=SOURCE, timestamp=WALL - 60_000, life=samples.life(2, WALL - 1)))
    rig.run(20)
    rig.lane.notes_read({SOURCE: 1}, notes, rig.now)
    assert last_noted(rig.settle()) == (3, True)


def test_retry_now_writes_a_copy_that_is_due_with_the_same_count_and_names_the_decision() -> None:
    rig = owner(**{"d-1": decision(RETRY_NOW)})
    scan(rig, waiting(7))
    ((_, made),) = settled(rig).items()
    assert isinstance(made, Requeue)
    state = made.retry_state
    assert (state.times, state.settled, state.due_at <= WALL + 5_000) == (2, "d-1", True)


def test_a_record_whose_turn_comes_before_the_scan_is_settled_and_not_delivered() -> None:
    rig = owner(d=decision(COMMIT))
    rig.take(samples.record(3, source=SOURCE, timestamp=WALL - 60_000, life=samples.life(2, WALL - 1)))
    assert rig.sent == []
    assert settled(rig)[3] == Commit(replace(samples.life(2, WALL - 1), reason="by-operator: seen"), "ann")


def test_of_a_record_in_flight_the_response_comes_first_and_a_failure_is_what_was_decided() -> None:
    rig = owner()
    for offset in (0, 1):
        rig.take(samples.record(offset, source=SOURCE, timestamp=WALL - 60_000, life=samples.life(2, WALL - 1)))
    rig.lane.decide({"d": decision(DEAD_LETTER)}, rig.now)
    rig.lane.notes_read({SOURCE: 1}, OwnerNotes(), rig.now)
    rig.answer(COMMITTED)
    rig.answer(Failed("http-500"))
    made = settled(rig)
    assert (type(made[0]), type(made[1])) == (Commit, DeadLetter)
    assert made[1].by == "ann"  # type: ignore[attr-defined]


def test_of_two_decisions_about_one_record_the_later_one_applies() -> None:
    rig = owner(first=decision(COMMIT), later=decision(DEAD_LETTER))
    while rig.scans:
        scan(rig, waiting(7))
    assert [type(one) for one in settled(rig).values()] == [DeadLetter]


def test_suspects_after_a_crash_are_settled_too() -> None:
    """Given owners that crashed so often that records go one at a time, then a decision does not wait for that."""
    rig = Rig(retry=True, policy=samples.policy(deaths=3))
    rig.lane.assigned([AssignedPartition(SOURCE, 1, Progress(0, log=LOG, deaths=3, reach=50))], rig.now)
    rig.take(
        *(samples.record(n, source=SOURCE, timestamp=WALL - 60_000, life=samples.life(2, WALL - 1)) for n in range(5))
    )
    assert len(rig.sent) <= 1
    rig.lane.decide({"d": decision(COMMIT)}, rig.now)
    rig.lane.notes_read({SOURCE: 1}, OwnerNotes(), rig.now)
    records = [
        samples.record(n, source=SOURCE, timestamp=WALL - 60_000, life=samples.life(2, WALL - 1)) for n in range(5)
    ]
    scan(rig, *records)
    rig.run(1_000)
    assert len(settled(rig)) >= 4


def test_where_kafka_tells_no_topic_ids_a_record_is_settled_when_its_turn_comes() -> None:
    rig = owner(Progress(0), d=decision(COMMIT))
    scan(rig, waiting(7))
    assert settled(rig) == {}
    rig.take(samples.record(7, source=SOURCE, timestamp=WALL - 60_000, life=samples.life(2, WALL - 1)))
    assert list(settled(rig)) == [7]


def test_a_range_of_a_former_topic_has_no_effect() -> None:
    rig = owner(Progress(0, log=LogId("0a0b0c0d", "00000000")), d=decision(COMMIT))
    rig.take(samples.record(3, source=SOURCE, timestamp=WALL - 60_000, life=samples.life(2, WALL - 1)))
    assert rig.out_offsets() == [3]


def test_a_rate_keeps_the_others_for_later() -> None:
    rig = owner(d=decision(COMMIT, rate="1/s"))
    offsets = list[int]()
    for second in range(8):
        while rig.scans:
            scan(rig, *(waiting(n) for n in (1, 2, 3, 4) if n >= rig.scans[0][2]))
        rig.run(1_000)
        while rig.batches:
            offsets += [entry.record.offset for entry in rig.conclude().entries]
        assert len(offsets) <= second + 2, "a second of the rate may be used at once"
    assert offsets == [1, 2, 3, 4]
