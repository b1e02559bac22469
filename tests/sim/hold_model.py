"""An operator who holds records and lets them go, as every instance hears of it; and what that must mean."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from reconsume.sidecar.core.holds import Hold, Holds
from tests.sim.plan import Fault
from tests.sim.samples import WALL

if TYPE_CHECKING:
    from tests.sim.world import World

SELECTORS: tuple[dict[str, str | bytes], ...] = (
    {},
    {"topic": "orders"},
    {"topic": "refunds"},
    {"level": "main"},
    {"level": "1s"},
    {"key": b"k1"},
    {"key": b"k1", "topic": "orders"},
    {"key": b"k2", "level": "main"},
)


class Span(NamedTuple):
    """A hold, and when it was in force, in ms of the story."""

    hold: Hold
    since: int
    until: int


class HoldModel:
    """What is held in a world. `spans`: all of it, for the checks at the end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.holds: dict[str, Hold] = {}
        self.spans: list[Span] = []

    @property
    def in_force(self) -> Holds:
        return Holds(tuple(self.holds.values()))

    def hold(self, fault: Fault) -> None:
        """Begin a hold; it ends after the time of the fault."""
        selector = SELECTORS[fault.whom % len(SELECTORS)]
        hold = Hold(f"h{len(self.spans)}", **selector)  # type: ignore[arg-type]
        self.spans.append(Span(hold, self._world.steady_ms, self._world.steady_ms + fault.lasts))
        self.holds[hold.id] = hold
        self._tell()
        self._world.later(fault.lasts, partial(self._release, hold.id))

    def _release(self, ident: str) -> None:
        del self.holds[ident]
        self._tell()

    def _tell(self) -> None:
        for process in self._world.processes:
            process.later(0, process.obey)


def nothing_held_was_delivered(world: World) -> None:
    """No delivery began while its record was held."""
    for delivery in world.service.ledger:
        at, source = delivery.at - WALL, delivery.record.source
        level = "main" if source.topic in world.mains else LEVELS.get(source.topic, "ready")
        for hold, since, until in world.holding.spans:
            held = since < at < until and Holds((hold,)).of(delivery.record, level) is not None
            assert not held, f"{delivery.record.id} went at {at}, and {hold} was in force since {since}"


LEVELS = {"billing-ORDERED-orders": "ordered", "billing-RETRY-1s": "1s", "billing-RETRY-5s": "5s"}
