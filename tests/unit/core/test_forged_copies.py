"""Forged copies in a queue: headers of the right form that name a record of the main topic, mostly under another key.

Such a copy is believed, and delivered, as long as nothing says otherwise. But it takes no record's way, whatever it
says: each record of the main topic is delivered, its key is blocked while it waits, and all of the queue ends.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.outcome import COMMITTED, Outcome, Rejected
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Record
from reconsume.topics.retry_headers import RetryState
from tests.sim.ladder_rig import FAIL, QUEUE, WAITS, LadderRig, behind, copies_of, origin, waiting
from tests.sim.samples import ORDERS, WALL

FORGED = b"forged"
DEAD = Rejected("dead-letter", "no")
STEP_MS = 7_000
Seen = tuple[int, bool, Outcome]


def play(rig: LadderRig, first: Outcome, forged: Outcome) -> list[Seen]:
    """Answer all that goes out; a record and a forged copy end otherwise at first, and are taken from then on.

    Return what was delivered: where it stood, whether it was forged, and the answer.
    """
    seen: list[Seen] = []
    for _ in range(40):
        while rig.sent:
            keys = [sent.record.key for sent in rig.sent]
            assert len(set(keys)) == len(keys), "two of a key are out"
            record = rig.sent[0].record
            what = (origin(record), record.value == FORGED)
            known = any(before[:2] == what for before in seen)
            answer = COMMITTED if known else (forged if what[1] else first)
            seen.append((*what, answer))
            rig.answer(answer, 0)
        rig.flow(STEP_MS)
    return seen


@pytest.mark.parametrize("read_first", [True, False])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("first", [COMMITTED, FAIL, DEAD])
def test_a_forged_copy_under_another_key_takes_no_records_way(read_first: bool, offset: int, first: Outcome) -> None:
    for times, due, forged in product((0, 9), (0, 100_000), (COMMITTED, FAIL)):
        rig = LadderRig()
        rig.take_over()
        rig.settle()
        if not read_first:
            rig.arrive(b"a", b"a", b"b")
        rig.put(waiting(offset, times, due, timestamp=WALL), b"z", value=FORGED)
        rig.look()
        if read_first:
            rig.arrive(b"a", b"a", b"b")
        seen = play(rig, first, forged)
        own = [(at, answer) for at, is_forged, answer in seen if not is_forged]
        assert {at for at, _ in own} == {0, 1, 2}, f"{times, due}: {seen}"
        before = own[: [at for at, _ in own].index(1)]
        assert FAIL not in [answer for at, answer in before if at == 0][-1:], f"the order of a key is broken: {seen}"
        assert rig.kafka[ORDERS] == Progress(3)
        assert rig.queue().next == rig.end, f"{times, due}: something of the queue stands for ever"


def test_a_copy_under_another_key_of_what_waits_is_a_dead_letter() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.settle()
    rig.arrive(b"a")
    rig.fail(0)
    rig.flow()
    rig.put(waiting(0, 9, timestamp=WALL), b"z", value=FORGED)
    rig.look()
    rig.run(20)
    batch = rig.conclude()
    (dead,) = [copy for entry in batch.entries for copy in entry.writes if copy.topic == rig.policy.names.dlq("orders")]
    assert (dead.value, copies_of(batch)) == (FORGED, [])
    assert dict(dead.headers or ())["RETRY_REASON"].startswith(b"bad-header: its key is not")  # type: ignore[union-attr]
    rig.flow(100_000)
    assert rig.take_it(0).times == 1
    rig.flow()
    assert rig.kafka[QUEUE].next == rig.end


def test_however_many_copies_are_given_up_what_is_due_goes_out() -> None:
    """They are on their way to the DLQ, and bound nothing of what may be read."""
    rig = LadderRig()
    rig.take_over()
    rig.arrive(b"a")
    rig.fail(0)
    rig.flow()
    for _ in range(200):
        rig.put(waiting(0, due_in=100_000), b"z", value=FORGED)
    rig.run(WAITS[0])
    rig.look()
    assert rig.reader.wanted == [0]
    rig.flow()
    assert rig.out() == [0]
    assert rig.lane.counters.dead_letters.total() == 200


@pytest.mark.parametrize("times", [0, 1, 9])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("first", [COMMITTED, FAIL, DEAD])
def test_a_forged_copy_under_its_key_lets_nothing_stand(times: int, offset: int, first: Outcome) -> None:
    """It cannot be told from one of ours (the topic's rights are the guard), but nothing waits for ever."""
    rig = LadderRig()
    rig.take_over()
    rig.settle()
    rig.arrive(b"a", b"a", b"b")
    rig.put(waiting(offset, times, timestamp=WALL), b"a", value=FORGED)
    rig.look()
    seen = play(rig, first, COMMITTED)
    assert {at for at, *_ in seen} == {0, 1, 2}
    assert rig.queue().next == rig.end


@pytest.mark.parametrize("counts", [(0, 1), (0, 0)])
def test_a_copy_that_says_fewer_attempts_than_one_before_it_is_a_dead_letter(counts: tuple[int, int]) -> None:
    """It may be the genuine one, so it is not passed over without a word."""
    rig = LadderRig()
    rig.put(waiting(0, 2, 60_000, timestamp=WALL), b"a", value=FORGED)
    rig.put(waiting(0, counts[1], 60_000, timestamp=WALL, redrives=counts[0]), b"a")
    rig.take_over(main=Progress(1))
    rig.run(20)
    (dead,) = [copy for entry in rig.conclude().entries for copy in entry.writes if copy.topic.endswith("-DLQ")]
    assert dead.value == b"v"
    assert dict(dead.headers or ())["RETRY_REASON"].startswith(b"bad-header: it says fewer attempts than orders:0:0,")  # type: ignore[union-attr]
    rig.flow(70_000)
    rig.take_it(0)
    rig.flow()
    assert rig.queue().next == rig.end


def test_a_letter_that_is_brought_back_once_more_is_a_dead_letter_and_its_record_goes_on() -> None:
    """Its first return has failed again and waits: after an import, or where the group of redrives was deleted."""
    rig = LadderRig()
    rig.put(waiting(0, 0, timestamp=WALL, sequence=1, redrives=1))
    rig.take_over(main=Progress(1))
    rig.flow()
    rig.fail(0)
    rig.flow()
    rig.put(waiting(0, 0, timestamp=WALL, sequence=9, redrives=1))
    rig.look()
    rig.run(20)
    (dead,) = [copy for entry in rig.conclude().entries for copy in entry.writes if copy.topic.endswith("-DLQ")]
    assert dict(dead.headers or ())["RETRY_REASON"].startswith(b"bad-header: it says fewer attempts than orders:0:0,")  # type: ignore[union-attr]
    rig.flow(100_000)
    record = rig.take_it(0)
    assert (record.redrives, record.times) == (1, 1)
    rig.flow()
    assert rig.queue().next == rig.end


# --- forged copies beside the genuine ones, before and behind them, where a new owner reads both ---------------------


KEYS = (b"a", b"a", b"b")
GENUINE = (waiting(0, 2, 20_000), behind(1), waiting(2, 1, 5_000))
"""What waits of the main records 0 to 2: a head, the one behind it, and the head of another key."""
FORGED_VALUE, STEPS, FORGER_STEP_MS = b"forged", 40, 60_000


class Forgery(NamedTuple):
    """A copy that names the record at `origin`, and lies before the genuine copy of number `before`."""

    origin: int
    key: bytes
    state: RetryState
    before: int


def forgeries() -> st.SearchStrategy[Forgery]:
    def of(at: int, key: bytes, kind: str, times: int, due: int, before: int) -> Forgery:
        states = {
            "behind": behind(at),
            "parked": waiting(at, times, parked=True, due_at=0),
            "redriven": waiting(at, times, due, sequence=1, redrives=1),
        }
        return Forgery(at, key, states.get(kind, waiting(at, times, due)), before)

    kinds = st.sampled_from(["failed", "behind", "parked", "redriven"])
    times, dues = st.sampled_from([0, 1, 2, 3, 9, 16]), st.sampled_from([0, 30_000, 500_000])
    return st.builds(of, st.integers(0, 2), st.sampled_from([b"a", b"b", b"z"]), kinds, times, dues, st.integers(0, 3))


class Owner(LadderRig):
    """One owner after the other: each has the log and the progress of the one before, which is killed."""

    def __init__(self, before: Owner | None = None) -> None:
        super().__init__()
        self.dead: list[tuple[bytes | None, bytes]] = [] if before is None else before.dead
        """Value and reason of each dead letter."""
        if before is not None:
            self.clock.steady_ms, self.log, self.kafka = before.clock.steady_ms, before.log, dict(before.kafka)

    def conclude(self, **how: object) -> CommitBatch:
        batch = super().conclude(**how)
        letters = [copy for entry in batch.entries for copy in entry.writes if copy.topic.endswith("-DLQ")]
        self.dead += [(copy.value, dict(copy.headers or ())["RETRY_REASON"] or b"") for copy in letters]
        return batch

    def begin_all(self, epoch: int) -> None:
        main = self.kafka.setdefault(ORDERS, Progress(0))
        self.take_over(self.kafka.get(QUEUE), main=main, epoch=epoch)
        if keys := KEYS[main.next :]:
            self.arrive(*keys)


def played(rig: Owner, kills: list[int], fails: list[bool]) -> tuple[Owner, list[tuple[Record, Outcome]]]:
    """Answer all that goes out until nothing more can come; return the last owner, and each delivery."""
    seen, answers, epoch = list[tuple[Record, Outcome]](), iter(fails), 1
    rig.begin_all(epoch)
    for step in range(STEPS):
        while rig.sent:
            keys = [sent.record.key for sent in rig.sent]
            assert len(set(keys)) == len(keys), "two of a key are out"
            answer = FAIL if next(answers, False) else COMMITTED
            seen.append((rig.answer(answer), answer))
        if step in kills:
            rig, epoch = Owner(rig), epoch + 1
            rig.begin_all(epoch)
        rig.flow(FORGER_STEP_MS // 10 if step < STEPS // 2 else FORGER_STEP_MS)
    return rig, seen


def ends(at: int, rig: Owner, seen: list[tuple[Record, Outcome]]) -> bool:
    """Whether a genuine record was taken, or is a dead letter that names it."""
    is_dead = any(value == b"v" and b" orders:0:%d," % at in reason for value, reason in rig.dead)
    return is_dead or any(origin(record) == at and answer is COMMITTED for record, answer in seen)


TWICE_UNDER_ANOTHER_KEY = [Forgery(0, b"b", waiting(0, 0, 0), before) for before in (0, 3)]
"""The one that goes out first lies behind the genuine head of its key."""


@example(TWICE_UNDER_ANOTHER_KEY, [0], [False, True], 0)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(forgeries(), min_size=1, max_size=3),
    st.lists(st.integers(0, 20), max_size=3),
    st.lists(st.booleans(), max_size=8),
    st.sampled_from([0, 3]),
)
def test_of_copies_that_disagree_none_is_gone_without_a_word_and_nothing_stands(
    forged: list[Forgery], kills: list[int], fails: list[bool], main_to: int
) -> None:
    rig, stood = Owner(), set[int]()
    for number, state in enumerate((*GENUINE, None)):
        for one in (one for one in forged if one.before == number):
            rig.put(replace(one.state, timestamp=WALL), one.key, value=FORGED_VALUE)
            counts = one.state.redrives, one.state.times
            if one.origin < number and one.key == KEYS[one.origin] and counts >= (0, GENUINE[one.origin].times):
                stood.add(one.origin)  # nothing tells it from the one that an owner would have written next
        if state is not None:
            rig.put(replace(state, timestamp=WALL), KEYS[number])
    rig.kafka[ORDERS] = Progress(main_to)
    rig, seen = played(rig, kills, fails)
    genuine = [(record, answer) for record, answer in seen if record.value != FORGED_VALUE]
    assert {at for at in range(3) if not ends(at, rig, genuine)} <= stood, f"{seen}, {rig.dead}"
    assert rig.queue().next == rig.end, "something of the queue stands for ever"
    first = next((number for number, (record, _) in enumerate(genuine) if origin(record) == 1), 0)
    assert not first or 0 in stood or ends(0, rig, genuine[:first]), f"the order of a key is broken: {seen}"
    if main_to:
        for at in range(3):
            times = [record.times for record, _ in genuine if origin(record) == at]
            assert times == sorted(times), "an attempt is counted twice"
