"""How many stories are tried, and the plans that hypothesis makes them of.

`make soak-sim [EXAMPLES=20000]` runs long. A failure prints the plan, seed included: the same plan, the same story.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.progress import Bounds
from tests.sim.plan import LOCK, Config, Fault, Plan
from tests.sim.service_model import Weights

EXAMPLES = int(os.environ.get("RECONSUME_SIM_EXAMPLES", "8"))
"""Stories a test. To shrink a long story takes minutes, and its plan says enough."""
AGAIN = 20 if "RECONSUME_SIM_EXAMPLES" in os.environ else 2
"""Seeds with which a story is told again that has found something."""
story = settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)

BOUNDS = (Bounds(), Bounds(3, 2, 0, skip=2), Bounds(3, 2, 4, skip=2), Bounds(2, 8, 40, skip=1))
"""How far a partition may go beyond its first open record."""
SEEDS = st.integers(0, 2**32)
WEIGHTS = st.builds(
    Weights,
    ok=st.integers(1, 8),
    fail=st.integers(0, 8),
    timeout=st.integers(0, 2),
    throttle=st.integers(0, 4),
    ask=st.integers(0, 4),
    reject=st.integers(0, 1),
)
WHEN = st.integers(0, 25_000)
LASTS = st.sampled_from([0, 30, 700, 3_000, 20_000])
FATES = st.sampled_from([(1, 0, 0), (8, 1, 1), (2, 1, 1), (1, 2, 2)])


def faults(*kinds: str) -> st.SearchStrategy[tuple[Fault, ...]]:
    """Up to eight of some kinds."""
    fault = st.builds(Fault, st.sampled_from(kinds), WHEN, LASTS, st.integers(0, 9))
    return st.lists(fault, max_size=8).map(tuple)


def plans(*kinds: str, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Plan]:
    """Plans with faults of some kinds; `given` replaces what a field is drawn from."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        # What is left out, hypothesis makes up.
        **{name: st.just(value) for name, value in Plan._field_defaults.items()},
        "records": st.integers(1, 30),
        "sidecars": st.integers(1, 3),
        "partitions": st.integers(1, 2),
        "concurrency": st.sampled_from([1, 2, 4, 16]),
        "room": st.sampled_from([1, 4_000, 1 << 20]),
        "bounds": st.sampled_from(BOUNDS),
        "retries": st.integers(0, 4),
        "failures": st.sampled_from([None, 3, 8]),
        "deaths": st.sampled_from([None, 1, 3]),
        "spread": st.sampled_from([0, 3_000, 15_000]),
        "weights": WEIGHTS,
        "fates": FATES,
        "faults": faults(*kinds) if kinds else st.just(()),
        "stall": st.sampled_from([30, 2_500]),
        "lock": st.sampled_from([LOCK, 20_000]),
    }
    return st.builds(Plan, seed=SEEDS, **{**fields, **given})


ROLLOUTS = st.sampled_from(
    [
        (Config(), Config(table=(2_000, 5_000, 20_000))),
        (Config(table=(1_000, 30_000)), Config()),
        (Config(), Config(table=(1_000,)), Config(table=(3_000, 60_000))),
    ]
)
"""Levels that are added, removed, and both."""
MAINS = st.sampled_from([(Config(), Config(("orders", "refunds"))), (Config(("orders", "refunds")), Config())])
"""A main topic that is added, and one that is removed."""
SKEWS = st.sampled_from([(0, 120_000), (-180_000, 0, 60_000), (600_000,), (-600_000,)])
