"""Forged copies in a queue: headers of the right form that name a record of the main topic, mostly under another key.

Such a copy is believed, and delivered, as long as nothing says otherwise. But it takes no record's way, whatever it
says: each record of the main topic is delivered, its key is blocked while it waits, and all of the queue ends.
"""

from __future__ import annotations

from itertools import product

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Outcome, Rejected
from reconsume.sidecar.core.progress import Progress
from tests.sim.ladder_rig import FAIL, QUEUE, LadderRig, copies_of, origin, waiting
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
