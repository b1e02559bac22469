"""The two lists of reasons are closed: each reason comes about, `/status` shows it, and the runbook explains it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.ages import Ages, LogEnds
from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Throttled
from reconsume.sidecar.core.pace.rates import Rate, TopicTerms
from reconsume.sidecar.core.partition import AssignedPartition
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import SPAN, Progress
from reconsume.sidecar.core.reasons import DELIBERATE, NotDelivered, NotFetched, Reason, meaning_of
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.status import PartitionRow, partition_rows
from reconsume.topics.decision_record import COMMIT, DecidedRange, DecisionRecord
from reconsume.topics.position_ranges import PartitionResets, ResetRange
from tests.sim import samples
from tests.sim.ladder_rig import QUEUE, LadderRig, rules, waiting
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, record
from tests.sim.suspect_rigs import died, taken_up
from tests.unit.core.test_position_reset import LOG, ordered_to

RUNBOOK = Path(__file__).parents[3] / "docs" / "runbook.md"
READY = Partition("billing-RETRY", 0)
LEVEL, INVOICES = Partition("billing-RETRY-10s", 0), Partition("invoices", 0)
WEIGHT = record(0).weight


def shown(rig: Rig | LadderRig, ends: LogEnds | None = None) -> PartitionRow:
    """The last partition as `/status` shows it, after a look at the ends of the logs."""
    ages, facts = Ages(), rig.lane.shown.facts(rig.now)
    if ends is not None:
        ages.note_ends(ends, facts, rig.now)
    return partition_rows(facts, ages.waits(facts, rig.now), rig.now)[-1]


def begun(rig: Rig, *offsets: int) -> Rig:
    """A main partition of which these offsets were read."""
    rig.assign(ORDERS)
    rig.take_offsets(offsets)
    return rig


# --- what brings each reason about ---------------------------------------------------------------------------------


def released() -> PartitionRow:
    rig = begun(Rig(concurrency=1), 0, 1)
    rig.release(ORDERS)
    return shown(rig)


def in_doubt() -> PartitionRow:
    beside = begun(Rig(order="key"), 0)
    beside.answer(Failed("http-500"))
    beside.run(25)
    beside.lane.member_refused()
    return shown(begun(Rig(beside=beside), 0))


def refused() -> PartitionRow:
    rig = begun(Rig(), 0, 1)
    rig.answer(Failed("http-500"))
    rig.run(25)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    return shown(rig)


def being_reset() -> PartitionRow:
    rig = Rig(concurrency=1)
    rig.assign(ORDERS, resume=Progress(0, log=LOG))
    rig.take_offsets([0, 1])
    rig.lane.reset([ordered_to(0)], {}, rig.now)
    return shown(rig)


def superseded() -> PartitionRow:
    rig = Rig(retry=True, concurrency=1)
    rig.assign(READY)
    rig.take(*(record(offset, source=READY, life=samples.life()) for offset in (0, 1)))
    resets = PartitionResets(LOG.topic, 1, (ResetRange(0, 9, 1, WALL),), ("r1",))
    rig.lane.reset([], {ORDERS: resets}, rig.now)
    return shown(rig)


def held() -> PartitionRow:
    rig = Rig()
    rig.assign(ORDERS)
    rig.lane.hold(Holds([Hold("h")]), rig.now)
    rig.take_offsets([0])
    return shown(rig, LogEnds({ORDERS: 1}))


def held_by_key() -> PartitionRow:
    rig = Rig(order="key")
    rig.assign(ORDERS)
    rig.lane.hold(Holds([Hold("h", key=b"a")]), rig.now)
    rig.take(record(0, key=b"a"), record(1, key=b"a"))
    return shown(rig)


def behind_a_topic(**terms: object) -> PartitionRow:
    rig = Rig(terms={"orders": TopicTerms(**terms)})  # type: ignore[arg-type]
    return shown(begun(rig, 0, 1, 2))


def behind_a_rate() -> PartitionRow:
    rig = Rig()
    rig.gate.limits.set_rates(Rate(1, 3_600_000), None, rig.now)
    return shown(begun(rig, 0, 1, 2))


def not_due() -> PartitionRow:
    rig = Rig(retry=True)
    rig.assign(LEVEL)
    rig.take(record(0, source=LEVEL, timestamp=WALL - 9_000, life=samples.life(due_at=WALL + 1_000)))
    return shown(rig)


def level_not_due() -> PartitionRow:
    rig = Rig(retry=True)
    rig.assign(LEVEL)
    rig.take(record(0, source=LEVEL, timestamp=WALL, life=samples.life(due_at=WALL + 10_000)))
    return shown(rig)


def retried() -> PartitionRow:
    rig = begun(Rig(order="partition", policy=replace(samples.policy(), in_place=InPlace(5_000, None))), 0)
    rig.answer(Failed("http-500"))
    return shown(rig)


def behind_its_key() -> PartitionRow:
    rig = begun(Rig(order="partition"), 0, 1)
    return shown(rig)


def unread() -> PartitionRow:
    rig = Rig()
    rig.assign(ORDERS)
    return shown(rig, LogEnds({ORDERS: 5}, {ORDERS: 5}))


def uncommitted() -> PartitionRow:
    rig = begun(Rig(), 0)
    rig.answer(Failed("http-500"))
    return shown(rig)


def behind_a_queue() -> PartitionRow:
    rig = LadderRig()
    rig.begin()
    return shown(rig)


def behind_keys() -> PartitionRow:
    rig = LadderRig(policy=replace(rules(), max_waiting=1))
    rig.begin(Progress(100))
    rig.put(waiting(3, due_in=60_000))
    rig.open()
    rig.look()
    rig.arrive(b"x")
    return shown(rig)


def far_from_the_oldest() -> PartitionRow:
    rig = Rig(concurrency=SPAN, room=1 << 30)
    rig.assign(ORDERS)
    rig.take_offsets(range(SPAN + 1))
    return shown(rig)


def done_before() -> PartitionRow:
    rig = Rig(concurrency=8)
    rig.assign(ORDERS, resume=Progress(0, OffsetRanges([(1, 5_000)])))
    rig.take_offsets(range(9))
    return shown(rig)


def full() -> PartitionRow:
    return shown(begun(Rig(concurrency=1, room=2 * WEIGHT), *range(3)))


def beyond_its_share() -> PartitionRow:
    rig = Rig(concurrency=1, room=8 * WEIGHT)
    rig.assign(INVOICES, ORDERS)
    rig.take_offsets(range(6))
    rig.take_offsets([6])
    return shown(rig)


def without_a_leader() -> PartitionRow:
    rig = Rig()
    rig.assign(ORDERS)
    return shown(rig, LogEnds({}, unanswered={ORDERS}))


def behind_a_transaction() -> PartitionRow:
    rig = Rig()
    rig.assign(ORDERS)
    return shown(rig, LogEnds({ORDERS: 5}, {ORDERS: 0}))


def with_notes() -> PartitionRow:
    rig = Rig()
    rig.lane.assigned([AssignedPartition(ORDERS, 1, Progress(0, notes=True))], rig.now)
    return shown(rig, LogEnds({ORDERS: 5}, {ORDERS: 5}))


def kept_for_a_rate() -> PartitionRow:
    rig = Rig(retry=True)
    rig.lane.assigned([AssignedPartition(LEVEL, 1, Progress(0))], rig.now)
    ranges = (DecidedRange(*LEVEL, "", 0, 9),)
    rig.lane.decide({"d": DecisionRecord(COMMIT, "ann", "seen", WALL, ranges, rate="1/h")}, rig.now)
    for offset in (0, 1):
        rig.take(record(offset, source=LEVEL, timestamp=WALL - 60_000, life=samples.life(due_at=WALL - 1)))
    rig.settle()
    return shown(rig)


D: Mapping[NotDelivered, Callable[[], PartitionRow]] = {
    NotDelivered.CLOSING: released,
    NotDelivered.MEMBERSHIP: in_doubt,
    NotDelivered.UNREAD_NOTES: with_notes,
    NotDelivered.REFUSED: refused,
    NotDelivered.UNPROVEN: lambda: shown(begun(Rig(proves_room=True), 0)),
    NotDelivered.BEHIND_RESET: being_reset,
    NotDelivered.SUPERSEDED: superseded,
    NotDelivered.DECIDED: kept_for_a_rate,
    NotDelivered.HELD: held_by_key,
    NotDelivered.SUSPECT: lambda: shown(taken_up(died(1), 0)),
    NotDelivered.TOPIC_RATE: lambda: behind_a_topic(rate=Rate(1, 3_600_000)),
    NotDelivered.TOPIC_CONCURRENCY: lambda: behind_a_topic(concurrency=1),
    NotDelivered.RATE: behind_a_rate,
    NotDelivered.PACE: lambda: shown(begun(Rig(concurrency=1), 0, 1)),
    NotDelivered.NOT_DUE: not_due,
    NotDelivered.RETRIED: retried,
    NotDelivered.ORDER: behind_its_key,
    NotDelivered.UNREAD: unread,
    NotDelivered.UNCOMMITTED: uncommitted,
}

F: Mapping[NotFetched, Callable[[], PartitionRow]] = {
    NotFetched.CLOSING: released,
    NotFetched.UNREAD_NOTES: with_notes,
    NotFetched.REFUSED: refused,
    NotFetched.QUEUE_UNREAD: behind_a_queue,
    NotFetched.BEHIND_KEYS: behind_keys,
    NotFetched.BEHIND_RESET: being_reset,
    NotFetched.HELD: held,
    NotFetched.NOT_DUE: level_not_due,
    NotFetched.DISTANCE: far_from_the_oldest,
    NotFetched.DONE: done_before,
    NotFetched.MEMORY: full,
    NotFetched.SHARE: beyond_its_share,
    NotFetched.NO_LEADER: without_a_leader,
    NotFetched.TRANSACTION: behind_a_transaction,
}


@pytest.mark.parametrize("reason", NotDelivered)
def test_each_reason_why_a_record_is_not_delivered_comes_about_and_is_shown(reason: NotDelivered) -> None:
    assert D[reason]()["not_delivered"] is reason


@pytest.mark.parametrize("reason", NotFetched)
def test_each_reason_why_a_partition_is_not_fetched_comes_about_and_is_shown(reason: NotFetched) -> None:
    assert F[reason]()["not_fetched"] is reason


def test_a_partition_that_works_or_is_idle_has_no_reason() -> None:
    rig = begun(Rig(), 0)
    for _ in range(2):
        status = shown(rig, LogEnds({ORDERS: 1}, {ORDERS: 1}))
        assert (status["not_delivered"], status["not_fetched"], status["undelivered_for"]) == (None, None, 0)
        if rig.sent:
            rig.answer(COMMITTED)


def test_of_several_gates_the_first_of_the_list_is_the_reason() -> None:
    beside = begun(Rig(order="key"), 0)
    beside.answer(Failed("http-500"))
    beside.run(25)
    beside.lane.member_refused()
    held_in_doubt = Rig(beside=beside)
    held_in_doubt.assign(ORDERS)
    held_in_doubt.lane.hold(Holds([Hold("h", key=b"held")]), held_in_doubt.now)
    held_in_doubt.take(record(0, key=b"held"))
    assert shown(held_in_doubt)["not_delivered"] is NotDelivered.MEMBERSHIP


def test_what_a_refused_partition_does_not_keep_in_memory_is_refused_with_it() -> None:
    rig = begun(Rig(concurrency=1), 0, 1)
    rig.answer(Failed("http-500"))
    rig.answer(COMMITTED)
    rig.take_offsets([2])
    rig.run(25)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    facts = rig.lane.shown.facts(rig.now).partitions[ORDERS]
    assert facts.waits.unread.reason is NotDelivered.REFUSED


def test_a_queue_of_which_no_head_is_due_says_so() -> None:
    rig = LadderRig()
    rig.begin(Progress(100))
    rig.put(waiting(3, due_in=60_000))
    rig.open()
    rig.look()
    ages, facts = Ages(), rig.lane.shown.facts(rig.now)
    queue, _ = partition_rows(facts, ages.waits(facts, rig.now), rig.now)
    assert (queue["topic"], queue["not_delivered"], queue["undelivered_for"]) == (QUEUE.topic, NotDelivered.NOT_DUE, 0)


def test_what_is_held_is_told_before_what_is_not_due() -> None:
    rig = begun(Rig(), 0)
    rig.answer(Throttled(60_000))
    assert shown(rig)["not_delivered"] is NotDelivered.NOT_DUE
    rig.lane.hold(Holds([Hold("h", key=b"held")]), rig.now)
    rig.take(record(1, key=b"held"))
    assert shown(rig)["not_delivered"] is NotDelivered.HELD


@pytest.mark.parametrize("page", ["contract", "runbook", "glossary"])
def test_each_page_that_lists_the_deliberate_reasons_lists_all_of_them(page: str) -> None:
    text = RUNBOOK.with_name(f"{page}.md").read_text()
    lines = [line for line in text.splitlines() if "deliberate" in line and "`not-due`" in line]
    assert [set(re.findall(r"`([a-z-]+)`", line)) & set(NotDelivered) for line in lines] == [set(DELIBERATE)]


def test_what_an_operator_holds_waits_deliberately_with_what_is_behind_it() -> None:
    assert (held()["not_delivered"], held_by_key()["not_delivered"]) == (NotDelivered.HELD, NotDelivered.HELD)
    assert {
        *(NotDelivered.DECIDED, NotDelivered.HELD, NotDelivered.RATE, NotDelivered.TOPIC_RATE, NotDelivered.NOT_DUE),
    } == DELIBERATE


@pytest.mark.parametrize("reason", [*NotDelivered, *NotFetched], ids=lambda one: f"{type(one).__name__}-{one}")
def test_the_runbook_has_each_reason_with_its_meaning(reason: Reason) -> None:
    rows = [line for line in RUNBOOK.read_text().splitlines() if line.startswith(f"| `{reason}` | ")]
    assert any(f"| {reason.meaning}" in row for row in rows), f"| `{reason}` | {reason.meaning} | … |"


def test_a_word_that_another_instance_has_written_has_its_meaning_or_none() -> None:
    assert [meaning_of(word) for word in ("held", "no such reason", "")] == [NotDelivered.HELD.meaning, "", ""]
