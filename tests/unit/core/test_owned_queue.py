"""What an owner knows of a queue: copies that are lost, a main topic that is short, and what is shown of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.ages import Ages
from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.ledger import KeyLedger, QueuedCopy, identity_of
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.own_copies import OwnCopies, as_read_back, located_copy
from reconsume.sidecar.core.owned_queue import LOST_AFTER_MS, SHORT_AFTER_MS, OwnedQueue, QueueFacts, fill_of
from reconsume.sidecar.core.partition import AWAY, FetchedRecords, Kind, PartitionState
from reconsume.sidecar.core.progress import Bounds, Progress
from reconsume.sidecar.core.reasons import NotDelivered
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record, weight_of
from reconsume.sidecar.core.status import keys_status, partition_rows
from reconsume.sidecar.core.why import PartitionWaits, Waiting
from reconsume.sidecar.kafka.messages import queue_reading_of
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.render_headers import as_read, render_retry_headers
from reconsume.topics.retry_headers import RetryState, parse_retry_headers
from reconsume.topics.retry_order import Order
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import after_failure, put_behind, tried_now
from tests.sim import samples
from tests.sim.ladder_rig import QUEUE, WAITS, LadderRig, behind, rules, waiting
from tests.sim.samples import ORDERS, WALL

POLICY = samples.policy(queued=True, retries=1)
PARKING = replace(POLICY, parks=True)
MAIN, ORDERED = Partition("orders", 3), Partition("billing-ORDERED-orders", 3)
FAIL = Failed("http-500", "no")
HEADERS: list[tuple[str, bytes | None]] = [("trace", b"1"), ("REAL_TOPIC", b"another group's"), ("empty", None)]
COUNTS, TIMES = st.integers(0, 10**7), st.integers(0, 10**15)


def first(value: bytes | None = b"value", offset: int = 7) -> Record:
    """A record of the main topic."""
    return Record(MAIN, offset, 4, WALL - 9, b"key", value, HEADERS, None, "", 1_300)


def again(state: RetryState) -> Record:
    """A copy of it, as it is read in its queue."""
    headers = render_retry_headers(state, "billing", ORDERED.topic)
    return Record(ORDERED, 40, 4, WALL, b"key", b"value", headers, as_read(state), "", 1_300)


def settled(record: Record, way: str) -> SettledRecord:
    """A record with a decision after which it waits in its queue."""
    terms = PARKING if way == "parked" else POLICY
    match way:
        case "behind":
            decision: Any = put_behind(record, terms)
        case "by hand":
            decision = tried_now(record, "because", "nonce", WALL)
        case _:
            decision = after_failure(record, FAIL, terms, WALL)
    return SettledRecord(record, decision, writes_of(record, decision, terms, WALL))


STATE = RetryState("orders:3:7", "orders", 0, 0, WALL, WALL - 9, WALL - 5, "why", order=Order(7))
CASES = {
    "first": settled(first(), "first"),
    "a null value": settled(first(None), "first"),
    "behind": settled(first(), "behind"),
    "redriven": settled(again(replace(STATE, redrives=1, order=Order(12, 2), last_failed_at=WALL - 1)), "again"),
    "parked": settled(again(replace(STATE, times=1)), "parked"),
    "by hand": settled(again(replace(STATE, times=1, due_at=0, parked=True)), "by hand"),
}


@pytest.mark.parametrize("entry", CASES.values(), ids=CASES)
def test_an_own_copy_is_known_as_whoever_reads_it_would_know_it(entry: SettledRecord) -> None:
    copy, decision = entry.writes[0], entry.decision
    state, fault = queue_reading_of(lambda: POLICY)(copy.headers, ORDERED, 52, WALL + 3)
    weight = weight_of(copy.key, copy.value, copy.headers, state)
    read = Record(ORDERED, 52, 4, WALL + 3, copy.key, copy.value, copy.headers, state, fault, weight)
    assert (copy.topic, copy.spread, fault) == (*ORDERED, "")
    assert as_read_back(entry, decision.retry_state, ORDERED, (52, WALL + 3)) == read  # type: ignore[union-attr]


@pytest.mark.parametrize("entry", CASES.values(), ids=CASES)
def test_a_ledger_gets_of_it_what_it_would_get_of_the_record(entry: SettledRecord) -> None:
    state: Any = entry.decision.retry_state  # type: ignore[union-attr]
    identity = identity_of(entry.record)
    copy = located_copy(entry, state, identity, b"key", (52, WALL + 3), Now(WALL - 1_000, 77))
    read = as_read_back(entry, state, ORDERED, (52, WALL + 3))
    assert identity == identity_of(read)
    assert (copy.offset, copy.order, copy.attempt) == (52, state.order, attempt_of(state))
    assert copy.due_ms == (NEVER if state.parked else 77 + max(0, state.due_at - (WALL - 1_000)))
    assert copy.written_ms == read.timestamp
    assert copy.weight > 0


class Queue(NamedTuple):
    """The log of a queue: its records by offset, and what each transaction of the lane tells of its own."""

    records: list[int]
    told: list[list[int]]


def queue_of(transactions: list[str]) -> Queue:
    """A log by letters: `o` a copy of ours, `u` one of which the broker tells no offset, `f` one of others; `x` begins
    a transaction of ours whose records are aborted, and `?` one whose end the lane does not hear of. Others' records
    stand without a marker, so that they are hardest to tell from one."""
    records, told, end = list[int](), list[list[int]](), 0
    for letters in transactions:
        mine = list[int]()
        for letter in letters.lstrip("x?"):
            if letter == "f" or not letters.startswith("x"):
                records.append(end)
            if letter == "o":
                mine.append(end)
            end += 1
        if set(letters) - {"f"}:
            end += 1  # the marker
            told.append([] if letters[0] in "x?" else mine)
    return Queue(records, told)


TRANSACTIONS = st.lists(
    st.tuples(st.sampled_from(("", "", "x", "?")), st.text("oofu", min_size=1, max_size=4)).map("".join), max_size=8
)


@example(["ofo"], [])
@example(["f", "o"], [])
@example(["o", "xo", "o"], [])
@example(["o", "?o", "o", "f", "oo"], [-1, -1, 1])
@given(TRANSACTIONS, st.lists(st.integers(-1, 4)))
def test_each_copy_is_taken_once_and_after_all_before_it_however_the_reader_and_the_commits_come(
    transactions: list[str], steps: list[int]
) -> None:
    """A step is the next commit that the lane hears of (−1), or so many records that the reader hands over."""
    queue, own = queue_of(transactions), OwnCopies()
    taken, unread, told, known_to = list[int](), list(queue.records), enumerate(queue.told, 1), 0

    def take(offset: int) -> None:
        nonlocal known_to
        taken.append(offset)
        known_to = offset + 1
        assert taken == queue.records[: len(taken)]

    for step in [*steps, *[-1] * len(queue.told), len(queue.records)]:
        if step < 0:
            number, offsets = next(told, (0, []))
            for offset in offsets:
                if own.continues((0, number), offset, known_to):
                    take(offset)
        for offset in unread[: max(0, step)]:
            if offset >= known_to:
                take(offset)
        del unread[: max(0, step)]
    assert taken == queue.records


def test_nothing_is_read_back_while_only_this_lane_writes() -> None:
    own, known_to = OwnCopies(), 5
    for number, offsets in enumerate(([5, 6], [8], [10, 11, 12])):
        for offset in offsets:
            assert own.continues((0, number), offset, known_to)
            known_to = offset + 1


def test_copies_behind_others_are_read_back_until_the_reader_is_where_the_lane_writes() -> None:
    own = OwnCopies()
    assert [own.continues((0, 1), offset, 5) for offset in (6, 7)] == [False, False]
    assert own.continues((0, 2), 9, 8)


def test_a_copy_below_another_is_in_another_log_and_left_to_the_reader() -> None:
    own = OwnCopies()
    assert own.continues((0, 1), 7, 7)
    assert not own.continues((0, 2), 3, 8)
    assert own.continues((0, 3), 9, 8), "what is known ends with the copy at 7"


@pytest.mark.parametrize(("second", "taken"), [((4, 2), True), ((5, 2), False)])
def test_the_offset_behind_the_transaction_of_another_producer_is_read(second: tuple[int, int], taken: bool) -> None:
    """Its marker may come behind the records of this one, and the offset between be anybody's."""
    own = OwnCopies()
    assert own.continues((4, 1), 7, 7)
    assert own.continues(second, 9, 8) == taken


@given(COUNTS, COUNTS, TIMES, st.integers(-1, 2**63 - 1), TIMES, st.just(0) | TIMES, COUNTS)
def test_what_is_read_of_a_retry_state_is_foreseen(
    times: int, redrives: int, due_at: int, timestamp: int, failed: int, last: int, most: int
) -> None:
    state = RetryState("orders:3:7", "orders", times, redrives, due_at, timestamp, failed, "why", 0, last, most)
    for one in (state, replace(state, last_failed_at=failed), replace(state, order=Order(9, 1), behind=True)):
        headers = render_retry_headers(one, "billing", ORDERED.topic)
        assert parse_retry_headers(headers, ("orders",), 10**16) == as_read(one)


# --- A queue that is cut before a copy was read back: no key stands for ever, and what can still come is -------------


def rig_with_a_copy_on_its_way(*, committed: bool = True) -> LadderRig:
    """A lane whose record at 0 has failed; its copy is not read back. Another key has nothing to do with it."""
    rig = LadderRig(concurrency=2)
    rig.take_over()
    rig.settle()
    rig.arrive(b"a", b"b")
    rig.fail(0)
    rig.run(20)
    if committed:
        rig.conclude()
    return rig


def cut(rig: LadderRig) -> None:
    """Let all that lies in the queue go, unread."""
    rig.read_to = rig.end
    rig.queues.cut(QUEUE, rig.part().epoch, rig.end, rig.now)
    rig.check()


def end(rig: LadderRig) -> None:
    """Say that the queue was read up to its end."""
    rig.queues.read(FetchedRecords(QUEUE, rig.part().epoch, 0, [], rig.end), rig.now, caught_up=True)
    rig.check()


def test_a_copy_that_is_gone_is_given_up_after_a_minute_and_its_key_goes_on() -> None:
    rig = rig_with_a_copy_on_its_way()
    cut(rig)
    end(rig)
    rig.run(LOST_AFTER_MS - 100)
    rig.arrive(b"a")
    rig.flow()
    assert rig.out() == [1], "the record behind it waits in the queue"
    rig.run(200)
    rig.take_it(1)
    rig.flow(WAITS[1])
    assert rig.out() == [2]
    assert rig.lane.ownership.records_lost["orders"] == 1


def test_what_stood_behind_a_copy_that_is_gone_goes_out_without_any_other_event() -> None:
    """All else is idle then: without a wake-up of its own the key would stand until the next look for old copies."""
    rig = rig_with_a_copy_on_its_way()
    rig.take_it(1)
    cut(rig)
    end(rig)
    rig.arrive(b"a")
    rig.flow()
    assert rig.out() == rig.reader.wanted == []
    rig.run(LOST_AFTER_MS + 100)
    assert rig.reader.wanted == [1], "the record behind it is asked for"


def test_nothing_is_given_up_before_the_log_was_read_to_its_end() -> None:
    rig = rig_with_a_copy_on_its_way()
    cut(rig)
    rig.run(2 * LOST_AFTER_MS)
    assert len(rig.lane.ownership.records_lost) == 0
    end(rig)
    assert rig.lane.ownership.records_lost["orders"] == 1


def test_what_is_gone_is_given_up_in_a_queue_in_which_more_comes_without_a_pause() -> None:
    """The client reports no end of such a log; what it held at the cut was read all the same."""
    rig = rig_with_a_copy_on_its_way()
    cut(rig)
    rig.run(LOST_AFTER_MS)
    assert len(rig.lane.ownership.records_lost) == 0
    copy = replace(rig.log[0], offset=rig.end, key=b"c", retry_state=waiting(7))
    rig.queues.read(FetchedRecords(QUEUE, rig.part().epoch, 0, [copy], None), rig.now, caught_up=True)
    assert rig.lane.ownership.records_lost["orders"] == 1


@pytest.mark.parametrize("committed", [True, False])
def test_a_copy_that_comes_after_the_cut_is_delivered_as_ever(committed: bool) -> None:
    """It lay behind the new beginning, or was committed only afterwards."""
    rig = rig_with_a_copy_on_its_way(committed=committed)
    rig.queues.cut(QUEUE, rig.part().epoch, rig.end, rig.now)
    rig.take_it(1)
    if not committed:
        rig.run(LOST_AFTER_MS)
        end(rig)
    rig.flow(WAITS[0])
    rig.fail(0)
    rig.flow()
    rig.run(LOST_AFTER_MS)
    rig.flow(WAITS[1])
    assert rig.take_it(0).times == 2
    assert len(rig.lane.ownership.records_lost) == 0


def test_a_copy_that_is_being_written_at_the_cut_has_a_minute_from_its_end_at_most() -> None:
    """Its transaction may have written it before the cut."""
    rig = rig_with_a_copy_on_its_way(committed=False)
    cut(rig)
    end(rig)
    rig.run(LOST_AFTER_MS)
    rig.conclude()
    rig.read_to = rig.end
    end(rig)
    rig.run(LOST_AFTER_MS)
    assert rig.lane.ownership.records_lost["orders"] == 1


# --- A record that waits in a queue although its main topic, made anew or cut, has no such offset any ----------------


FAR = 5_000
"""The offset of a record of the former log."""


def former(end: int = 0) -> LadderRig:
    """A lane in whose queue two records of one key of a former log wait; the present one has `end` records."""
    rig = LadderRig()
    rig.put(waiting(FAR))
    rig.put(behind(FAR + 1))
    rig.take_over(main=Progress(end))
    return rig


def end_at(rig: LadderRig, end: int) -> None:
    """Tell the lane that the main partition was read up to its end."""
    seeks = rig.part().seek_count
    rig.lane.received([FetchedRecords(ORDERS, rig.part().epoch, seeks, [], end)], rig.now)
    rig.flow()


def test_it_goes_out_once_all_that_there_is_was_read_for_a_minute() -> None:
    rig = former()
    end_at(rig, 0)
    rig.flow(SHORT_AFTER_MS - 1_000)
    assert rig.out() == []
    rig.flow(2_000)
    assert rig.out() == [FAR]
    rig.fail(FAR)
    rig.flow(WAITS[1])
    assert rig.out() == [FAR], "its retry need not wait a minute again"
    rig.take_it(FAR)
    rig.flow()
    assert rig.out() == [FAR + 1]
    rig.take_it(FAR + 1)
    rig.flow()
    assert not rig.queues.facts()[ORDERS].blocked_keys


def test_it_waits_while_more_of_the_main_partition_is_to_come() -> None:
    """As where its progress was lost, and all is read again."""
    rig = former()
    for _ in range(5):
        rig.arrive(b"b")
        rig.take_it(rig.out()[0])
        rig.flow(SHORT_AFTER_MS)
    assert rig.out() == []


def test_a_record_of_its_key_that_is_out_comes_first() -> None:
    rig = former()
    rig.arrive(b"a")
    end_at(rig, 1)
    rig.flow(SHORT_AFTER_MS + 1_000)
    assert rig.out() == [0]
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [FAR]


@pytest.mark.parametrize("growing", [False, True])
def test_a_busy_topic_that_is_made_anew_keeps_it_no_longer(growing: bool) -> None:
    rig = former()
    for number in range(7):
        if growing:
            rig.arrive(b"b")
            rig.take_it(number)
        end_at(rig, rig.next_main)
        rig.flow(SHORT_AFTER_MS // 5)
    assert rig.out() == [FAR]


def test_an_end_that_was_only_late_keeps_the_order() -> None:
    """A leader told an end that lay before what its predecessor had given; then the rest comes."""
    rig = LadderRig()
    rig.put(waiting(3))
    rig.take_over(main=Progress(1))
    end_at(rig, 1)
    rig.flow(SHORT_AFTER_MS // 2)
    rig.next_main = 1
    rig.arrive(b"a", b"b")
    assert rig.out() == [1, 2]
    rig.take_it(2)
    rig.flow(SHORT_AFTER_MS)
    assert rig.out() == [1]
    rig.arrive(b"c")
    rig.take_it(1)
    rig.flow()
    assert 3 in rig.out()


# --- what is seen of the queue of a partition: its counts, when it is named, and what `/status` makes of -------------


MOST = 100


def queue(*keys: bytes) -> OwnedQueue:
    """A queue in which one record of each key waits, in the order of their offsets."""
    rig = LadderRig(policy=replace(rules(), max_waiting=MOST))
    rig.begin()
    owned = rig.queues.by_main[ORDERS]
    for offset, key in enumerate(keys):
        wait(owned.ledger, offset, key)
    return owned


def wait(ledger: KeyLedger, offset: int, key: bytes) -> None:
    ledger.read(QueuedCopy(1_000 + offset, (offset, WALL - offset), key, Order(offset), Attempt(0, 0, 0), 0))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((), QueueFacts(0, 0, 0)),
        ((b"a",), QueueFacts(1, 0, 0, due_ms=0)),
        ((b"a", b"b", b"a", b"a"), QueueFacts(2, 2, 0, due_ms=0)),
        ((b"",) * 4, QueueFacts(1, 3, 0, due_ms=0)),
    ],
)
def test_each_key_that_waits_is_blocked_and_what_is_not_its_first_is_behind(
    keys: tuple[bytes, ...], expected: QueueFacts
) -> None:
    assert queue(*keys).facts() == expected


@pytest.mark.parametrize(
    ("waiting", "end", "expected"),
    [(0, 0, 0), (25, 40, 0.25), (25, 200, 0.5), (50, 100, 0.5), (1, 400, 1.0), (150, 200, 1.5)],
)
def test_of_the_records_and_the_offsets_that_they_lie_between_the_fuller_bound_counts(
    waiting: int, end: int, expected: float
) -> None:
    # A transaction for each copy leaves a marker behind it: half of the offsets are no records.
    partition = PartitionState(ORDERS, 1, Kind("main", None), Progress(0), Bounds())
    for offset in (0, end - 1) if end else ():
        partition.offsets.begin(offset, AWAY, None)
    assert fill_of(waiting, partition, MOST, 400) == expected
    assert fill_of(waiting, None, MOST, 400) == 0


def test_a_key_that_waits_for_a_person_is_told_beside_the_blocked_ones() -> None:
    owned = queue(b"a", b"b", b"b")
    owned.ledger.read(QueuedCopy(2_000, (9, WALL), b"c", Order(9), Attempt(0, 0, 0), NEVER))
    assert owned.facts() == QueueFacts(3, 1, 0, parked_keys=1, due_ms=0)


def test_a_queue_is_named_at_three_quarters_and_again_only_after_it_was_half_full() -> None:
    owned = queue()
    named_at = []
    for count in (*range(101), *range(100, 49, -1), *range(50, 100), *range(99, 48, -1), *range(50, 101)):
        while len(owned.ledger) < count:
            wait(owned.ledger, len(owned.ledger), b"a")
        while len(owned.ledger) > count:
            owned.ledger.done((len(owned.ledger) - 1, WALL - len(owned.ledger) + 1))
        if owned.begins_to_fill(count / MOST):
            named_at.append(count)
    assert named_at == [75, 75]


def test_the_largest_keys_are_named_by_the_ids_of_their_first_records_and_never_by_themselves() -> None:
    owned = queue(b"ada@example.com", b"b", b"ada@example.com", b"ada@example.com", b"b", b"c")
    assert owned.named(owned.ledger.lines.largest(2)) == {"orders:0:0": 3, "orders:0:1": 2}


def test_the_oldest_is_the_first_record_of_a_key_with_the_lowest_timestamp() -> None:
    assert queue().ledger.lines.oldest_at() is None
    assert queue(b"a", b"b", b"a").ledger.lines.oldest_at() == WALL - 1


def facts(source: Partition) -> PartitionFacts:
    return PartitionFacts(source, Kind("main", None), 0, PartitionWaits(Waiting(0, NotDelivered.UNREAD)))


def test_status_shows_what_waits_of_the_partitions_that_have_queues() -> None:
    other, plain = Partition("orders", 1), Partition("billing-ORDERED-orders", 0)
    lane = LaneFacts(
        {source: facts(source) for source in (ORDERS, other, plain)},
        queues={ORDERS: QueueFacts(2, 3, 0.5, 1), other: QueueFacts(0, 0, 0.5)},
    )
    shown = partition_rows(lane, Ages().waits(lane, Now(WALL, 0)), Now(WALL, 0), {ORDERS: WALL - 700})
    fields = [
        tuple(row[name] for name in ("blocked_keys", "behind_records", "parked_keys", "oldest_for")) for row in shown
    ]
    assert fields == [(2, 3, 1, 700), (0, 0, 0, None), (None, None, None, None)]
    assert keys_status(shown) == {"blocked": 2, "behind": 3, "parked": 1, "oldest_for": 700}
    assert keys_status(shown[1:]) == {"blocked": 0, "behind": 0, "parked": 0, "oldest_for": None}
    assert keys_status(shown[2:]) is None, "a group without queues"
