"""Two worlds of one plan, in which chance does not depend on the order of events: so two kinds of lane can be compared.

In a usual world everything is drawn from one source by turns: a commit that comes one event earlier changes all that
follows. Here a draw depends on what it is for:

- the answer to an attempt, on the record and its retries. Whichever world asks first decides for both (`Answers`), so a
  service that fails for a while fails the same attempts in both. Once an attempt has had an answer that ends it, each
  further delivery of that attempt gets the same: what follows from it is determined, whatever was delivered twice;
- a fault, on its time; an arrival, on its number; an operator's decision, on the record;
- delays, sizes of what is fetched and the fates of transactions, on who draws, and when (`Stream`): two lanes that do
  the same things at the same times live the same story, and what one does differently does not change all of the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import TypeAlias

from reconsume.sidecar.core.outcome import NotSent, Outcome, Throttled
from reconsume.sidecar.core.record import Record
from tests.sim.lane_view import MakeLane
from tests.sim.plan import Plan
from tests.sim.service_model import ServiceModel, Weights
from tests.sim.world import World

Attempt: TypeAlias = tuple[str, int, bool]
"""The id of a record, its retries, and whether an operator has it tried."""
BITS = 128
AGREED = (("arrivals",), ("faults",))
"""What is drawn alike even in worlds of other moments."""


class Stream(Random):
    """Draws by name and time: the n-th one of a millisecond is the same, whatever was drawn before that millisecond."""

    def __init__(self, name: str, steady_ms: Callable[[], int]) -> None:
        super().__init__(0)
        self._name, self._steady_ms = name, steady_ms
        self._at, self._drawn = -1, 0

    def getrandbits(self, k: int, /) -> int:
        """Return `k` bits; all other draws are made of them."""
        if (at := self._steady_ms()) != self._at:
            self._at, self._drawn = at, 0
        self._drawn += 1
        digest = blake2b(f"{self._name} {at} {self._drawn}".encode(), digest_size=BITS // 8).digest()
        return int.from_bytes(digest) >> (BITS - k)

    def random(self) -> float:
        """Return a float in [0, 1)."""
        return self.getrandbits(53) / (1 << 53)


class Answers:
    """What the service says to each attempt, in all worlds of a plan: the throttled answers first, then the last."""

    def __init__(self) -> None:
        self.said: defaultdict[Attempt, list[tuple[Outcome, int]]] = defaultdict(list)


class AgreedService(ServiceModel):
    """The service of one world, which says what the service of another one has said."""

    def __init__(self, seed: int, weights: Weights, answers: Answers) -> None:
        super().__init__(Random(0), weights)
        self._seed, self._answers = seed, answers
        self._asked: Counter[Attempt] = Counter()

    def verdict(self, record: Record) -> tuple[Outcome, int]:
        if self.away:
            return NotSent("refused"), 1
        state = record.retry_state
        attempt = record.id, record.times, state is not None and bool(state.settled)
        said, asked = self._answers.said[attempt], self._asked[attempt]
        self._asked[attempt] += 1
        if asked >= len(said) and (not said or isinstance(said[-1][0], Throttled)):
            self._random = Random(f"{self._seed} {attempt} {len(said)}")
            said.append(super().verdict(record))
        return said[min(asked, len(said) - 1)]


class AgreedWorld(World):
    """One of the worlds of a plan. `answers`: those of all of them. `moments`: worlds with other numbers have other
    delays, and the same arrivals and faults."""

    def __init__(self, plan: Plan, lane: MakeLane, answers: Answers, moments: int = 0) -> None:
        self._answers, self._moments = answers, moments
        super().__init__(plan, lane)

    def make_service(self) -> ServiceModel:
        return AgreedService(self.plan.seed, self.plan.weights, self._answers)

    def stream(self, *names: object) -> Random:
        moments = 0 if names in AGREED else self._moments
        return Stream(f"{self.plan.seed} {moments} {names}", lambda: self.steady_ms)

    def draw(self, *names: object) -> Random:
        return Random(f"{self.plan.seed} {names}")


def run_both(plan: Plan, one: MakeLane, other: MakeLane, moments: int = 0) -> tuple[World, World]:
    """Return two worlds of a plan at their ends, of two kinds of lane; the first one decides for both. `moments`: of
    the second one."""
    answers = Answers()
    return AgreedWorld(plan, one, answers).run(), AgreedWorld(plan, other, answers, moments).run()
