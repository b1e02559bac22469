"""An operator who decides about waiting records, one or many at once, as each instance hears of it, and what it must
mean."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from reconsume.sidecar.core.outcome import NotSent
from reconsume.topics.decision_record import RETRY_NOW, WAYS, DecidedRange, DecisionRecord, level_of_wait
from reconsume.topics.events import BY_SETTLEMENT, Event, State
from reconsume.topics.names import Kind
from reconsume.topics.owner_notes import PARTITION, OwnerNotes
from reconsume.topics.partition import Partition
from reconsume.topics.retry_headers import RetryState
from tests.sim.plan import Fault
from tests.sim.samples import WALL, read

if TYPE_CHECKING:
    from tests.sim.checker import Found
    from tests.sim.process import Process
    from tests.sim.world import World

LATE = (1, 40, 2_000)
"""ms until a process hears of what was decided."""
FILTERS: tuple[dict[str, str | bytes], ...] = (
    {}, {}, {"key": b"k1"}, {"topic": "orders"}, {"topic": "refunds"}, {"level": "5s"}, {"reason": "http-500"},
)  # fmt: skip
RATES = ("", "", "20/s", "1/s")


class Decided(NamedTuple):
    """A decision, and when each process heard of it (ms of the story), by name."""

    record: DecisionRecord
    heard: dict[str, int]


class DecisionModel:
    """The decisions of a world: the control log is the dictionary here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.made: dict[str, Decided] = {}
        self.is_used = any(fault.kind == "decide" for fault in world.plan.faults)
        """Whether anything is decided in this story: only then Kafka tells the ids of topics."""

    def decide(self, fault: Fault) -> None:
        """Write a decision about all that waits now and fits."""
        fits = FILTERS[fault.lasts % len(FILTERS)]
        self._write(WAYS[fault.whom % 3], rate=self._world.random.choice(RATES), **fits)

    def decide_one(self) -> None:
        """Write a decision about any of the records that wait in queues."""
        if waiting := list(self._in_queues()):
            self._write_one(self._world.random.choice(waiting))

    def decide_parked(self) -> bool:
        """Write decisions about all records that are parked; return whether there was one."""
        parked = [state for state in self._in_queues() if state.parked]
        for state in parked:
            self._write_one(state)
        return bool(parked)

    def _write_one(self, state: RetryState) -> None:
        counts = {"redrives": state.redrives, "times": state.times, "cycle": state.cycle}
        self._write(self._world.random.choice(WAYS), id=state.id, **counts)

    def _write(self, how: str, **what: object) -> None:
        world, ident = self._world, f"d{len(self.made)}"
        world.faults.ended = max(world.faults.ended, world.steady_ms)
        ranges = tuple(self._ranges())
        record = DecisionRecord(how, "ann@host", ident, WALL + world.steady_ms, ranges, **what)  # type: ignore[arg-type]
        self.made[ident] = Decided(record, {})
        for process in world.processes:
            process.later(world.random.choice(LATE), partial(self._hear, process))

    def _ranges(self) -> list[DecidedRange]:
        world = self._world
        waits = sorted(
            source for source in world.kafka.logs if "-RETRY-" in source.topic or "-ORDERED-" in source.topic
        )
        ranges = list[DecidedRange]()
        for source in waits:
            log = world.kafka.logs[source]
            group = "billing" if "-ORDERED-" in source.topic else "billing-RETRY"
            start = world.kafka.progress(group, source).next
            if source.topic.endswith(("-EVENTS", "-POLICY")) or start >= log.end:
                continue
            ranges.append(DecidedRange(*source, log.ident.topic, start, log.end))
        return ranges

    def _in_queues(self) -> Iterator[RetryState]:
        """The newest open copy of each record that waits in a queue."""
        found: dict[str, RetryState] = {}
        for source, log in self._world.kafka.logs.items():
            progress = self._world.kafka.progress("billing", source)
            for stored in log.records if "-ORDERED-" in source.topic else ():
                state, _ = read(stored.headers, self._world.everything, stored.appended + 10**12)
                if state is not None and not progress.covers(stored.offset):
                    found[state.id] = state
        return iter(found.values())

    def begin(self, process: Process) -> None:
        """A process reads the control log before it delivers anything."""
        if self.made:
            self._hear(process)

    def _hear(self, process: Process) -> None:
        now = process.now()
        for decided in self.made.values():
            decided.heard.setdefault(process.name, self._world.steady_ms)
        for host in process.hosts.values():
            host.lane.decide({ident: one.record for ident, one in self.made.items()}, now)

    def means(self, ident: str, state: RetryState, key: bytes | None, topic: str, number: int, offset: int) -> bool:
        """Whether a decision means the copy that lies somewhere."""
        record = self.made[ident].record
        kind = Kind.ORDERED if "-ORDERED-" in topic else Kind.LEVEL
        level = level_of_wait(state, kind, self._world.everything)
        spans = [one for one in record.ranges if (one.topic, one.partition) == (topic, number)]
        return any(one.start <= offset < one.end for one in spans) and record.fits(state, key, level)


def by_operator(event: Event) -> bool:
    """Whether an event tells of a decision."""
    return event.instance.startswith(BY_SETTLEMENT)


def each_decision_acts_once(found: Found) -> None:
    """No record has two effects of one decision, and none ends twice."""
    for origin, events in found.events.items():
        made = found.world.deciding.made
        effects = [event.text for event in events if by_operator(event) and event.text in made]
        assert len(effects) == len(set(effects)), (origin, effects)
        ends = [event for event in events if event.state in (State.COMMIT, State.DLQ)]
        assert len(ends) <= 1, (origin, ends)


def each_decision_ends(world: World) -> None:
    """Each owner has noted that its parts of all decisions are over."""
    notes = OwnerNotes()
    for stored in world.kafka.logs[Partition(world.everything.names.policy, PARTITION)].records:
        notes.take(stored.key, stored.value)
    for ident, decided in world.deciding.made.items():
        for one in decided.record.ranges:
            source = Partition(one.topic, one.partition)
            note = notes.of(source).done.get(ident)
            assert note is not None, f"nobody has noted {ident} in {source}"
            assert note.finished, f"{ident} is not over in {source}"


def nothing_decided_was_delivered(world: World) -> None:
    """Whoever has heard of a decision begins no delivery of what it ends."""
    for delivery in world.service.ledger:
        record, at, process = delivery.record, delivery.at - WALL, delivery.tenure[0]
        if record.retry_state is None or isinstance(delivery.outcome, NotSent) or delivery.tenure in world.broken:
            continue
        known = {ident: one.heard[process] for ident, one in world.deciding.made.items() if process in one.heard}
        about = [
            (ident, since)
            for ident, since in known.items()
            if since < at
            and ident != record.retry_state.settled
            and world.deciding.means(ident, record.retry_state, record.key, *record.source, record.offset)
        ]
        if about:
            ident, since = about[-1]
            is_tried = world.deciding.made[ident].record.how == RETRY_NOW
            assert is_tried, f"{record.id} was delivered at {at}, and {process} knew {ident} since {since}"
