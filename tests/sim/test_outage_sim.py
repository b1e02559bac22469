"""Outages on virtual time: what they cost, whom they hold up, and that they end, also where only poison is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Outcome
from reconsume.sidecar.core.pace.pace import State
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.levels import TABLE
from tests.sim.checker import Found, check
from tests.sim.plan import Config, Plan
from tests.sim.samples import WALL
from tests.sim.service_model import ServiceModel, Weights
from tests.sim.world import World
from tests.support.rings import inner

HOUR = 3_600_000
TAKES = 20
"""ms that the service takes for an answer."""
BAD = b"malformed"
GOOD = b"good"
Verdict = Callable[[int, Record], Outcome]


class Scripted(ServiceModel):
    """A service that says what a story's script says."""

    def __init__(self, world: World, verdict: Verdict) -> None:
        super().__init__(Random(0), Weights())
        self._world, self._verdict = world, verdict

    def verdict(self, record: Record) -> tuple[Outcome, int]:
        outcome = self._verdict(self._world.steady_ms, record)
        return outcome, 1 if isinstance(outcome, NotSent) else TAKES


class Story(World):
    """A world whose records and verdicts a test gives. `sends`: when, to which partition, which value."""

    most_steps = 2_000_000
    check_every = 5_000  # thousands of records wait

    def __init__(self, plan: Plan, verdict: Verdict, sends: Iterable[tuple[int, int, bytes]]) -> None:
        super().__init__(plan._replace(records=0))
        self.service = Scripted(self, verdict)
        for at, number, value in sends:
            self.later(at, partial(self._send, Partition("orders", number), value))

    def _send(self, source: Partition, value: bytes) -> None:
        offset = self.kafka.send(source, b"k%d" % source.number, value, [])
        self.sent[f"orders:{source.number}:{offset}"] = (b"k%d" % source.number, value, [])

    def lateness(self, value: bytes) -> int:
        """ms from its arrival in the main topic to its first delivery, the longest of the records with this value."""
        first: dict[str, int] = {}
        for delivery in self.service.ledger:
            if delivery.record.value == value:
                first.setdefault(delivery.record.id, delivery.at - delivery.record.timestamp)
        assert first
        return max(first.values())


HOURS = (Config(ladder="rocketmq", table=TABLE),)
"""The real ladder."""


def malformed(_now: int, record: Record) -> Outcome:
    return Failed("http-400") if record.value == BAD else COMMITTED


def failing_until(end: int) -> Verdict:
    return lambda now, _record: Failed("http-500") if now < end else COMMITTED


def away_until(end: int) -> Verdict:
    return lambda now, _record: NotSent("connection-refused") if now < end else COMMITTED


def plan(seed: int, **changes: object) -> Plan:
    """The defaults of the product, as far as they matter here."""
    usual = Plan(seed, partitions=8, concurrency=256, failures=20, room=16 << 20, retries=16, deaths=None)
    return usual._replace(**changes)  # type: ignore[arg-type]


def steady(every: int, until: int, partitions: range = range(1, 8)) -> list[tuple[int, int, bytes]]:
    """Good records, one each so many ms, to the partitions in turn."""
    return [(at, partitions[at // every % len(partitions)], GOOD) for at in range(0, until, every)]


POISON = ((1, 20, 16 << 20), (2, 200, 16 << 20), (3, 20, 100_000))
"""Seed, ms between two good records, and bytes of a lane's room."""


@pytest.mark.parametrize("poison", inner((2, 200, 16 << 20), POISON))
def test_a_thousand_malformed_records_in_one_partition_hold_up_no_other(poison: tuple[int, int, int]) -> None:
    """All come at once, beside five or fifty good records a second; in the third story they fill the lane's memory."""
    seed, every, room = poison
    bad = [(1_000, 0, BAD)] * 1_000
    world = Story(plan(seed, room=room, retries=2), malformed, bad + steady(every, 120_000)).run()
    check(world)
    found = Found(world)
    dead = {origin for origin, copies in found.dead.items() if copies}
    assert dead == {origin for origin, (_, value, _) in world.sent.items() if value == BAD}
    assert len(dead) == 1_000
    assert world.lateness(GOOD) <= 15_000


@pytest.mark.long
def test_an_hour_in_which_the_service_fails_everything_dead_letters_nothing() -> None:
    world = Story(plan(4, configs=HOURS), failing_until(HOUR), [(at * 100, at % 8, GOOD) for at in range(400)]).run()
    check(world)
    assert not any(Found(world).dead.values())
    failed = [delivery for delivery in world.service.ledger if delivery.outcome is not COMMITTED]
    assert HOUR / 1_000 * 0.5 < len(failed) <= HOUR / 1_000 * 1.2
    assert {delivery.at - WALL < HOUR for delivery in failed} == {True}


def test_an_hour_in_which_the_service_is_away_spends_no_attempt() -> None:
    world = Story(plan(5, configs=HOURS), away_until(HOUR), [(at * 60, at % 8, GOOD) for at in range(1_000)]).run()
    check(world)
    assert not any(Found(world).copies.values())
    assert len(world.service.ledger) == 1_000
    assert max(delivery.at for delivery in world.service.ledger) - WALL < HOUR + 15_000


def test_where_only_poison_is_left_all_of_it_comes_to_the_dlq() -> None:
    """Thirty refused records, and never a good one beside them: one delivery a second, and the ladder's waits."""
    retries = 5
    world = Story(plan(6, retries=retries), malformed, [(0, at % 8, BAD) for at in range(30)]).run()
    check(world)
    assert len([origin for origin, copies in Found(world).dead.items() if copies]) == 30
    assert world.steady_ms < 30 * (retries + 1) * 1_000 + 60_000


def test_once_all_poison_is_dead_there_is_no_outage_on_a_quiet_topic() -> None:
    """A good record comes an hour later. Until then nothing waits, so that no alarm may wake anybody (G6)."""
    states: list[State] = []
    world = Story(plan(7, retries=2), malformed, [(0, at % 8, BAD) for at in range(30)] + [(HOUR, 0, GOOD)])
    for at in range(300_000, HOUR, 60_000):
        world.later(at, lambda: states.extend(process.gate.pace.state for process in world.processes))
    check(world.run())
    assert len([origin for origin, copies in Found(world).dead.items() if copies]) == 30
    assert set(states) == {State.OPEN}
