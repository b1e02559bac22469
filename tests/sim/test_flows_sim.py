"""No flow ever waits for another's end: stories in which every request of one flow hangs, on virtual time."""

from __future__ import annotations

from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome
from reconsume.sidecar.core.record import Partition, Record
from tests.sim.checker import check
from tests.sim.plan import Config, Plan
from tests.sim.service_model import ServiceModel, Weights
from tests.sim.stories import SEEDS, story
from tests.sim.world import World

HANGS = 60_000
"""ms that a hung request takes: much longer than any other record may wait."""
SPREAD = 20_000
"""ms over which the records come."""
LATE = 4_000
"""ms within which a record is delivered, beside whatever hangs: two looks at a full lane, a fetch after each, and a
commit. A look is a second away at most, and the model's client takes up to a second to fetch after a seek."""
LATE_IN_OUTAGE = 15_000
"""The same while failures in a row may be an outage: a probe that hangs is waited for, 5 s each."""
HUNG, GOOD, LATER = b"hung", b"good", b"later"
SOURCES = [Partition(topic, number) for topic in ("orders", "refunds") for number in (0, 1)]


class Hanging(ServiceModel):
    """A service that fails `later` records once, hangs with `hung` ones, and takes the others so soon that one place is
    enough for them."""

    def verdict(self, record: Record) -> tuple[Outcome, int]:
        if record.value == HUNG:
            return COMMITTED, HANGS
        fails = record.value == LATER and record.times == 0
        return (Failed("http-500") if fails else COMMITTED), self._random.choice((1, 20, 60))


class Story(World):
    """Hung records of some partitions, and others of all partitions among them."""

    most_steps = 2_000_000
    check_every = 500

    def __init__(self, plan: Plan, hung: list[Partition], count: int) -> None:
        super().__init__(plan._replace(records=0))
        self.service = Hanging(Random(plan.seed), Weights())
        for source in hung:
            for _ in range(count):
                self.later(self.random.randrange(SPREAD // 2), partial(self._send, source, HUNG))
        for number in range(120):
            source = self.random.choice([source for source in SOURCES if source not in hung])
            self.later(self.random.randrange(SPREAD), partial(self._send, source, LATER if number % 3 == 0 else GOOD))

    def _send(self, source: Partition, value: bytes) -> None:
        key = b"k%d" % self.random.randrange(5)
        offset = self.kafka.send(source, key, value, [])
        self.sent[f"{source.topic}:{source.number}:{offset}"] = (key, value, [])

    def late(self) -> list[int]:
        """How late each delivery of a record that does not hang was, in ms after its arrival or its due time."""
        return [
            one.at - (one.record.timestamp if one.record.retry_state is None else one.record.retry_state.due_at)
            for one in self.service.ledger
            if one.record.value != HUNG
        ]


@story
@given(
    SEEDS,
    st.sampled_from([SOURCES[:1], SOURCES[:2]]),
    st.sampled_from([8, 16, 64]),
    st.sampled_from([20_000, 100_000, 1 << 20]),
    st.sampled_from([20, 200]),
    st.sampled_from([None, 3]),
)
def test_beside_a_hung_partition_or_topic_all_others_go_on(
    seed: int, hung: list[Partition], concurrency: int, room: int, count: int, failures: int | None
) -> None:
    configs = (Config(("orders", "refunds")),)
    plan = Plan(seed, concurrency=concurrency, room=room, deaths=None, failures=failures, configs=configs)
    world = Story(plan, hung, count).run()
    check(world)
    assert max(world.late()) <= (LATE if failures is None else LATE_IN_OUTAGE)
