"""An operator who resets positions, as every instance hears of it, and what owners have noted in their transactions."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.position_reset import VALID_MS, ResetOrder
from reconsume.sidecar.core.progress import LogId
from reconsume.sidecar.core.record import Partition
from reconsume.topics.position_ranges import PartitionResets, ResetRange
from tests.sim.plan import Fault
from tests.sim.samples import WALL

if TYPE_CHECKING:
    from tests.sim.world import World

LATE = (0, 40, 1_900)
"""ms until a process hears of what is written: the promise is 2 s."""


class Moved(NamedTuple):
    """A reset that an owner has carried out. `at`: in ms of the story."""

    at: int
    partition: Partition
    reset: str
    made: ResetRange | None
    skipped: tuple[tuple[int, int], ...]


class ResetModel:
    """The resets of a world: the policy topic is the two dictionaries here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.resets: list[ResetOrder] = []
        self.noted_resets: dict[Partition, PartitionResets] = {}
        self.moved: list[Moved] = []
        """In the order in which owners have carried them out."""

    @property
    def is_used(self) -> bool:
        """Whether positions are reset in this story: where they are not, no topic has an id, as before Kafka 2.8."""
        return any(fault.kind in ("reset", "skip") for fault in self._world.plan.faults)

    def log_ids(self, topics: Collection[str]) -> dict[str, LogId]:
        """What Kafka says of topics (`LogIds`)."""
        logs = self._world.kafka.logs
        return {topic: logs[Partition(topic, 0)].ident for topic in topics if Partition(topic, 0) in logs}

    def reset(self, fault: Fault, *, forwards: bool) -> None:
        """Write a request. Its target is anywhere in the log."""
        world = self._world
        topics = world.mains
        topic = topics[fault.whom % len(topics)]
        if topic in world.removed:
            return
        source = Partition(topic, world.random.randrange(world.kafka.sizes[topic]))
        log, known = world.kafka.logs[source], self.noted_resets.get(source)
        begin = world.kafka.progress("billing", source).next if forwards else log.start
        target = log.end if forwards else world.random.randint(begin, max(begin, log.end))
        known = known if known is not None and known.topic == log.ident.topic else None
        based_on = "" if known is None else known.last_reset
        until_ms = WALL + world.steady_ms + VALID_MS
        name = f"r{len(self.resets)}"
        self.resets.append(ResetOrder(source, name, log.ident.topic, target, based_on, until_ms, forwards))
        self._tell()

    def told(self) -> tuple[tuple[ResetOrder, ...], dict[Partition, PartitionResets]]:
        """What the policy topic says."""
        return tuple(self.resets), dict(self.noted_resets)

    def committed(self, batch: CommitBatch) -> None:
        """Take in what is noted in a transaction."""
        for source, share in batch.commits.items():
            if share.resets is not None:
                before = self.noted_resets.get(source)
                if before != share.resets:
                    is_backwards = before is None or before.ranges != share.resets.ranges
                    made = share.resets.ranges[-1] if share.resets.ranges and is_backwards else None
                    moved = (source, share.resets.last_reset, made, share.resets.skipped)
                    self.moved.append(Moved(self._world.steady_ms, *moved))
                self.noted_resets[source] = share.resets
                self._tell()

    def _tell(self) -> None:
        self._world.faults.ended = max(self._world.faults.ended, self._world.steady_ms)
        for process in self._world.processes:
            process.later(self._world.random.choice(LATE), partial(self._hear, process))

    @staticmethod
    def _hear(process: object) -> None:
        process.hear_resets()  # type: ignore[attr-defined]
