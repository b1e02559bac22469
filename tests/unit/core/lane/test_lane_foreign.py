"""A record on a main topic that another system has retried before: it goes on where that system stopped."""

from __future__ import annotations

from msgspec.structs import replace

from reconsume.sidecar.core.outcome import COMMITTED, Failed
from reconsume.sidecar.core.record import Record
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import Commit, DeadLetter, Retry
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL

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
