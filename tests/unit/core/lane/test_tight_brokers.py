"""Brokers that take little metadata: progress may wait, but once all records have ended it is in Kafka."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Failed
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import Length
from reconsume.sidecar.core.progress_stamp import encode_kept_at
from tests.sim import samples
from tests.sim.samples import ORDERS
from tests.sim.tight_broker import TightBroker, TightRig

BAD = Failed("http-500")
AN_HOUR = 3_600_000


def end(rig: TightRig, offset: int, share: float, random: Random) -> None:
    """Let the delivery of a record end: it fails so often."""
    place = next(place for place, sent in enumerate(rig.sent) if sent.record.offset == offset)
    rig.answer(BAD if random.random() < share else COMMITTED, place)


def until_it_waits(rig: TightRig, order: list[int], share: float, random: Random) -> None:
    """Let records end in this order until the progress is too long."""
    for count, offset in enumerate(order):
        end(rig, offset, share, random)
        if count % 20 == 0:
            rig.pass_time(500)
        if ORDERS in rig.lane.outbox.unwritable:
            return


def feed(rig: TightRig, most: int) -> None:
    """Hand over what comes next of the log, as its consumer does."""
    part = rig.part()
    if part.paused is None:
        jumps = [fetch for fetch in rig.fetches if fetch[0] == "resume"]
        first = max(part.tracker.next, 0) if not jumps else max(part.tracker.next, int(str(jumps[-1][2])))
        dropped = sorted(part.tracker.dropped)
        rig.take_offsets(range(dropped[0] if dropped else first, most))


@settings(deadline=None, max_examples=40)
@given(
    limit=st.integers(72, 1_200),
    count=st.sampled_from([40, 200, 700]),
    share=st.sampled_from([0.05, 0.5, 1.0]),
    owners=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
def test_once_all_records_have_ended_the_progress_is_the_end_whatever_the_brokers_take(
    limit: int, count: int, share: float, owners: int, seed: int
) -> None:
    """Given records that end in any order, and owners that crash at any step, then an hour later all is in Kafka."""
    random, broker = Random(seed), TightBroker(limit)
    for _ in range(owners):
        rig = TightRig(broker, policy=samples.policy(deaths=3))
        rig.assign(ORDERS, resume=broker.progress() if broker.committed else Progress(0, ours=False))
        for _ in range(random.randint(1, 12)):
            feed(rig, count)
            rig.pass_time(random.choice([500, 5_000, 20_000]))
            for sent in random.sample(rig.sent, random.randint(0, len(rig.sent))):
                end(rig, sent.record.offset, share, random)
    rig = TightRig(broker, policy=samples.policy(deaths=3))
    rig.assign(ORDERS, resume=broker.progress() if broker.committed else Progress(0, ours=False))
    while rig.clock.steady_ms < AN_HOUR and broker.committed.get(ORDERS, (0, ""))[0] < count:
        feed(rig, count)
        rig.pass_time(200, 100)
        while rig.sent:
            end(rig, rig.sent[random.randrange(len(rig.sent))].record.offset, share, random)
    assert broker.committed[ORDERS][0] == count
    assert rig.part().unsettled == 0
    rig.lane.check()


@pytest.mark.parametrize(("limit", "count", "seed"), [(300, 3_000, 1), (300, 3_000, 2), (700, 5_000, 3)])
def test_the_copy_of_the_first_open_record_goes_first_although_it_was_settled_last(
    limit: int, count: int, seed: int
) -> None:
    """Given progress that waits, when every record fails and the first one last, then all copies are written. They
    waited in their order, and only the first ones were tried, for ever."""
    random, broker = Random(seed), TightBroker(limit)
    rig = TightRig(broker)
    rig.assign(ORDERS)
    rig.take_offsets(range(count))
    rig.pass_time(1_000)
    until_it_waits(rig, random.sample(range(1, count), count - 1), 1.0, random)
    while rig.sent:
        rig.answer(BAD, place=len(rig.sent) - 1)
    rig.pass_time(120_000)
    assert (broker.committed[ORDERS][0], rig.part().unsettled) == (count, 0)
    assert sorted(broker.copied) == list(range(count)), "each copy once"


@pytest.mark.parametrize(("limit", "seed"), [(300, 1), (400, 2), (500, 3), (700, 4)])
def test_after_a_crash_there_is_room_for_the_numbers_of_the_crash(limit: int, seed: int) -> None:
    """Given an owner whose progress is as long as it lets it be, when it crashes, then the next one delivers, and names
    all that is counted: its progress was a few characters longer, and its gate waited for ever."""
    random, broker = Random(seed), TightBroker(limit)
    rig = TightRig(broker, policy=samples.policy(deaths=3))
    rig.assign(ORDERS, resume=Progress(0, ours=False))
    rig.pass_time(1_000)
    rig.take_offsets(range(6_000))
    rig.pass_time(2_000)
    until_it_waits(rig, random.sample(range(1, 6_000), 2_000), 1.0, random)
    rig.pass_time(60_000)
    assert len(broker.committed[ORDERS][1]) > limit * 7 // 8 - 40
    counted = set(broker.copied)
    for _ in range(3):
        rig = TightRig(broker, concurrency=16, policy=samples.policy(deaths=3))
        rig.assign(ORDERS, resume=broker.progress())
        rig.take_offsets(range(64))
        rig.pass_time(20_000)
        assert rig.sent, "its records are delivered"
        assert broker.progress().done >= counted - {0}, "no counted attempt is forgotten"


def test_a_gate_opens_although_the_brokers_take_less_than_the_last_owner_has_written() -> None:
    """Given a limit that was lowered, then the crash gate cuts what it cannot write, and stands no partition."""
    broker = TightBroker(4_000)
    done = OffsetRanges.of(Random(1).sample(range(1, 3_000), 1_500))
    text = encode_kept_at(ORDERS, Progress(0, done), done, Length(4_000, 4_000))
    assert text is not None
    broker.committed[ORDERS] = 0, text
    broker.limit = len(text) // 2
    rig = TightRig(broker, policy=samples.policy(deaths=3))
    rig.assign(ORDERS, resume=Progress(0, done))
    resume = broker.progress()
    rig = TightRig(broker, policy=samples.policy(deaths=3))
    rig.assign(ORDERS, resume=resume)
    for _ in range(30):
        feed(rig, 3_000)
        rig.pass_time(20_000)
        rig.answer_all()
    rig.pass_time(5_000)
    assert broker.committed[ORDERS][0] == 3_000


@pytest.mark.parametrize("seed", range(6))
def test_copies_whose_progress_fits_are_written_while_a_record_hangs(seed: int) -> None:
    """Given lengths between one that was refused and one that was taken, then these are tried too."""
    random = Random(seed)
    limit, count = random.choice([300, 500, 700]), random.choice([600, 1_500])
    broker = TightBroker(limit)
    rig = TightRig(broker)
    rig.assign(ORDERS)
    rig.take_offsets(range(count))
    rig.pass_time(1_000)
    order = random.sample(range(1, count), count - 1)
    until_it_waits(rig, order, 0.1, random)
    rig.pass_time(600_000, 2_000)
    waiting = {entry.record.offset for entry in rig.lane.outbox.unwritable.entries()}
    if waiting:
        least = OffsetRanges.of({min(waiting), *broker.copied})
        text = encode_kept_at(ORDERS, Progress(0, least), least, Length(9_999, 9_999), "00000000")
        assert text is not None
        assert len(text) > limit * 7 // 8 - 40, "one more has no room"


def test_a_release_waits_for_copies_that_can_be_written_soon() -> None:
    """Given progress that is too long when its partition is revoked, when the records in flight end, then all copies
    are written before it is given up: they were dropped, and delivered again."""
    random, broker = Random(1), TightBroker(300)
    rig = TightRig(broker)
    rig.assign(ORDERS)
    rig.take_offsets(range(1_500))
    rig.pass_time(1_000)
    until_it_waits(rig, random.sample(range(1, 1_500), 1_000), 1.0, random)
    given = rig.release(ORDERS)
    rig.pass_time(500, 50)
    assert given == []
    rig.answer_all()
    rig.pass_time(1_000, 50)
    assert given == ["given up"]
    assert (broker.committed[ORDERS][0], len(set(broker.copied))) == (1_500, len(broker.copied))


def test_a_release_ends_soon_if_nothing_can_make_the_progress_shorter() -> None:
    """Given a first record that waits for its time, then nothing in flight helps, and the rebalance goes on."""
    random, broker = Random(1), TightBroker(300)
    rig = TightRig(broker)
    rig.assign(ORDERS)
    rig.take_offsets(range(1_500))
    rig.pass_time(1_000)
    until_it_waits(rig, random.sample(range(1, 1_500), 1_000), 1.0, random)
    given = rig.release(ORDERS)
    while len(rig.sent) > 1:
        rig.answer(BAD, place=1)
    rig.pass_time(2_000, 50)
    assert given == [], "the first one may still end"
    rig.lane.answered(rig.sent[0].record, CANCELLED, rig.now)
    rig.pass_time(5_000, 50)
    assert given == ["given up"]
