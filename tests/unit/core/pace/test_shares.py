"""No flow waits for another's end: turns by topic and partition, shares of the places, and a reserve.

A flow is hung if nothing of it is ever answered; all others are answered in the order in which they went out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Now, Partition, Record
from tests.sim.samples import record

NOW = Now(0, 0)
A, A1, B, C = Partition("a", 0), Partition("a", 1), Partition("b", 0), Partition("c", 0)
LEVEL, READY = Partition("billing-RETRY-10s", 0), Partition("billing-RETRY", 0)
RETRIES = (LEVEL, Partition("billing-RETRY-30s", 0), READY)
FRESH = (A, A1, B, C)


class Line:
    """A lane that sends all."""

    has_open = True

    def __init__(self, gate: Dispatcher, sources: Iterable[Partition], out: list[Record], weight: int) -> None:
        self.ready, self._out = ReadyFlows(), out
        for source in sources:
            self.ready.own(source)
        gate.join(self, weight)

    def send(self, record: Record, now: Now) -> bool:
        self._out.append(record)
        return True

    def answered_in_bulk(self, now: Now) -> None:
        """Nothing is answered in batches here."""


class Service:
    """A dispatcher with a main and a retry lane, and what is out at the service, oldest first."""

    def __init__(
        self,
        places: int,
        fresh: Collection[Partition],
        retries: Collection[Partition] = (),
        *,
        unit: int = 1,
        share: int = 50,
    ) -> None:
        self.gate = Dispatcher(Pace(places), unit)
        self.out: list[Record] = []
        self.begun: list[Partition] = []
        """The partition of each delivery, in the order in which they began."""
        self._main = Line(self.gate, fresh, self.out, 100 - share)
        self._retry = Line(self.gate, retries, self.out, share)
        self._retries = set(retries)

    def come(self, source: Partition, count: int) -> None:
        """Let records of a partition become ready."""
        lane = self._retry if source in self._retries else self._main
        lane.ready.extend([record(offset, source=source) for offset in range(count)])
        self._go()

    def answer(self, hung: Collection[Partition] = ()) -> bool:
        """Answer the oldest delivery whose partition is not hung; return whether there is one."""
        for place, one in enumerate(self.out):
            if one.source not in hung:
                del self.out[place]
                self.gate.answered(one, COMMITTED, NOW)
                self._go()
                return True
        return False

    def of(self, source: Partition) -> int:
        """Return how many deliveries of a partition are out."""
        return sum(one.source == source for one in self.out)

    def _go(self) -> None:
        before = len(self.out)
        self.gate.dispatch(NOW)
        self.begun += [one.source for one in self.out[before:]]
        if len(self.begun) % 50 == 0:
            self.gate.check()
            self._main.ready.check()
            self._retry.ready.check()


def test_ten_records_of_a_topic_go_within_two_rounds_of_one_that_has_a_thousand() -> None:
    service = Service(8, [A, B])
    service.come(A, 1_000)
    for _ in range(100):
        service.answer()
    service.begun.clear()
    service.come(B, 10)
    while service.begun.count(B) < 10:
        assert service.answer()
    assert service.begun.count(A) <= 2 * 8


@pytest.mark.parametrize("places", [2, 3, 4, 7, 8, 9, 32, 256])
def test_a_hung_topic_alone_leaves_one_place_in_eight_and_at_least_one(places: int) -> None:
    service = Service(places, [A, B])
    service.come(A, 2 * places)
    assert service.of(A) == places - max(1, places // 8)
    service.come(B, 50)
    while service.answer(hung={A}):
        pass
    assert service.begun.count(B) == 50


@pytest.mark.parametrize("places", [3, 4, 8, 32, 256])
def test_a_hung_partition_leaves_a_place_to_the_others_of_its_topic(places: int) -> None:
    service = Service(places, [A, A1, B])
    service.come(A, 2 * places)
    service.come(B, 50)
    service.come(A1, 50)
    while service.answer(hung={A}):
        pass
    assert (service.begun.count(A1), service.begun.count(B)) == (50, 50)


@pytest.mark.parametrize(("places", "unit"), [(1, 1), (8, 8), (8, 16)])
def test_with_one_request_at_a_time_there_is_nothing_to_share(places: int, unit: int) -> None:
    service = Service(places, [A, B], unit=unit)
    service.come(A, 100)
    assert service.of(A) == places


def test_an_instance_with_one_flow_uses_all_places() -> None:
    service = Service(8, [A])
    service.come(A, 100)
    assert service.of(A) == 8


def test_of_batches_one_request_in_eight_is_left_free() -> None:
    service = Service(8 * 32, [A, B], unit=32)
    service.come(A, 1_000)
    assert service.of(A) == 7 * 32
    assert service.gate.full, "nothing more comes, so a batch that is being formed need not wait"
    service.come(B, 1)
    assert service.of(B) == 1


def test_while_all_have_records_each_topic_takes_places_up_to_its_share() -> None:
    service = Service(9, [A, B, C])
    for source in (A, B, C):
        service.come(source, 100)
    for _ in range(300):
        service.answer()
        if len(service.begun) in range(60, 200):
            assert Counter(one.source for one in service.out) == {A: 3, B: 3, C: 3}


def test_a_share_leaves_no_place_empty() -> None:
    service = Service(8, [A, B, C])
    for source in (A, B, C):
        service.come(source, 1_000)
    for _ in range(500):
        service.answer()
        assert len(service.out) == 8


def test_due_retries_go_beside_a_redrive() -> None:
    service = Service(8, [A], RETRIES)
    service.come(READY, 20_000)
    for _ in range(50):
        service.answer()
    service.begun.clear()
    service.come(LEVEL, 10)
    while service.begun.count(LEVEL) < 10:
        assert service.answer()
    assert service.begun.count(READY) <= 2 * 8


@pytest.mark.parametrize("share", [10, 25, 50, 80])
@pytest.mark.parametrize("places", [1, 2, 16, 256])
def test_retries_take_their_share_of_the_deliveries_while_fresh_records_wait(share: int, places: int) -> None:
    begin, rounds = 200, 2_000
    service = Service(places, [A, B], RETRIES, share=share)
    for source in (A, B, *RETRIES):
        service.come(source, begin + rounds + places)  # none of them runs out
    for _ in range(begin):
        service.answer()
    service.begun.clear()
    for _ in range(rounds):
        service.answer()
    retries = sum(source in RETRIES for source in service.begun)
    assert retries / len(service.begun) == pytest.approx(share / 100, abs=0.03)


def test_what_was_not_used_before_is_not_made_up_for() -> None:
    """Given a thousand fresh deliveries while no retry was there, then the retries that come do not go all at once."""
    service = Service(16, [A], RETRIES)
    service.come(A, 5_000)
    for _ in range(1_000):
        service.answer()
    service.come(READY, 5_000)
    service.begun.clear()
    for _ in range(200):
        service.answer()
    assert 0.4 <= service.begun.count(A) / len(service.begun) <= 0.6


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from(FRESH + RETRIES), st.integers(1, 60)),
        st.tuples(st.just("answer"), st.just(A), st.integers(1, 20)),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from([4, 8, 17, 64, 256]), st.sampled_from([1, 4]), st.sampled_from(FRESH + RETRIES))
def test_no_flow_waits_for_the_end_of_a_hung_one(
    steps: list[tuple[str, Partition, int]], places: int, unit: int, hung: Partition
) -> None:
    service = Service(places * unit, FRESH, RETRIES, unit=unit)
    expected = Counter[Partition]()
    for what, source, count in steps:
        if what == "come":
            expected[source] += count
            service.come(source, count)
        else:
            for _ in range(count):
                service.answer(hung={hung})
    while service.answer(hung={hung}):
        pass
    begun = Counter(service.begun)
    assert {source: begun[source] for source in expected if source != hung} == {
        source: count for source, count in expected.items() if source != hung
    }


@given(st.sets(st.sampled_from(FRESH + RETRIES), min_size=2), st.sampled_from([8, 16, 64]), st.randoms())
def test_each_flow_begins_within_two_rounds_of_the_others(flows: set[Partition], places: int, random) -> None:  # type: ignore[no-untyped-def]
    """A round of a flow is as many of its deliveries as there are places."""
    service = Service(places, FRESH, RETRIES)
    late, *others = random.sample(sorted(flows), len(flows))
    for source in others:
        service.come(source, 40 * places)
    for _ in range(random.randrange(100)):
        service.answer()
    service.begun.clear()
    service.come(late, 1)
    while late not in service.begun:
        assert service.answer()
    assert max(Counter(service.begun).values()) <= 2 * places


@pytest.mark.parametrize(
    ("places", "unit", "alone"),
    [
        (15, 1, 14),
        (16, 1, 14),
        (31, 1, 28),  # of 31 requests three are left free
        (39, 20, 39),  # one whole request
        (40, 20, 20),
        (330, 20, 290),
    ],
)
def test_one_request_in_eight_is_never_taken_by_one_topic_alone(places: int, unit: int, alone: int) -> None:
    service = Service(places, [A, B], unit=unit)
    service.come(A, 2 * places)
    assert service.of(A) == alone


@pytest.mark.parametrize(("places", "unit", "alone"), [(8, 1, 7), (40, 20, 20), (39, 20, 39), (60, 20, 40)])
def test_one_partition_leaves_a_request_to_another_of_its_topic(places: int, unit: int, alone: int) -> None:
    service = Service(places, [A, A1], unit=unit)
    service.come(A, 2 * places)
    assert service.of(A) == alone


@pytest.mark.parametrize(
    ("places", "share", "flows", "out"),
    [
        (10, 50, (A,), (10,)),
        (10, 50, (A, B), (5, 5)),
        (33, 50, (A, A1, B, C), (5, 5, 10, 10)),
        (12, 50, (A, LEVEL), (6, 6)),
        (12, 25, (A, LEVEL), (9, 3)),
        (16, 25, (A, B, LEVEL, READY), (6, 6, 2, 2)),
        (8, 50, (A, A1), (4, 4)),
        (2, 50, (A, A1), (1, 1)),
    ],
)
def test_the_places_are_divided_by_lane_topic_and_partition(
    places: int, share: int, flows: tuple[Partition, ...], out: tuple[int, ...]
) -> None:
    fresh, retries = ([one for one in flows if (one in RETRIES) is of_level] for of_level in (False, True))
    service = Service(places, fresh, retries, share=share)
    for source in flows:
        service.come(source, 1_000)
    for _ in range(20 * places):
        service.answer()
    assert tuple(map(service.of, flows)) == out


def test_a_hung_level_does_not_stop_another_one_although_the_retries_have_one_place() -> None:
    service = Service(4, [A], RETRIES, share=25)
    service.come(A, 500)
    service.come(LEVEL, 1)
    while service.of(LEVEL) == 0:
        service.answer()
    service.come(READY, 10)
    while service.begun.count(READY) < 10:
        assert service.answer(hung={LEVEL})
