"""Forged copies beside the genuine ones, before and behind them, where a new owner reads both (contract 5.5).

A new owner has not read the main records, so of copies of one record that disagree it cannot tell the genuine one. What
it does is safe all the same: nothing is gone without a word but what a later copy under its own key stands for, no
order is broken, nothing stands for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.outcome import COMMITTED, Outcome
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Record
from reconsume.topics.retry_headers import RetryState
from tests.sim.ladder_rig import FAIL, ORDERS, QUEUE, LadderRig, behind, origin, waiting
from tests.sim.samples import WALL

KEYS = (b"a", b"a", b"b")
GENUINE = (waiting(0, 2, 20_000), behind(1), waiting(2, 1, 5_000))
"""What waits of the main records 0 to 2: a head, the one behind it, and the head of another key."""
FORGED, STEPS, STEP_MS = b"forged", 40, 60_000


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
        rig.flow(STEP_MS // 10 if step < STEPS // 2 else STEP_MS)
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
            rig.put(replace(one.state, timestamp=WALL), one.key, value=FORGED)
            counts = one.state.redrives, one.state.times
            if one.origin < number and one.key == KEYS[one.origin] and counts >= (0, GENUINE[one.origin].times):
                stood.add(one.origin)  # nothing tells it from the one that an owner would have written next
        if state is not None:
            rig.put(replace(state, timestamp=WALL), KEYS[number])
    rig.kafka[ORDERS] = Progress(main_to)
    rig, seen = played(rig, kills, fails)
    genuine = [(record, answer) for record, answer in seen if record.value != FORGED]
    assert {at for at in range(3) if not ends(at, rig, genuine)} <= stood, f"{seen}, {rig.dead}"
    assert rig.queue().next == rig.end, "something of the queue stands for ever"
    first = next((number for number, (record, _) in enumerate(genuine) if origin(record) == 1), 0)
    assert not first or 0 in stood or ends(0, rig, genuine[:first]), f"the order of a key is broken: {seen}"
    if main_to:
        for at in range(3):
            times = [record.times for record, _ in genuine if origin(record) == at]
            assert times == sorted(times), "an attempt is counted twice"
