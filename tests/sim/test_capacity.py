"""The capacity model against the core itself on a virtual clock: what waits in each level, and what is retried.

The bounds are the model's stated error (docs/capacity.md): with some thousand records chance alone makes a few percent.
"""

from __future__ import annotations

from collections import Counter

import pytest

from reconsume.sidecar.capacity.model import Flow, Load, flow, waiting
from reconsume.topics.levels import Ladder
from reconsume.topics.retry_headers import RECONSUMETIMES
from tests.sim.plan import TABLE, Plan
from tests.sim.samples import WALL
from tests.sim.service_model import Weights
from tests.sim.world import World

SECONDS, RATE, FAILS = 200, 15, 0.4
WARM = 20_000
"""ms: the sum of the delays is 16 s; then as many come as go."""
ERROR = 0.15


@pytest.fixture(scope="module")
def told() -> World:
    weights = Weights(ok=round(100 * (1 - FAILS)), fail=round(100 * FAILS))
    spread = SECONDS * 1_000
    plan = Plan(3, RATE * SECONDS, spread=spread, concurrency=256, weights=weights, retries=3, room=1 << 26)
    return World(plan).run()


@pytest.fixture(scope="module")
def load() -> Load:
    return Load(rate=RATE, fails=FAILS, fails_again=FAILS, retries=3, ladder=Ladder(TABLE), delays=TABLE)


def test_as_many_wait_in_each_level_as_the_model_says(told: World, load: Load) -> None:
    """A record waits from its append to its delivery, which the ledger has."""
    end = SECONDS * 1_000
    delivered = {(d.record.source, d.record.offset): d.at - WALL for d in reversed(told.service.ledger)}
    for delay, expected in waiting(load).items():
        places = [source for source in told.kafka.logs if source.topic == f"billing-RETRY-{delay // 1_000}s"]
        spans = [
            (stored.appended - WALL, delivered[source, stored.offset])
            for source in places
            for stored in told.kafka.logs[source].records
        ]
        seen = sum(max(0, min(last, end) - max(first, WARM)) for first, last in spans)
        assert seen / (end - WARM) == pytest.approx(expected, rel=ERROR)


def test_as_many_are_retried_and_dead_as_the_model_says(told: World, load: Load) -> None:
    expected: Flow = flow(load)
    copies = Counter(
        int(dict(stored.headers)[RECONSUMETIMES] or b"")
        for source, log in told.kafka.logs.items()
        if source.topic.startswith("billing-RETRY-") and source.topic[-1] == "s"
        for stored in log.records
    )
    for number, rate in enumerate(expected.retries, start=1):
        assert copies[number] / SECONDS == pytest.approx(rate, rel=ERROR)
    dead = sum(len(log.records) for source, log in told.kafka.logs.items() if source.topic == "billing-DLQ")
    assert dead / SECONDS == pytest.approx(expected.dead, rel=2 * ERROR)
