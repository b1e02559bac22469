"""Progress that Kafka refuses holds up its own partition alone, and is tried until Kafka takes it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.lane.refused_progress import FIRST_TRY_MS, LAST_TRY_MS, RefusedProgress
from reconsume.sidecar.core.outcome import COMMITTED, Failed
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import NEVER, Partition
from reconsume.topics.transitions import Commit
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, life, record

BAD = Failed("http-500")
OTHER, THIRD = Partition("orders", 1), Partition("orders", 2)


def lane(*sources: Partition) -> Rig:
    """A lane with records of each partition at the service."""
    rig = Rig(concurrency=8)
    rig.assign(*sources)
    for source in sources:
        rig.take_offsets(range(2), source)
    return rig


def settle(rig: Rig, ms: int, denied: Iterable[Partition], most: int = 1_000) -> None:
    """Let time pass, while Kafka refuses the progress of some partitions, by name, and more than `most` at once."""
    for _ in range(ms // 50):
        while rig.batches:
            batch = rig.batches[0]
            refused = [source for source in batch.commits if source in denied]
            too_many = len(batch.commits) > most
            rig.conclude(unwritable=refused) if refused or too_many else rig.conclude()
        rig.run(50)


def committed(rig: Rig, source: Partition) -> int:
    """The next offset that Kafka has."""
    return rig.kafka[source].next if source in rig.kafka else 0


@pytest.mark.parametrize("outcome", [COMMITTED, BAD], ids=["done", "failed"])
def test_the_progress_and_the_copies_of_all_others_go_on(outcome: object) -> None:
    rig = lane(ORDERS, OTHER, THIRD)
    rig.answer_all(outcome)  # type: ignore[arg-type]
    settle(rig, 2_000, {ORDERS})
    assert [committed(rig, source) for source in (ORDERS, OTHER, THIRD)] == [0, 2, 2]
    assert rig.part().blocked == "its progress is refused: no right"
    rig.take_offsets(range(2, 4), OTHER)
    rig.answer_all(outcome)  # type: ignore[arg-type]
    settle(rig, 2_000, {ORDERS})
    assert committed(rig, OTHER) == 4


@pytest.mark.parametrize("outcome", [COMMITTED, BAD], ids=["done", "failed"])
def test_what_was_settled_meanwhile_is_in_kafka_once_it_takes_the_progress_again(outcome: object) -> None:
    rig = lane(ORDERS, OTHER)
    rig.answer(BAD)
    settle(rig, 1_500, {ORDERS})
    rig.answer_all(outcome)  # type: ignore[arg-type]
    settle(rig, 20_000, {ORDERS})
    deliveries = len(rig.history)
    settle(rig, LAST_TRY_MS + 100, ())
    assert committed(rig, ORDERS) == 2
    assert (rig.part().blocked, rig.part().unsettled, len(rig.history)) == ("", 0, deliveries)
    assert rig.lane.ownership.load == 0
    rig.take_offsets(range(2, 4))
    rig.answer_all()
    settle(rig, 2_000, ())
    assert committed(rig, ORDERS) == 4


def test_nothing_more_of_the_partition_is_delivered_meanwhile() -> None:
    rig = Rig(concurrency=1)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(3))
    rig.answer()
    settle(rig, 1_500, {ORDERS})
    rig.answer_all()
    settle(rig, 5_000, {ORDERS})
    assert len(rig.history) == 2  # one was out already
    rig.take_offsets(range(3), OTHER)
    rig.answer_all()
    assert len(rig.history) == 5


def test_it_is_tried_ever_less_often_and_never_given_up() -> None:
    rig = lane(ORDERS)
    rig.answer_all()
    tries = []
    for _ in range(60 * 20):
        while rig.batches:
            tries.append(rig.now.steady_ms)
            rig.conclude(unwritable=[ORDERS])
        rig.run(50)
    waits = [after - before for before, after in pairwise(tries)]
    assert waits[0] == FIRST_TRY_MS
    assert set(waits[4:]) == {LAST_TRY_MS}


def test_a_revoked_partition_whose_progress_is_refused_does_not_hold_up_the_rebalance() -> None:
    rig = lane(ORDERS, OTHER)
    rig.answer_all()
    settle(rig, 1_500, {ORDERS})
    given_up = rig.release(ORDERS)
    settle(rig, 6_000, {ORDERS})
    assert given_up == ["given up"]
    assert list(rig.lane.ownership.partitions) == [OTHER]


@pytest.mark.parametrize("bad", range(5))
def test_refused_progress_without_a_name_is_found_by_halves(bad: int) -> None:
    sources = [Partition("orders", number) for number in range(5)]
    rig = lane(*sources)
    rig.answer_all()
    for _ in range(200):
        while rig.batches:
            commits = rig.batches[0].commits
            if sources[bad] not in commits:
                rig.conclude()
            elif len(commits) == 1:
                rig.conclude(unwritable=[sources[bad]])
            else:
                rig.conclude(apart=True)
        rig.run(50)
    assert [committed(rig, source) for source in sources] == [0 if n == bad else 2 for n in range(5)]
    assert rig.kafka.get(sources[bad], Progress(0)) == Progress(0)


def test_copies_that_are_refused_too_are_tried_in_turn_and_not_without_a_pause() -> None:
    """Given copies whose topic is missing, when the progress with them is refused as well, then each of them has its
    turn: one was tried again at once, for ever, and the first open record's copy never."""
    rig = Rig(concurrency=8)
    rig.assign(ORDERS)
    rig.take_offsets(range(4))
    for _ in range(3):
        rig.answer(BAD)
    rig.run(50)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    tried = []
    for _ in range(60 * 20):
        while rig.batches:
            tried += [entry.record.offset for entry in rig.batches[0].entries] or [-1]
            assert len(tried) < 100
            rig.conclude(unwritable=[ORDERS])
        rig.run(50)
    assert set(tried) >= {0, 1, 2}


def test_the_partition_whose_try_is_due_first_is_tried_first() -> None:
    refused = RefusedProgress()
    assert refused.next_at() == NEVER
    for number, at_ms in enumerate((200, 0, 100)):
        refused.refuse(Partition("orders", number), "no right", at_ms)
    assert [refused.due(FIRST_TRY_MS - 1), refused.due(FIRST_TRY_MS)] == [None, OTHER]
    assert refused.due(FIRST_TRY_MS + 1_000) == OTHER


@pytest.mark.parametrize("gone", ["given up", "lost"])
def test_beside_a_partition_that_is_gone_the_others_refused_with_it_are_kept_and_tried_again(gone: str) -> None:
    rig = lane(ORDERS, OTHER, THIRD)
    rig.answer_all()
    rig.run(1_000)
    (batch,) = rig.batches
    assert list(batch.commits) == [ORDERS, OTHER, THIRD]
    if gone == "lost":
        rig.lane.ownership.lost([ORDERS])
    else:
        rig.release(ORDERS)
    rig.conclude(unwritable=[ORDERS, OTHER, THIRD])
    assert ORDERS not in rig.lane.ownership.partitions
    assert {rig.part(source).blocked for source in (OTHER, THIRD)} == {"its progress is refused: no right"}
    settle(rig, 2_000, ())
    assert [committed(rig, source) for source in (OTHER, THIRD)] == [2, 2]


# --- the parts alone -------------------------------------------------------------------------------------------------


def settled(offset: int) -> SettledRecord:
    return SettledRecord(record(offset), Commit(life()), ())


def taken(refused: RefusedProgress, most: int = NEVER) -> list[int]:
    return [entry.record.offset for entry in refused.take(ORDERS, most)]


def test_what_is_refused_goes_in_its_order_as_many_as_may() -> None:
    refused = RefusedProgress()
    refused.refuse(ORDERS, "no right", 0)
    refused.sort_out([settled(3), settled(1), settled(2)])
    assert (taken(refused, 2), taken(refused)) == ([3, 1], [2])


def test_progress_that_kafka_takes_again_lets_all_go_that_waited() -> None:
    refused = RefusedProgress()
    refused.refuse(ORDERS, "no right", 0)
    refused.sort_out([settled(1), settled(2)])
    assert [entry.record.offset for entry in refused.accepted(ORDERS)] == [1, 2]
    assert (bool(refused), refused.next_at(), list(refused.accepted(ORDERS))) == (False, NEVER, [])


def test_a_partition_that_is_given_up_is_tried_at_once() -> None:
    refused = RefusedProgress()
    refused.refuse(ORDERS, "no right", 10_000)
    refused.hurry([OTHER, ORDERS])
    assert refused.due(0) == ORDERS
