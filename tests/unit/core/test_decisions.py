"""What a lane decides: outputs with their record, headers and topics that are not its own (1.12, 2.9, 4.4)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitResult, Refusal, RefusedBy
from reconsume.sidecar.core.counters import MOST_STRAYS, OTHERS, UNKNOWN, LaneCounters
from reconsume.sidecar.core.decide import decide
from reconsume.sidecar.core.outcome import COMMITTED, Committed, Failed, Rejected
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import HEADER_COST, RECORD_COST, Partition, Record, weight_of
from reconsume.sidecar.dlq.letters import Eligibility, RedriveRequest, read_letter, redrive
from reconsume.sidecar.dlq.redrive_history import RedriveHistory, eligibility
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.levels import TABLE
from reconsume.topics.outputs import RETRY_OUTPUT_OF
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import BadHeader, Headers, RetryState, parse_retry_headers
from reconsume.topics.transition_records import Copy, writes_of
from reconsume.topics.transitions import AT_ONCE, Commit, DeadLetter, Forward, Hop, Retry, after_wait
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, policy, record

ONE, TWO = Copy("invoices", b"k", b"v" * 1_000, []), Copy("mail", None, None, [("a", b"1")])


def answered(outcome: Committed | Failed | Rejected, rig: Rig | None = None) -> Rig:
    """One record is out and answered, and its batch is in flight."""
    rig = rig or Rig(policy=policy(retries=1))
    rig.assign(ORDERS)
    rig.take_offsets([0])
    rig.answer(outcome)
    rig.run(2)
    return rig


def refuse(rig: Rig, refusal: Refusal) -> None:
    """Kafka refuses an entry of the batch that is out."""
    rig.lane.committed(CommitResult(rig.batches.pop(0), False, refused=(refusal,)), rig.now)
    rig.check()


def test_outputs_go_with_the_progress_of_their_record_behind_its_copy_and_event() -> None:
    rig = answered(Failed("busy", outputs=(ONE, TWO)))
    (entry,) = rig.batches[0].entries
    assert [copy.topic for copy in entry.writes] == ["billing-RETRY-10s", "billing-RETRY-EVENTS", "invoices", "mail"]
    assert entry.outputs == 2
    stamps = [dict(copy.headers).get(RETRY_OUTPUT_OF) for copy in entry.writes]
    assert stamps == [None, None, b"orders:0:0/0/0#0", b"orders:0:0/0/0#1"]


def test_their_bytes_count_until_the_record_is_done() -> None:
    plain, heavy = Rig(policy=policy()), answered(Committed((ONE,)))
    plain.assign(ORDERS)
    plain.take_offsets([0])
    assert 2_000 < heavy.lane.room.load - plain.lane.room.load < 2_500
    heavy.conclude()
    assert heavy.lane.room.load == 0
    assert heavy.kafka[ORDERS].next == 1


@pytest.mark.parametrize(
    ("about", "where", "fails"),
    [
        ("topic", "invoices", True),
        ("record", "invoices[2]", True),
        ("record", "", True),
        ("partition", "invoices[2]", False),
        ("topic", "billing-RETRY-10s", False),
        ("record", "billing-DLQ[0]", False),
    ],
)
def test_what_kafka_refuses_for_good_is_a_failure_and_else_the_record_waits(
    about: RefusedBy, where: str, fails: bool
) -> None:
    rig = answered(Committed((ONE,)))
    (entry,) = rig.batches[0].entries
    refuse(rig, Refusal(entry, about, "it says so", where))
    assert (len(rig.lane.machines.outbox.refused) == 0) == fails
    rig.run(600)
    (again,) = rig.batches[0].entries
    if fails:
        assert (again.outputs, again.decision.retry_state.reason) == (0, "output-refused: it says so")  # type: ignore[union-attr]
        rig.conclude()
        assert rig.lane.room.load == 0
    else:
        assert again == entry


def test_a_last_failure_without_its_outputs_is_a_dead_letter() -> None:
    rig = answered(Committed((ONE,)), Rig(policy=replace(policy(), max_reconsume_times=0)))
    (entry,) = rig.batches[0].entries
    refuse(rig, Refusal(entry, "topic", "topic invoices is missing", "invoices"))
    rig.run(600)
    (dead,) = rig.batches[0].entries
    assert dead.writes[0].topic == "billing-DLQ"
    assert dead.decision.retry_state.reason == "output-refused: topic invoices is missing"  # type: ignore[union-attr]


TRACE = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


@pytest.mark.parametrize("traced", [True, False])
def test_outputs_carry_the_trace_of_the_attempt_where_attempts_are_traced(traced: bool) -> None:
    for headers, trace in (([("RETRY_TRACEPARENT", TRACE)], TRACE if traced else None), ([], None), (None, None)):
        rig = Rig(policy=replace(policy(), traced=traced))
        rig.assign(ORDERS)
        rig.take(replace(record(), headers=headers))
        rig.answer(Committed((ONE, TWO)))
        rig.run(2)
        (entry,) = rig.batches[0].entries
        assert [dict(copy.headers).get("traceparent") for copy in entry.writes] == [trace, trace]


def test_a_record_weighs_as_much_more_as_its_outputs_with_keys_and_headers() -> None:
    rig = answered(Committed((ONE, TWO)))
    outputs = sum(weight_of(copy.key, copy.value, copy.headers, None) for copy in (ONE, TWO))
    assert rig.lane.room.load == record().weight + outputs
    assert outputs == 2 * RECORD_COST + 1_001 + HEADER_COST + 2


# --- A record on a main topic that another system has retried before: it goes on where that system -------------------


BAD = Failed("http-500")
THEIRS = RetryState("orders:0:0", "orders", times=2, timestamp=WALL - 86_400_000, reason="retried-by-spring")


def foreign(life: RetryState = THEIRS) -> Record:
    return samples.record(timestamp=WALL - 60_000, life=life)


def begun(life: RetryState = THEIRS, retries: int = 16) -> Rig:
    rig = Rig(policy=samples.policy(retries=retries))
    rig.assign(ORDERS)
    rig.take(foreign(life))
    return rig


def event_of(value: bytes | None) -> Event:
    event = decode_event(value)
    assert isinstance(event, Event)
    return event


def test_it_is_delivered_at_once_and_its_wait_elsewhere_is_no_lateness_of_ours() -> None:
    rig = begun()
    (sent,) = rig.sent
    assert (sent.record.times, sent.at) == (2, 0)
    assert sum(rig.lane.counters.lateness.counts) == 0


def test_its_success_is_told_because_it_has_failed_before() -> None:
    rig = begun()
    rig.answer(COMMITTED)
    rig.run(1_000)
    (entry,) = rig.conclude().entries
    assert entry.decision == Commit(THEIRS)
    (write,) = entry.writes
    event = event_of(write.value)
    assert (event.state, event.times, event.id, event.reason) == (
        State.COMMIT,
        2,
        "orders:0:0",
        "retried-by-spring",
    )


def test_its_failure_counts_on_and_keeps_their_timestamp() -> None:
    rig = begun()
    rig.answer(BAD)
    rig.run(25)
    (entry,) = rig.conclude().entries
    assert isinstance(entry.decision, Retry)
    life = entry.decision.retry_state
    assert (life.times, life.timestamp, life.first_failed_at) == (3, THEIRS.timestamp, WALL)
    assert entry.writes[0].topic == "billing-RETRY-1m"


def test_what_had_all_its_retries_elsewhere_is_delivered_once_more_and_then_dead() -> None:
    rig = begun(replace(THEIRS, times=999_999), retries=4)
    rig.answer(BAD)
    rig.run(25)
    (entry,) = rig.conclude().entries
    assert isinstance(entry.decision, DeadLetter)
    assert len(rig.history) == 1


def test_a_plain_record_beside_it_writes_nothing_when_it_succeeds() -> None:
    rig = begun()
    rig.take(samples.record(1))
    rig.answer(COMMITTED, place=1)
    rig.run(1_000)
    assert rig.conclude().entries == ()


# --- retries of a main topic that this instance does not consume: passed on as they are, and in the end --------------


HOUR = 3_600_000
OLD, NEW = policy(), policy(topics=("orders", "parcels"))
LEVEL = Partition("billing-RETRY-10s", 3)
STRAY = RetryState("parcels:2:9", "parcels", 3, 1, WALL, WALL - 50, WALL - 40, "http-500: no")
OWN: Headers = [("a", b"1"), ("b", None), ("a", b"\xff")]


def stray(life: RetryState = STRAY, source: Partition = LEVEL, offset: int = 5) -> Record:
    """A copy of another instance's topic, as the retry lane reads it."""
    headers = OWN + render_retry_headers(life, "billing", source.topic)
    found, fault = samples.read(headers, OLD)
    return record(offset, source=source, timestamp=WALL - 10_000, headers=headers, life=found, fault=fault)


def copies(found: Record, rules: Policy = OLD, now: int = WALL) -> tuple[Copy, ...]:
    decision = after_wait(found, rules, now)
    assert isinstance(decision, Hop | DeadLetter)
    return writes_of(found, decision, rules, now)


def test_a_sound_life_of_an_unknown_topic_is_read_as_one() -> None:
    assert samples.read(render_retry_headers(STRAY, "billing", LEVEL.topic), OLD) == (STRAY, "")


@pytest.mark.parametrize(
    "topic", ["billing-RETRY", "billing-RETRY-10s", "billing-DLQ", "billing-RETRY-EVENTS", ".", ".."]
)
def test_a_life_of_the_groups_own_topics_or_of_no_legal_name_is_a_bad_header(topic: str) -> None:
    life = replace(STRAY, id=f"{topic}:0:1", topic=topic)
    assert topic not in OLD
    assert isinstance(parse_retry_headers(render_retry_headers(life, "billing", LEVEL.topic), OLD, WALL), BadHeader)


def test_a_stray_hops_on_unchanged_and_writes_no_event() -> None:
    (copy,) = copies(stray())
    assert (copy.topic, copy.key, copy.value) == ("billing-RETRY-5s", b"k", b"v")
    assert copy.headers == OWN + render_retry_headers(STRAY, "billing", "billing-RETRY-5s")


@pytest.mark.parametrize(
    ("table", "found", "level"),
    [
        (TABLE, "billing-RETRY", 30_000),
        (TABLE, "billing-RETRY-2h", 30_000),
        (TABLE, "billing-RETRY-30s", 10_000),
        (TABLE, "billing-RETRY-10s", 5_000),
        (TABLE, "billing-RETRY-5s", 1_000),
        (TABLE, "billing-RETRY-1s", 30_000),
        ((60_000, 120_000), "billing-RETRY-1m", 60_000),
        ((60_000, 120_000), "billing-RETRY-2m", 60_000),
        ((60_000, 120_000), "billing-RETRY", 60_000),
    ],
)
def test_a_stray_takes_the_short_levels_in_turn(table: tuple[int, ...], found: str, level: int) -> None:
    """One level may wholly belong to instances that do not consume the topic."""
    rules = policy(ladder=table, table=table)
    assert after_wait(stray(source=Partition(found, 0)), rules, WALL) == Hop(STRAY, level, stray=True)


def test_a_stray_that_is_not_due_waits_in_the_level_that_fits() -> None:
    later = replace(STRAY, due_at=WALL + 700_000)
    assert after_wait(stray(later), OLD, WALL) == Hop(later, 600_000, stray=True)


def test_no_topic_is_named_by_a_header() -> None:
    """With the longer prefix a name made from REAL_TOPIC would be one that nobody checked."""
    rules = policy(topics=("orders", "invoices"), template="{topic}-{group}")
    (beside,) = copies(stray(source=Partition("invoices-billing-RETRY-10s", 0)), rules)
    (ready,) = copies(stray(source=Partition("billing-RETRY", 0)), rules)
    dead, _ = copies(stray(source=Partition("invoices-billing-RETRY-10s", 0)), rules, WALL + HOUR)
    assert beside.topic == "invoices-billing-RETRY-5s"
    assert ready.topic == "orders-billing-RETRY-30s"
    assert dead.topic == "invoices-billing-DLQ"


def test_a_strays_partition_changes_although_it_has_a_key() -> None:
    """By its key it would come back to the same partition, and to the same instance, for ever."""
    hops = [copies(stray(offset=2 * hop), now=WALL + 30_000 * hop)[0] for hop in range(40)]
    assert all((copy.key, copy.scattered) == (b"k", True) for copy in hops)
    assert {copy.spread % 4 for copy in hops} == {0, 1, 2, 3}


def test_a_stray_that_nobody_has_taken_is_a_dead_letter_with_its_whole_life() -> None:
    assert isinstance(after_wait(stray(), OLD, WALL + HOUR - 1), Hop)
    now = WALL + HOUR
    copy, told = copies(stray(), now=now)
    life = parse_retry_headers(copy.headers[:13], NEW.topics, now)
    assert life == replace(STRAY, due_at=now, reason="unknown-topic: http-500: no")
    assert (copy.topic, copy.headers[:3]) == ("billing-DLQ", OWN)
    event = decode_event(told.value)
    assert isinstance(event, Event)
    assert (event.state, event.id, event.topic, event.times) == (State.DLQ, STRAY.id, "parcels", 3)
    assert (event.redrives, event.reason, event.first_failed_at) == (1, "unknown-topic", WALL - 40)


def test_the_time_to_wait_is_a_setting_and_counts_from_the_due_time() -> None:
    rules = replace(OLD, unknown_topic=5_000)
    assert isinstance(after_wait(stray(), rules, WALL + 4_999), Hop)
    assert isinstance(after_wait(stray(), rules, WALL + 5_000), DeadLetter)
    undated = replace(STRAY, due_at=0)
    assert isinstance(after_wait(stray(undated), rules, WALL - 40 + 4_999), Hop)
    assert isinstance(after_wait(stray(undated), rules, WALL - 40 + 5_000), DeadLetter)


def test_the_instance_that_consumes_the_topic_delivers_it_with_its_count() -> None:
    found = stray()
    assert after_wait(found, NEW, WALL) == AT_ONCE
    retry = decide(found, Failed("http-500"), NEW, WALL)
    assert getattr(retry, "retry_state", STRAY).times == 4


def test_the_letter_is_shown_with_its_life_and_redriven_by_who_consumes_the_topic() -> None:
    copy, _ = copies(stray(), now=WALL + HOUR)
    lies = record(8, source=Partition("billing-DLQ", 0), headers=copy.headers, timestamp=WALL + HOUR)
    shown, taken = read_letter(lies, OLD), read_letter(lies, NEW)
    assert (shown.id, shown.redrives, shown.reason) == (STRAY.id, 1, "unknown-topic")
    assert "parcels" in shown.fault
    past = RedriveHistory("id", 0)
    assert (eligibility(shown, RedriveRequest(), past), eligibility(taken, RedriveRequest(), past)) == (
        Eligibility.UNFIT,
        Eligibility.READY,
    )
    back = dict(redrive(taken, NEW, WALL + HOUR).writes[0].headers)
    assert (back["ORIGIN_MESSAGE_ID"], back["RECONSUMETIMES"], back["RETRY_REDRIVES"]) == (b"parcels:2:9", b"0", b"2")


def lane(rules: Policy = OLD) -> Rig:
    rig = Rig(policy=rules, retry=True)
    rig.assign(LEVEL)
    return rig


def test_a_lane_delivers_its_own_and_passes_strays_on() -> None:
    rig = lane()
    rig.take(stray(offset=0), stray(replace(STRAY, id="orders:0:7", topic="orders"), offset=1), stray(offset=2))
    assert [sent.record.offset for sent in rig.sent] == [1]
    rig.answer_all()
    decisions = {e.record.offset: e.decision for batch in rig.settle() for e in batch.entries}
    assert isinstance(decisions[0], Hop)
    assert isinstance(decisions[2], Hop)
    assert rig.kafka[LEVEL].next == 3
    assert (rig.lane.counters.strays, rig.lane.counters.bad_headers) == ({"parcels": 2}, 0)


def test_a_relay_forwards_its_own_and_passes_strays_on() -> None:
    rig = lane(replace(OLD, relay=True))
    own = replace(STRAY, id="orders:0:7", topic="orders")
    rig.take(stray(own, offset=0), stray(offset=1), stray(own, offset=2))
    written = {e.record.offset: e for batch in rig.settle() for e in batch.entries}
    assert [type(written[offset].decision) for offset in range(3)] == [Forward, Hop, Forward]
    assert written[1].writes[0].topic == "billing-RETRY-5s"
    assert (rig.lane.counters.forwarded, rig.lane.counters.strays) == (2, {"parcels": 1})


def test_names_from_headers_fill_neither_memory_nor_labels() -> None:
    tally = LaneCounters()
    for number in range(100):
        life = replace(STRAY, topic=f"t{number}")
        tally.count(Hop(life, 1_000, stray=True))
        tally.count(DeadLetter(life, "unknown-topic", 3, stray=True))
    assert (len(tally.strays), tally.strays[OTHERS]) == (MOST_STRAYS + 1, 2 * (100 - MOST_STRAYS))
    assert tally.dead_letters == {(UNKNOWN, "unknown-topic"): 100}
