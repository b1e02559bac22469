"""What an owner suspects of a partition after crashes, and when it suspects nothing any more (contract 1.10)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.outcome import COMMITTED, Throttled
from reconsume.sidecar.core.pace.rates import TopicTerms
from reconsume.sidecar.core.policy import HUNG_MS
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.core.suspicion import (
    FEWEST,
    IDLE_MS,
    MOST,
    QUIET_MS,
    SMALLEST,
    TRIES,
    Arrivals,
    Reach,
    Stage,
    Step,
    Suspects,
    Suspicion,
    suspicion_of,
)
from reconsume.topics.rates import Rate
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import DeadLetter
from tests.sim.ladder_rig import QUEUE, LadderRig, rules, waiting
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, policy, record
from tests.sim.suspect_rigs import OTHER, READY, commit, died, one_by_one, progress_of, rig_of, taken_up, work

BEGIN = Now(wall_ms=1_000_000, steady_ms=50_000)


def of(
    deaths: int, reach: int | None = None, mark: int | None = None, full: int = 256, *, died: bool = True
) -> Suspicion:
    """The suspicion of a partition whose progress is at 100, with three deaths allowed."""
    return suspicion_of(Progress(100, frozenset({105}), mark=mark, reach=reach), deaths, 3, full, died=died)


@pytest.mark.parametrize(
    ("deaths", "reach", "stage", "kept", "behind"),
    [
        (0, 110, Stage.FRESH, 0, None),
        (1, 110, Stage.FEW, 1, 99),
        (2, 110, Stage.SINGLE, 2, 110),
        (2, 100, Stage.SINGLE, 2, 100),
        (2, 99, Stage.FEW, 1, 99),
        (3, 99, Stage.FEW, 1, 99),
        (2, None, Stage.SINGLE, 2, None),
        (1, 99, Stage.FEW, 1, 99),
    ],
)
def test_the_stage_follows_from_the_deaths_and_from_what_was_in_flight(
    deaths: int, reach: int | None, stage: Stage, kept: int, behind: int | None
) -> None:
    found = of(deaths, reach)
    assert (found.stage, found.deaths, found.reach.known) == (stage, kept, behind)


@pytest.mark.parametrize(
    ("deaths", "mark", "died", "culprit"),
    [(3, 103, True, 103), (2, 103, True, None), (3, 103, False, None), (3, 105, True, None), (3, 99, True, None)],
)
def test_guilty_is_who_was_alone_in_flight_at_one_death_too_many_and_is_not_done(
    deaths: int, mark: int, died: bool, culprit: int | None
) -> None:
    assert of(deaths, 110, mark, died=died).culprit == culprit


@pytest.mark.parametrize(
    ("full", "window", "group"), [(1, FEWEST, SMALLEST), (100, 100, 12), (10_000, MOST, MOST // 8)]
)
def test_as_many_are_suspects_as_can_be_in_flight_and_an_eighth_of_them_goes_at_once(
    full: int, window: int, group: int
) -> None:
    found = of(1, 110, full=full)
    assert (found.suspects.window, found.most_in_flight) == (window, group)


def test_alone_go_those_that_the_last_owner_released_and_no_later_one() -> None:
    found = of(2, 110)
    assert [found.is_suspect(offset) for offset in (110, 111)] == [True, False]


def test_what_was_due_only_after_a_quiet_beginning_ends_the_suspicion_of_all_that_follow() -> None:
    found = Suspicion(1, Stage.FEW, suspects=Suspects(2), reach=Reach(known=9))
    found.arrivals.begin(BEGIN)
    early, quiet = Now(0, BEGIN.steady_ms + QUIET_MS - 1), Now(0, BEGIN.steady_ms + QUIET_MS)
    found.close_window(10, BEGIN.wall_ms + 1, early)
    assert found.is_suspect(10), "the owner has not lived long enough"
    found.close_window(10, BEGIN.wall_ms, quiet)
    assert found.is_suspect(10), "it was due before, so it may have been in flight"
    found.close_window(10, BEGIN.wall_ms + 1, quiet)
    assert not found.is_suspect(10)
    assert not found.is_suspect(11), "no later record either"


def test_only_as_many_records_are_suspects_as_the_window_holds() -> None:
    found = Suspicion(1, Stage.FEW, suspects=Suspects(2), reach=Reach(known=9))
    for offset in (10, 11):
        assert found.is_suspect(offset)
        found.suspects.add(offset, 1)
    assert not found.is_suspect(12)
    assert found.is_suspect(11), "it has not been cleared"


def test_without_a_reach_as_many_go_alone_as_two_windows_hold() -> None:
    found = Suspicion(2, Stage.SINGLE, suspects=Suspects(2))
    for offset in range(4):
        assert found.is_suspect(offset)
        found.suspects.add(offset, 1)
    assert not found.is_suspect(4)


def test_who_went_alone_and_was_answered_is_cleared_and_nobody_else_is() -> None:
    found = Suspects()
    for offset in (103, 104):
        found.add(offset, 1)
        found.clear(offset, comes_again=False, was_alone=offset == 103)
    assert (found.cleared, found.open) == ({103}, {})


def test_time_clears_all_once_the_last_that_was_let_go_is_done() -> None:
    found = Suspicion(2, Stage.SINGLE, reach=Reach(known=110))
    assert [found.is_passed(first) for first in (110, 111)] == [False, True]
    found.mark = 108
    assert not found.is_passed(111), "one is still out"
    assert not Suspicion(2, Stage.SINGLE).is_passed(111), "nobody knows how far the last owner came"


def test_the_first_record_or_the_end_of_the_log_is_met_once() -> None:
    found = Suspicion(1, Stage.FEW)
    assert [found.arrivals.meet(BEGIN) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("reach", "wanted", "told"), [(110, 112, 112), (112, 110, 112), (90, 91, 99), (None, 112, None)]
)
def test_the_next_owner_learns_of_all_that_may_be_delivered(reach: int | None, wanted: int, told: int | None) -> None:
    found = Suspicion(1, Stage.FEW, reach=Reach(opening=True, known=reach, wanted=wanted))
    assert found.with_crash_state(Progress(100)).reach == told


def test_a_mark_is_told_until_its_record_is_done_or_the_owner_is_gone_in_peace() -> None:
    found = Suspicion(2, Stage.SINGLE, mark=103, reach=Reach(opening=True, known=110))
    assert found.with_crash_state(Progress(100)) == Progress(100, deaths=2, mark=103, reach=110)
    assert found.with_crash_state(Progress(100, frozenset({103}))).mark is None
    assert found.with_crash_state(Progress(104)).mark is None
    assert found.with_crash_state(Progress(100, clean=True)).mark is None


def test_to_want_more_takes_a_commit_and_to_want_the_same_does_not() -> None:
    found = Suspicion(1, Stage.FEW, most_in_flight=3, reach=Reach(known=99))
    assert found.want_reach([100, 101, 102, 103], 0), "and that anything is delivered"
    assert (found.reach.wanted, found.reach.opening) == (102, True)
    assert not found.want_reach([100, 101, 102, 103], 0)
    assert not found.want_reach([103], 3), "there is no room"
    assert found.want_reach([103], 2)
    assert found.reach.wanted == 103


def test_a_cleared_record_that_keeps_suspects_from_coming_goes_alone_again_and_counts_once() -> None:
    suspicion, kept = of(2), record(100)
    for _ in range(TRIES):
        suspicion.set_mark(kept)
        suspicion.suspects.clear(100, comes_again=True, was_alone=True)
        suspicion.unmark()
        suspicion.check()
    assert said(suspicion) == ({100}, set(), 1)
    suspicion.set_mark(kept)
    suspicion.check()
    assert said(suspicion) == (set(), {100}, 1)
    suspicion.suspects.clear(100, comes_again=True, was_alone=True)
    assert said(suspicion) == ({100}, set(), 1)


def said(suspicion: Suspicion) -> tuple[set[int], set[int], int]:
    """Which suspects are cleared, which are not, and how many have counted."""
    suspects = suspicion.suspects
    return suspects.cleared, suspects.open.keys(), suspects.counted


# --- time ------------------------------------------------------------------------------------------------------------


def step(suspicion: Suspicion, ms: int, *, load: int = 0, blocked: str = "", roomy: bool = True) -> Step:
    """The step `ms` after the stage began."""
    suspicion.arrivals.begin(Now(0, 0))
    return suspicion.after_time(load, blocked, Now(ms, ms), unread=load == 0 and not roomy)


def met(stage: Stage, culprit: int | None = None, left: frozenset[int] = frozenset()) -> Suspicion:
    return Suspicion(2, stage, culprit, suspects=Suspects(open=set(left)), arrivals=Arrivals(met=True))


@pytest.mark.parametrize(
    ("ms", "load", "roomy", "expected"),
    [
        (IDLE_MS - 1, 0, True, Step.STAY),
        (IDLE_MS, 0, True, Step.TO_FEW),
        (IDLE_MS, 9, True, Step.TO_FEW),
        (IDLE_MS, 0, False, Step.LEAVE),
        (IDLE_MS, 9, False, Step.TO_FEW),
        (QUIET_MS, 0, True, Step.TO_FRESH),
        (QUIET_MS, 9, True, Step.TO_FEW),
        (QUIET_MS, 0, False, Step.LEAVE),
    ],
)
def test_while_the_memory_is_full_a_partition_only_stops_holding_up_the_others(
    ms: int, load: int, roomy: bool, expected: Step
) -> None:
    assert step(met(Stage.SINGLE), ms, load=load, roomy=roomy) == expected


def test_before_any_record_has_come_and_while_suspects_are_left_it_only_stops_holding_up_the_others() -> None:
    assert step(Suspicion(2, Stage.SINGLE), QUIET_MS) == Step.LEAVE
    assert step(met(Stage.SINGLE, left=frozenset({7})), QUIET_MS, load=9) == Step.LEAVE


def test_records_that_wait_for_the_suspects_of_another_partition_keep_it_as_it_is() -> None:
    suspicion = met(Stage.SINGLE)
    suspicion.arrivals.begin(Now(0, 0))
    suspicion.arrivals.ready_at_ms = QUIET_MS  # the gate notes that some are ready
    assert step(suspicion, QUIET_MS, load=9) == Step.STAY


def test_a_culprit_that_is_not_read_yet_is_remembered() -> None:
    assert step(met(Stage.SINGLE, culprit=7), QUIET_MS) == Step.TO_FEW
    assert step(met(Stage.FEW, culprit=7), 10 * QUIET_MS) == Step.STAY


def test_a_blocked_partition_holds_up_no_other() -> None:
    assert step(met(Stage.SINGLE), 0, load=9, blocked="refused") == Step.LEAVE


def test_together_ends_when_all_suspects_are_answered() -> None:
    suspicion = met(Stage.FEW)
    assert step(suspicion, QUIET_MS, load=9) == Step.STAY
    suspicion.suspects.counted = suspicion.suspects.window
    assert step(suspicion, QUIET_MS, load=9) == Step.TO_FRESH


def test_where_no_record_alone_was_the_cause_the_rest_goes_together_with_fewer_deaths_against_it() -> None:
    before = Suspicion(4, Stage.SINGLE, 7, 12, mark=3, suspects=Suspects(100, 9, {3: 4}), arrivals=Arrivals(met=True))
    before.reach = Reach(opening=True, opened=True)
    after = before.narrowed(3, 20)
    reach = Reach(opening=True, opened=True, known=19)
    assert after == Suspicion(1, Stage.FEW, 7, 12, suspects=Suspects(100), reach=reach, arrivals=Arrivals(met=True))
    assert before.narrowed(1, 20).deaths == 0
    assert Suspicion(4, Stage.SINGLE, reach=Reach(known=5)).narrowed(3, 20).reach.known == 5


# --- suspects that hang: one that was out for 30 s while sidecar and service lived is cleared, and keeps -------------


def pass_time(rig: Rig, ms: int) -> None:
    """Let time pass; every commit succeeds."""
    for _ in range(ms // 250):
        rig.run(250)
        while rig.batches:
            rig.conclude()


def test_a_hung_suspect_that_went_alone_is_cleared_after_30_s_and_the_next_one_goes_beside_it() -> None:
    rig = taken_up(died(2), 0, 1, 2)
    pass_time(rig, 1_000)
    assert (rig.out_offsets(), rig.kafka[ORDERS].mark) == ([0], 0)
    pass_time(rig, HUNG_MS - 2_000)
    assert rig.out_offsets() == [0]
    pass_time(rig, 4_000)
    assert (rig.out_offsets(), rig.kafka[ORDERS].mark) == ([0, 1], 1)


def test_a_death_after_that_blames_nothing_on_it() -> None:
    rig = taken_up(died(2), 0)
    pass_time(rig, HUNG_MS + 4_000)
    assert rig.out_offsets() == [0]
    assert rig.kafka[ORDERS].mark is None


def test_hung_suspects_keep_the_records_of_other_partitions_back_for_30_s_each_and_then_no_more() -> None:
    rig = rig_of(concurrency=8)
    rig.assign(ORDERS, resume=died(2))
    rig.assign(OTHER, resume=Progress(0, clean=True))
    rig.take_offsets([0, 1])
    rig.take_offsets(range(3), OTHER)
    pass_time(rig, 2 * HUNG_MS + 20_000)
    assert sorted((sent.record.source.number, sent.record.offset) for sent in rig.sent) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert not rig.gate.single_file.sources


def test_an_answer_that_comes_late_is_counted_and_leaves_nothing_behind() -> None:
    rig = taken_up(died(2), 0, 1)
    pass_time(rig, HUNG_MS + 4_000)
    rig.answer(COMMITTED)
    rig.answer(COMMITTED)
    pass_time(rig, 15_000)
    assert rig.gate.single_file.hung == set()
    assert rig.part().offsets.first == 2
    assert rig.part().suspicion is None


def test_few_that_hang_after_one_crash_let_as_many_others_go_after_30_s() -> None:
    rig = taken_up(died(1), *range(40), concurrency=64)
    commit(rig)
    pass_time(rig, 1_000)
    few = len(rig.sent)
    assert 0 < few < 40
    pass_time(rig, HUNG_MS + 3_000)
    assert len(rig.sent) == 2 * few


# --- the gate after crashes where something else comes in between: a revocation, a hold, a hung record ---------------


WITHHELD = 40
"""More records than a gate lets try at once."""


def test_a_revoked_partition_takes_its_mark_away_while_a_hung_record_of_it_is_still_out() -> None:
    """A crash by the hung one would be blamed on the marked one, which was never delivered."""
    rig = taken_up(died(2), 0, 1)
    pass_time(rig, HUNG_MS - 1_000)
    assert rig.out_offsets() == [0]
    while not rig.batches or progress_of(rig.batches[0]).mark != 1:
        if rig.batches:
            rig.conclude()
        rig.run(250)
    given_up = rig.release(ORDERS)
    rig.conclude()
    assert progress_of(commit(rig)).mark is None
    assert (rig.out_offsets(), given_up) == ([0], [])


def test_a_partition_without_a_suspect_is_given_up_as_it_is() -> None:
    rig = rig_of()
    rig.assign(ORDERS, resume=Progress(0, clean=True))
    rig.take_offsets([0])
    pass_time(rig, 2_000)
    assert (rig.part().suspicion, rig.out_offsets()) == (None, [0])
    given_up = rig.release(ORDERS)
    rig.answer()
    pass_time(rig, 2_000)
    assert given_up


def test_once_the_culprit_is_a_dead_letter_the_suspicion_ends_in_time() -> None:
    rig = taken_up(died(3, mark=1))
    pass_time(rig, 60_000)
    rig.take_offsets(range(3))
    work(rig, 2 * QUIET_MS)
    assert rig.kafka[ORDERS].next == 3
    assert rig.part().suspicion is None


def test_what_an_operator_holds_meanwhile_gives_its_turn_to_those_behind_it() -> None:
    rig = rig_of(concurrency=8)
    rig.assign(ORDERS, resume=died(1))
    rig.take(*(record(offset, key=b"bad" if offset < WITHHELD - 2 else b"good") for offset in range(WITHHELD)))
    assert not rig.sent, "nothing goes before its commit"
    rig.lane.hold(Holds([Hold("h", key=b"bad")]), rig.now)
    pass_time(rig, 2_000)
    assert rig.out_offsets() == [WITHHELD - 2, WITHHELD - 1]


def test_a_dead_letter_says_how_often_service_and_sidecar_crashed() -> None:
    rig = taken_up(died(3, mark=0), 0)
    (entry,) = [entry for batch in rig.settle() for entry in batch.entries]
    assert isinstance(entry.decision, DeadLetter)
    assert (
        entry.decision.retry_state.reason
        == "crashed-service: it was with the service at 3 deaths of it, and alone at the last one"
    )


def test_the_mark_of_a_partition_that_was_stopped_meanwhile_is_taken_away_and_its_record_waits() -> None:
    rig = taken_up(died(2))
    rig.take(record(0, fault="bad-header: x"))
    rig.run(30)
    rig.take_offsets([1])
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    assert progress_of(commit(rig)).mark == 1
    assert rig.part().blocked
    assert rig.sent == []
    assert progress_of(commit(rig)).mark is None
    assert rig.sent == []
    rig.settle()  # the topic is mended
    assert (rig.part().blocked, rig.kafka[ORDERS].mark, rig.out_offsets()) == ("", 1, [1])


def test_a_record_behind_all_suspects_ends_the_single_file_at_once() -> None:
    rig = taken_up(Progress(0, deaths=1, reach=0), 1)
    suspicion = rig.part().suspicion
    assert suspicion is not None
    assert suspicion.stage is Stage.FEW


def test_a_suspect_that_was_cleared_and_comes_again_does_not_end_it() -> None:
    """Others that were in flight with it may be still to come."""
    rig = taken_up(Progress(0, deaths=1, reach=5), 0)
    for _ in range(TRIES):
        one_by_one(rig, [0], Throttled(10))
        rig.run(20)
    commit(rig)
    suspicion = rig.part().suspicion
    assert suspicion is not None
    assert (suspicion.stage, rig.out_offsets()) == (Stage.SINGLE, [])


# --- suspects whose topic waits for a limit of its own keep nobody waiting, and go alone when they may ---------------


OTHERS = Partition("refunds", 0)
RESTING = 3
ONE_A_MINUTE = TopicTerms(rate=Rate(1, 60_000))


def resting_rig(term: TopicTerms) -> Rig:
    """An instance with suspects of a topic that has a limit, and with records of another topic."""
    rig = Rig(policy=policy(deaths=3, topics=("orders", "refunds")), terms={"orders": term})
    rig.assign(ORDERS, resume=died(2))
    rig.assign(OTHERS, resume=Progress(0, clean=True))
    rig.take_offsets(range(RESTING))
    rig.take_offsets(range(20), OTHERS)
    return rig


def out(rig: Rig) -> list[tuple[str, int]]:
    """Topic and offset of what is out."""
    return [(sent.record.source.topic, sent.record.offset) for sent in rig.sent]


def test_others_go_at_once_while_a_suspect_waits_for_its_topics_rate() -> None:
    rig = resting_rig(ONE_A_MINUTE)
    pass_time(rig, IDLE_MS // 2)
    assert out(rig) == [("refunds", offset) for offset in range(3)]


def test_a_suspect_that_has_waited_for_its_rate_is_marked_and_goes_alone() -> None:
    rig = resting_rig(ONE_A_MINUTE)
    pass_time(rig, 61_000)
    assert ("orders", 0) not in out(rig), "what was out comes back first"
    rig.answer_all()
    pass_time(rig, 500)
    assert out(rig) == [("orders", 0)]
    assert rig.kafka[ORDERS].mark == 0
    rig.answer()
    pass_time(rig, 500)
    assert {topic for topic, _ in out(rig)} == {"refunds"}, "the next one waits for its rate"


@pytest.mark.parametrize("term", [ONE_A_MINUTE, TopicTerms(rate=Rate(2, 1_000)), TopicTerms(concurrency=1)])
def test_each_suspect_goes_alone_and_then_the_suspicion_ends(term: TopicTerms) -> None:
    rig, alone = resting_rig(term), list[int]()
    for _ in range(RESTING * 250):
        pass_time(rig, 250)
        suspects = [offset for topic, offset in out(rig) if topic == "orders"]
        assert not suspects or len(rig.sent) == 1
        alone += suspects
        rig.answer_all()
    assert alone == list(range(RESTING))
    assert rig.part(OTHERS).offsets.first == 20
    pass_time(rig, 20_000)
    assert rig.part().suspicion is None
    assert rig.kafka[ORDERS].next == RESTING


def test_others_go_while_a_hung_suspect_has_its_topics_only_place_and_the_next_one_goes_alone_after_it() -> None:
    rig = resting_rig(TopicTerms(concurrency=1))
    pass_time(rig, HUNG_MS - 2_000)
    assert out(rig) == [("orders", 0)]
    pass_time(rig, 4_000)
    assert out(rig) == [("orders", 0), *(("refunds", offset) for offset in range(3))]
    rig.answer_all()
    pass_time(rig, 500)
    assert out(rig) == [("orders", 1)]


def test_retries_of_a_topic_that_waits_for_its_rate_keep_nobody_waiting_either() -> None:
    main = Rig(policy=policy(deaths=3, topics=("orders", "refunds")), terms={"orders": ONE_A_MINUTE})
    retry = Rig(policy=main.policy, retry=True, beside=main)
    main.assign(OTHERS, resume=Progress(0, clean=True))
    retry.assign(READY, resume=died(2))
    retry.take(record(0, source=READY, life=RetryState("orders:0:7", "orders", 1, WALL, due_at=WALL)))
    main.take_offsets(range(2), OTHERS)
    for _ in range(4):
        pass_time(main, 250)
        pass_time(retry, 250)
    assert (out(main), out(retry)) == ([("refunds", 0), ("refunds", 1)], [])
    main.answer_all()
    for _ in range(250):
        pass_time(main, 250)
        pass_time(retry, 250)
    assert out(retry) == [(READY.topic, 0)]


# --- after crashes the suspects of a queue go one at a time too, in whatever order its records are read --------------


DIED_WITH = 2
"""The records at these first offsets of the queue were with the service when its last owner died."""


def queue_taken_up(*offsets: int, progress: Progress | None = None) -> LadderRig:
    """A lane whose queue had owners that died twice, and that has read it, and then these records of it."""
    rig = LadderRig(policy=replace(rules(), max_deaths=3))
    rig.begin(Progress(100, clean=True))
    for number in range(DIED_WITH + 1):
        rig.put(waiting(number), key=b"k%d" % number)
    rig.open(progress or Progress(0, deaths=1, reach=DIED_WITH - 1))
    rig.look()
    assert rig.reader.wanted == [0, 1, 2]
    bring(rig, *offsets)
    return rig


def bring(rig: LadderRig, *offsets: int) -> None:
    for offset in offsets:
        rig.reader.wanted.remove(offset)
        rig.reader.wanted.insert(0, offset)
        rig.bring()


def goes_alone(rig: LadderRig, offset: int) -> None:
    """The record at this offset is out alone, and Kafka knows, until it is accepted."""
    rig.settle()
    assert (rig.out(), rig.queue().mark) == ([offset], offset)
    rig.take_it(offset)


def test_a_record_that_is_read_before_the_suspects_does_not_clear_them() -> None:
    rig = queue_taken_up(2, 0, 1)
    goes_alone(rig, 0)
    goes_alone(rig, 1)
    rig.settle()
    assert rig.out() == [2], "it goes as soon as the last suspect is answered"


def test_suspects_that_are_read_late_are_waited_for_and_keep_nothing_else_back() -> None:
    rig = queue_taken_up(2, 1)
    goes_alone(rig, 1)
    rig.arrive(b"free")
    rig.run(2 * QUIET_MS)
    rig.settle()
    assert rig.out() == [100]
    rig.take_it(100)
    bring(rig, 0)
    goes_alone(rig, 0)
    rig.settle()
    assert rig.out() == [2]


def test_suspects_that_are_gone_are_not_waited_for() -> None:
    rig = queue_taken_up(2)
    rig.log = {2: rig.log[2]}
    bring(rig, 0, 1)
    rig.run(2 * IDLE_MS)
    rig.settle()
    assert rig.out() == [2]


def test_records_of_a_queue_that_are_not_due_were_not_with_the_service() -> None:
    """Those that are read go on without them."""
    rig = LadderRig(policy=replace(rules(), max_deaths=3))
    rig.begin(Progress(100, clean=True))
    for number in range(3):
        rig.put(waiting(number, due_in=3_600_000 if number < DIED_WITH else 0), key=b"k%d" % number)
    rig.open(Progress(0, deaths=1, reach=DIED_WITH - 1))
    rig.look()
    bring(rig, 2)
    rig.settle()
    assert rig.out() == [2]
    assert rig.part(QUEUE).suspicion is not None
    assert rig.part(ORDERS).suspicion is not None


KILLED = Progress(0, deaths=2, mark=1, reach=DIED_WITH - 1)
"""Two owners have died, and the last with the record at offset 1 alone with the service."""


def test_no_mark_of_another_record_replaces_the_evidence_against_the_one_that_crashes_the_service() -> None:
    """Given a record that is read first, then it goes once the other one is a dead letter, and not before."""
    rig = queue_taken_up(0, progress=KILLED)
    rig.settle()
    assert (rig.out(), rig.queue().mark) == ([], None)
    rig.run(QUIET_MS // 2)
    bring(rig, 1)
    rig.settle()
    goes_alone(rig, 0)
    assert rig.queue().covers(1)


def test_a_record_that_crashes_the_service_and_is_not_read_keeps_the_others_back_for_ten_seconds() -> None:
    rig = queue_taken_up(0, progress=KILLED)
    rig.settle()
    assert rig.out() == []
    rig.run(QUIET_MS)
    rig.settle()
    assert rig.out() == [0]
    rig.take_it(0)
    bring(rig, 1)
    rig.settle()
    assert rig.queue().covers(1), "it is a dead letter all the same"


def test_a_record_that_crashes_the_service_and_is_gone_keeps_nothing_back() -> None:
    rig = queue_taken_up(0, progress=KILLED)
    del rig.log[1]
    bring(rig, 1)
    rig.run(IDLE_MS)
    rig.settle()
    assert rig.out() == [0]
