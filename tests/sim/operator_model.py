"""A person who settles records that wait: now and then one of them, and in the end each that is parked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from reconsume.topics.decision_record import WAYS
from reconsume.topics.policy_record import SettlementRecord
from reconsume.topics.retry_headers import RetryState
from tests.sim.samples import WALL, read

if TYPE_CHECKING:
    from tests.sim.process import Process
    from tests.sim.world import World

LATE = (1, 40, 2_000)
"""ms until a process hears of what was decided."""


class OperatorModel:
    """Decides by what lies in the queues, as the command line does; the policy topic is the dictionary here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.settled: dict[str, SettlementRecord] = {}
        self.made = 0

    def settle_one(self) -> None:
        """Settle any of the records that wait."""
        if waiting := list(self._waiting()):
            self._settle(self._world.random.choice(waiting))

    def settle_parked(self) -> bool:
        """Settle each record that is parked; return whether there was one."""
        parked = [state for state in self._waiting() if state.parked]
        for state in parked:
            self._settle(state)
        return bool(parked)

    def tell(self, process: Process) -> None:
        """A process reads the policy topic."""
        for ident, settlement in self.settled.items():
            self._tell(process, ident, settlement)

    def _settle(self, state: RetryState) -> None:
        world = self._world
        world.faults.ended = max(world.faults.ended, world.steady_ms)
        self.made += 1
        how: Literal["commit"] = world.random.choice(WAYS)  # type: ignore[assignment]
        said = (how, "seen", "ann@host", WALL + world.steady_ms, f"n{self.made}")
        self.settled[state.id] = SettlementRecord(state.redrives, state.times, *said)
        for process in world.processes:
            self._tell(process, state.id, self.settled[state.id])

    def _tell(self, process: Process, ident: str, settlement: SettlementRecord) -> None:
        queues = process.hosts["billing"].lane.queues
        if queues is not None:
            late = self._world.random.choice(LATE)
            process.later(late, partial(self._hear, process, ident, settlement))

    def _hear(self, process: Process, ident: str, settlement: SettlementRecord) -> None:
        queues = process.hosts["billing"].lane.queues
        assert queues is not None
        queues.settle(ident, settlement, process.now())

    def _waiting(self) -> Iterator[RetryState]:
        """The newest open copy of each record that waits."""
        found: dict[str, RetryState] = {}
        for source, log in self._world.kafka.logs.items():
            if "-ORDERED-" not in source.topic:
                continue
            progress = self._world.kafka.progress("billing", source)
            for stored in log.records:
                state, _ = read(stored.headers, self._world.everything, stored.appended + 10**12)
                if state is not None and not progress.covers(stored.offset):
                    found[state.id] = state
        return iter(found.values())
