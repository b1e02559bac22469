"""What a live sidecar does with the records that its service has died with (contract 1.10)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.outcome import COMMITTED, Died, NotSent, Outcome, Throttled
from reconsume.sidecar.core.pace.pace import State
from reconsume.sidecar.core.policy import HUNG_MS
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.topics.transitions import DeadLetter
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, policy, record
from tests.sim.suspect_rigs import BAD, OTHER, commit, rig_of

GONE = Died("connection-refused")
RESTARTED = Died()
"""The service can be reached: a worker died, or a supervisor restarted it at once."""


def delivering(*offsets: int, most: int = 3, concurrency: int = 4, beside: Rig | None = None) -> Rig:
    """A partition that delivers as usual: what its first commit was waited for is in Kafka."""
    rig = rig_of(most, concurrency=concurrency, beside=beside)
    rig.assign(ORDERS, resume=Progress(0, clean=True))
    rig.take_offsets(offsets)
    commit(rig)
    return rig


def die(rig: Rig, count: int, outcome: Outcome = RESTARTED) -> None:
    """Let the oldest deliveries end with the service."""
    for _ in range(count):
        rig.answer(outcome)


def alone(rig: Rig) -> int:
    """Commit until one record is in flight, which Kafka knows by its mark; return its offset."""
    for _ in range(4):
        if rig.sent:
            break
        rig.run(250)
        if rig.batches:
            rig.conclude()
    (offset,) = rig.out_offsets()
    assert rig.kafka[ORDERS].mark == offset
    return offset


def dead_letters(rig: Rig) -> list[tuple[int, str, int]]:
    """Offset, reason and count of retries of what goes to the DLQ, after all of it is in Kafka."""
    entries = [entry for batch in rig.settle() for entry in batch.entries]
    decisions = [(entry.record.offset, entry.decision) for entry in entries]
    return [
        (offset, decision.reason, decision.retry_state.times)
        for offset, decision in decisions
        if isinstance(decision, DeadLetter)
    ]


def test_what_the_service_had_goes_one_at_a_time_by_offset_and_uses_up_no_retry() -> None:
    rig = delivering(0, 1, 2, 3, 4, 5)
    die(rig, 4)
    delivered = []
    for _ in range(4):
        delivered.append(alone(rig))
        rig.answer(COMMITTED)
    rig.settle()
    assert delivered == [0, 1, 2, 3]
    assert rig.out_offsets() == [4, 5]
    assert rig.part().suspicion is None
    assert rig.lane.counters.retries == {}


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_a_record_that_was_alone_at_the_last_death_allowed_is_dead_lettered(most: int) -> None:
    """With `max_deaths: 1` the death that it was not alone at does not convict it; the next one does."""
    rig = delivering(0, 1, 2, most=most)
    die(rig, 3)
    for _ in range(max(most, 2) - 1):
        assert alone(rig) == 0
        assert rig.batches == []
        rig.answer(RESTARTED)
    for innocent in (1, 2):
        assert alone(rig) == innocent
        rig.answer(COMMITTED)
    rig.settle()
    crashing = [told for told in rig.told if told[0] == "crashing-record"]
    assert crashing == [("crashing-record", ORDERS, max(most, 2), 0)]
    assert rig.kafka[ORDERS] == Progress(3)
    assert rig.lane.counters.dead_letters == {("orders", "crashed-service"): 1}


def test_the_dead_letter_says_why_and_has_used_up_no_retry() -> None:
    rig = delivering(0, most=2)
    die(rig, 1)
    assert alone(rig) == 0
    die(rig, 1)
    assert dead_letters(rig) == [(0, "crashed-service", 0)]


def test_nothing_else_of_the_group_is_sent_while_a_suspect_is_in_flight() -> None:
    """Not of another partition, and not of the retry lane; and what another worker has is awaited first."""
    rig = delivering(0, 1, 2)
    retry = rig_of(beside=rig)
    level = Partition("billing-RETRY", 0)
    retry.assign(level, resume=Progress(0))
    rig.assign(OTHER, resume=Progress(0))
    rig.settle()
    survivor = rig.sent.pop()
    die(rig, 2)
    rig.take_offsets([7], source=OTHER)
    for _ in range(8):
        rig.run(250)
        while rig.batches:
            rig.conclude()
    assert rig.out_offsets() == []
    survivor.reply(survivor.record, COMMITTED, rig.now)
    assert alone(rig) == 0
    rig.answer(COMMITTED)
    assert alone(rig) == 1
    rig.answer(COMMITTED)
    rig.settle()
    assert rig.out_offsets() == [7]


@pytest.mark.parametrize("response", [COMMITTED, BAD, Throttled(50)])
def test_any_response_clears_a_suspect(response: Outcome) -> None:
    rig = delivering(0)
    die(rig, 1)
    assert alone(rig) == 0
    rig.answer(response)
    rig.settle()
    assert rig.part().suspicion is None


def test_what_was_not_sent_stays_a_suspect() -> None:
    rig = delivering(0)
    die(rig, 1, GONE)
    rig.run(200)
    assert alone(rig) == 0
    rig.answer(NotSent("connection-refused"))
    rig.run(300)
    assert alone(rig) == 0
    assert rig.kafka[ORDERS].deaths == 1


@pytest.mark.parametrize("hang_ms", [HUNG_MS, 3 * HUNG_MS])
def test_a_suspect_that_hangs_is_cleared_after_the_longer_of_30_s_and_its_timeout(hang_ms: int) -> None:
    rig = rig_of()
    rig.lane.apply_policy(replace(policy(deaths=3), hang_ms=hang_ms), {})
    rig.assign(ORDERS, resume=Progress(0, clean=True))
    rig.take_offsets(range(5))
    commit(rig)
    die(rig, 4)
    assert alone(rig) == 0
    for _ in range((hang_ms - 2_000) // 250):
        rig.run(250)
    assert rig.out_offsets() == [0]
    for _ in range(20):
        rig.run(250)
        while rig.batches:
            rig.conclude()
    assert rig.out_offsets() == [0, 1]


def test_a_death_without_a_listener_is_an_outage_and_one_with_it_is_not() -> None:
    for outcome, state in ((GONE, State.OUTAGE), (RESTARTED, State.OPEN)):
        rig = delivering(0, 1)
        die(rig, 1, outcome)
        assert rig.gate.pace.state is state


def test_the_deaths_are_in_the_progress_and_count_on_in_the_next_owner() -> None:
    """Twice the service died alone; then the sidecar dies with it: that is the third death of the marked record."""
    rig = delivering(0, 1)
    die(rig, 2)
    assert alone(rig) == 0
    rig.answer(RESTARTED)
    assert alone(rig) == 0
    left = rig.kafka[ORDERS]
    assert (left.deaths, left.mark, left.reach, left.clean) == (2, 0, 1, False)
    heir = rig_of()
    heir.assign(ORDERS, resume=left)
    heir.take_offsets([0, 1])
    assert heir.told == [("taken-up", ORDERS, 3, 0), ("crashing-record", ORDERS, 3, 0)]
    assert dead_letters(heir) == [(0, "crashed-service", 0)]


def test_deaths_of_former_owners_count_for_what_dies_with_the_service_alone() -> None:
    rig = rig_of()
    rig.assign(ORDERS, resume=Progress(0))  # its last owner died
    rig.take_offsets([0, 1, 2])
    commit(rig)
    die(rig, 3)
    assert alone(rig) == 0
    assert rig.kafka[ORDERS].deaths == 2
    die(rig, 1)
    assert [told[2:] for told in rig.told if told[0] == "crashing-record"] == [(3, 0)]


def test_a_partition_that_is_given_up_with_suspects_tells_its_next_owner() -> None:
    rig = delivering(0, 1)
    given_up = rig.release(ORDERS)
    die(rig, 2)
    rig.settle()
    assert given_up == ["given up"]
    assert (rig.kafka[ORDERS].deaths, rig.kafka[ORDERS].reach) == (1, 1)


def test_while_the_sidecar_drains_no_death_is_counted() -> None:
    """The service is being stopped too (contract 9.4)."""
    rig = delivering(0, 1)
    rig.gate.close()
    given_up = rig.release(ORDERS)
    die(rig, 2)
    rig.settle()
    assert given_up == ["given up"]
    assert rig.kafka[ORDERS] == Progress(0, clean=True)


def test_a_suspect_that_an_operator_holds_keeps_no_other_waiting() -> None:
    rig = rig_of()
    rig.assign(ORDERS, resume=Progress(0, clean=True))
    rig.take(*(record(offset, key=b"k%d" % offset) for offset in range(5)))
    commit(rig)
    die(rig, 4)
    assert alone(rig) == 0
    rig.lane.hold(Holds((Hold("h", key=b"k1"),)), rig.now)
    rig.answer(COMMITTED)
    for offset in (2, 3):
        assert alone(rig) == offset
        rig.answer(COMMITTED)
    for _ in range(20):
        rig.run(250)
        while rig.batches:
            rig.conclude()
    assert rig.out_offsets() == [4]


def test_nothing_that_was_not_with_the_service_is_suspected() -> None:
    rig = delivering(*range(8))
    rig.answer(COMMITTED, place=3)
    die(rig, 2)
    suspicion = rig.part().suspicion
    assert suspicion is not None
    assert [offset for offset in range(8) if suspicion.is_suspect(offset)] == [0, 1]
