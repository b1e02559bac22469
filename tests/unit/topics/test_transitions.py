"""One function says what follows from an outcome, whoever has read the record: the sidecar's record and a Spark row."""

from __future__ import annotations

from itertools import product

from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.dlq.letters import Letter, redrive
from reconsume.spark.consumer.record import ParsedRecord
from reconsume.topics import transitions
from reconsume.topics.partition import Partition
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import Commit, DeadLetter, Hop, Retry, Wait
from tests.sim.samples import WALL, policy, record

RULES = policy(retries=4)
READY = Partition("billing-RETRY", 3)
STATES = [
    None,
    *(
        RetryState("orders:0:7", topic, times, redrives, WALL + due, 5, first, "http-500", postponed_at=postponed)
        for topic, times, redrives, due, first, postponed in product(
            ("orders", "parcels"), (0, 3, 4), (0, 2), (-3_600_000, 0, 500, 70_000), (0, WALL - 9), (0, WALL - 3)
        )
    ),
]
KNOWN = [state for state in STATES if state is not None]
FAILURES = [Failed("http-500", "no"), Failed("busy", delay=90_000), Failed("busy", level=2), Failed("no", level=-1)]


def readings(state: RetryState | None) -> tuple[transitions.ReadRecord, transitions.ReadRecord]:
    """The same record as the sidecar and as a Spark job reads it."""
    source = Partition("orders", 0) if state is None else READY
    sidecars = record(7, source=source, headers=[("a", b"1")], life=state)
    return sidecars, ParsedRecord(source, 7, sidecars.timestamp, sidecars.key, sidecars.value, [("a", b"1")], state)


def test_the_same_record_has_the_same_future_and_the_same_bytes_whoever_read_it() -> None:
    for state in STATES:
        mine, theirs = readings(state)
        for one, other in [
            *((transitions.after_failure(r, f, RULES, WALL) for r in (mine, theirs)) for f in FAILURES),
            (transitions.dead_letter(r, "no", "", WALL) for r in (mine, theirs)),
            (transitions.after_success(r) for r in (mine, theirs)),
        ]:
            assert one == other, state
            assert writes_of(mine, one, RULES, WALL) == writes_of(theirs, other, RULES, WALL)
        steps = [transitions.after_wait(each, RULES, WALL) for each in (mine, theirs)]
        assert steps[0] == steps[1], state


def test_a_wait_ends_in_one_way_that_its_state_tells() -> None:
    for state in KNOWN:
        step = transitions.after_wait(readings(state)[0], RULES, WALL)
        if state.topic == "parcels":
            assert isinstance(step, DeadLetter) == (WALL - state.due_at >= RULES.unknown_topic), state
            assert isinstance(step, DeadLetter) or (isinstance(step, Hop) and step.stray)
        else:
            assert step == (Wait(max(0, state.due_at - WALL)) if state.due_at - WALL < 1_000 else Hop(state, 60_000))


def test_a_failure_counts_once_and_forgets_a_postponement() -> None:
    for state in STATES:
        mine, _ = readings(state)
        step = transitions.after_failure(mine, FAILURES[0], RULES, WALL)
        assert isinstance(step, DeadLetter if mine.times == RULES.max_reconsume_times else Retry), state
        assert step.retry_state.times == mine.times + isinstance(step, Retry)
        assert step.retry_state.postponed_at == 0
        assert step.retry_state.first_failed_at == ((state.first_failed_at if state else 0) or WALL)


def test_a_success_is_told_of_a_record_that_was_told_of_before_and_of_no_other() -> None:
    for state in STATES:
        told = state is not None and (state.times > 0 or state.redrives > 0)
        assert transitions.after_success(readings(state)[0]) == Commit(state if told else None)


def test_the_cycle_stays_whatever_happens_to_a_record() -> None:
    for state in (replace(state, cycle=3) for state in KNOWN):
        read, _ = readings(state)
        rules = policy(retries=4)
        nexts = [transitions.after_failure(read, failure, rules, WALL) for failure in FAILURES]
        nexts += [transitions.after_wait(read, rules, WALL), transitions.after_success(read)]
        nexts += [transitions.redriven(state, WALL), transitions.dead_by_hand(read, "seen", WALL)]
        nexts += [transitions.tried_now(read, "seen", "n1", WALL), transitions.put_behind(read, rules)]
        kept = [after.retry_state for after in nexts if getattr(after, "retry_state", None) is not None]
        assert len(kept) >= len(FAILURES) + 4, state
        assert {after.cycle for after in kept} == {3}, state


def test_a_redrive_begins_the_retries_again() -> None:
    for state in KNOWN:
        entry = redrive(
            Letter(record(7, source=Partition("billing-DLQ", 0), life=None, headers=[]), state), RULES, WALL
        )
        most, failed = max(state.times, state.most_times), state.last_failed_at or state.first_failed_at
        again = {"redrives": state.redrives + 1, "due_at": WALL, "most_times": most, "last_failed_at": failed}
        assert entry.decision == Retry(replace(state, times=0, **again), None)
        assert entry.writes[0].topic == "billing-RETRY"
