"""A model of one sidecar process: two lanes on one gate, each with a consumer and a committer of virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.core.assigned import Grant, Run
from sidecar.core.batch import Batch, Refusal, Result
from sidecar.core.gate import Gate
from sidecar.core.intake import Terms
from sidecar.core.lane import Lane
from sidecar.core.outcome import Failed, NotSent, Outcome, Throttled
from sidecar.core.pace import Pace
from sidecar.core.ports import Ports, Reply
from sidecar.core.record import Now, Partition, Record
from tests.sim.kafka_model import Stored
from tests.sim.samples import WALL, read, waits
from tests.sim.service_model import Delivery

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass
class Slot:
    """An assigned partition, as the consumer knows it."""

    epoch: int
    position: int
    turn: int = 0
    paused: bool = False
    fetching: bool = False
    told_end: int = -1


class Process:
    """One sidecar from its start to its end. `skew`: its wall clock's error, ms."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.skew = 0
        self.put_off: Counter[str] = Counter()
        """How often it was told to come back later with a record that kills."""
        self.gate = Gate(Pace(world.plan.concurrency, failures=world.plan.failures))
        self.hosts = {group: LaneHost(self, group) for group in ("billing", "billing-RETRY")}

    def now(self) -> Now:
        return Now(WALL + self.world.steady + self.skew, self.world.steady)

    def later(self, ms: int, act: Callable[[], None]) -> None:
        """Act unless the process has died by then."""
        self.world.later(ms, lambda: act() if self.alive else None)


class LaneHost:
    """What surrounds one lane: the ports, a consumer that fetches ahead, a committer."""

    def __init__(self, process: Process, group: str) -> None:
        self.process = process
        self.group = group
        self.world = process.world
        self.kafka = process.world.kafka
        self.random = process.world.random
        self.slots: dict[Partition, Slot] = {}
        self._timer = 0
        self._handed_at = 0
        levels = waits(self.world.policy) if group.endswith("-RETRY") else {}
        self.retry = bool(levels)
        ports = Ports(self, self._deliver, self._commit, self._wake)
        terms = Terms(self.world.plan.room, self.world.plan.order)
        self.lane = Lane(self.world.policy, levels, ports, process.gate, terms)

    # --- the group ---------------------------------------------------------------------------------------------------

    def assign(self, sources: Iterable[Partition]) -> None:
        """Take partitions up where the group left off."""
        for source in sources:
            epoch = self.world.next_epoch()
            start = self.kafka.progress(self.group, source)
            self.slots[source] = Slot(epoch, start.next)
            self.kafka.owners[self.group, source] = (self.process.name, epoch)
            self.lane.tenure.assigned([Grant(source, epoch, start)])
            self.fetch_soon(source)

    def tenure(self, source: Partition) -> tuple[str, str, Partition, int]:
        return self.process.name, self.group, source, self.slots[source].epoch

    def revoke(self, sources: Collection[Partition], lock: int, given_up: Callable[[], None]) -> None:
        """Give partitions up in order, within `lock` ms."""
        open_ = [True]

        def over() -> None:
            if open_[0]:
                open_[0] = False
                self._forget(sources)
                given_up()

        def out_of_time() -> None:
            if open_[0]:
                self.world.broken |= {self.tenure(source) for source in sources if source in self.slots}
                self.lane.tenure.lost(sources)

        self.lane.tenure.release(sources, over)
        self.lane.tick(self.process.now())
        self.process.later(lock, out_of_time)

    def lose(self, source: Partition, slot: Slot) -> None:
        """Learn that a partition is somebody else's, unless it has come back meanwhile."""
        if self.slots.get(source) is slot:
            self.lane.tenure.lost([source])
            self._forget([source])

    def _forget(self, sources: Iterable[Partition]) -> None:
        for source in sources:
            self.slots.pop(source, None)

    # --- fetch -------------------------------------------------------------------------------------------------------

    def pause(self, partition: Partition, epoch: int) -> None:
        self.slots[partition].paused = True

    def resume(self, partition: Partition, epoch: int, offset: int, turn: int) -> None:
        slot = self.slots[partition]
        assert slot.paused, "only what is parked may be resumed"
        slot.paused, slot.position, slot.turn, slot.told_end = False, offset, turn, -1
        self.fetch_soon(partition, self.random.choice((1, 20, 1_000)))

    def fetch_soon(self, source: Partition, ms: int = 3) -> None:
        """Look for records a little later."""
        slot = self.slots.get(source)
        if slot is not None and not slot.fetching:
            slot.fetching = True
            self.process.later(ms, lambda: self._fetch(source, slot))

    def _fetch(self, source: Partition, slot: Slot) -> None:
        slot.fetching = False
        if slot.paused or self.slots.get(source) is not slot:
            return
        if self.lane.tenure.load > self.lane.room:
            self.fetch_soon(source, 50)
            return
        log = self.kafka.logs[source]
        found = log.after(slot.position, self.random.randint(1, 12))
        records = [self._record(source, slot.epoch, stored) for stored in found]
        slot.position = records[-1].offset + 1 if records else slot.position
        end = None
        if log.after(slot.position, 1):
            self.fetch_soon(source)
        elif self.retry and slot.told_end < log.end:
            slot.position = end = slot.told_end = log.end
        if records or end is not None:
            self._hand_over(Run(source, slot.epoch, slot.turn, records, end))

    def _hand_over(self, run: Run) -> None:
        """From the consumer's thread to the loop: in order, after a moment."""
        self._handed_at = max(self._handed_at, self.world.steady + self.random.choice((0, 0, 2, self.world.plan.stall)))
        self.process.later(self._handed_at - self.world.steady, lambda: self.lane.received([run], self.process.now()))

    def _record(self, source: Partition, epoch: int, stored: Stored) -> Record:
        headers, (life, fault) = list(stored.headers), (None, "")
        if self.retry:
            life, fault = read(headers, self.world.policy, self.process.now().wall)
        return Record(source, stored.offset, epoch, stored.appended, stored.key, stored.value, headers, life, fault)

    # --- deliver -----------------------------------------------------------------------------------------------------

    def _deliver(self, record: Record, reply: Reply) -> None:
        outcome, ms = self.world.service.verdict()
        fatal = self.world.killers.get(record.id)
        if fatal is not None and record.times <= fatal and not isinstance(outcome, NotSent):
            outcome = self._fate(record, fatal)
        if not isinstance(outcome, NotSent):
            now = self.process.now()
            tenure = (self.process.name, self.group, record.source, record.epoch)
            at = WALL + self.world.steady
            self.world.service.ledger.append(Delivery(at, now.wall, record, tenure, outcome, at + ms))
            if isinstance(outcome, Throttled):
                self.world.throttled += 1
        if outcome == Failed("killed"):
            self.process.later(ms, lambda: self.world.killed_by(record.id, self.process))
        else:
            self.process.later(ms, lambda: self._reply(record, outcome, reply))

    def _fate(self, record: Record, fatal: int) -> Outcome:
        """What a killer does at this delivery: this process may have to come back first."""
        said = self.process.put_off
        if said[record.id] < self.world.plan.put_off:
            said[record.id] += 1
            return Throttled(1_000)
        return Failed("killed" if record.times == fatal else "http-500")

    def _reply(self, record: Record, outcome: Outcome, reply: Reply) -> None:
        if isinstance(outcome, Failed) and self.process.gate.pace.spares(record, outcome):
            self.world.service.forgive(record)
            self.world.throttled += 1
        reply(record, outcome, self.process.now())

    def _wake(self, at: int) -> None:
        """One timer: what is asked for last counts."""
        self._timer += 1
        mine = self._timer
        self.process.later(max(0, at - self.world.steady), lambda: self._ring(mine))

    def _ring(self, timer: int) -> None:
        if timer == self._timer:
            self.lane.tick(self.process.now())

    # --- commit ------------------------------------------------------------------------------------------------------

    def _commit(self, batch: Batch) -> None:
        self.process.later(self.random.choice((0, 5, 40)), lambda: self._try(batch))

    def _try(self, batch: Batch) -> None:
        epochs = {source: share.epoch for source, share in batch.shares.items()}
        mine = {source: slot.epoch for source, slot in self.slots.items()}
        fenced = frozenset(source for source, epoch in epochs.items() if mine.get(source) != epoch)
        if fenced:
            rest = tuple(entry for entry in batch.entries if entry.record.source not in fenced)
            self._report(Result(batch, False, again=rest, fenced=fenced))
        elif refused := self._refusals(batch):
            gone = {id(refusal.entry) for refusal in refused}
            rest = tuple(entry for entry in batch.entries if id(entry) not in gone)
            self._report(Result(batch, False, again=rest, refused=refused))
        elif not self.kafka.is_owner(self.group, epochs, self.process.name):
            self.process.later(100, lambda: self._try(batch))  # the broker does not know this generation any more
        else:
            self._transact(batch)

    def _refusals(self, batch: Batch) -> tuple[Refusal, ...]:
        found = []
        for entry in batch.entries:
            if any(copy.topic in self.kafka.refusing for copy in entry.writes):
                found.append(Refusal(entry, "topic", "missing"))
            elif self.world.oversized and entry.writes and entry.record.id in self.world.oversized:
                found.append(Refusal(entry, "record", "too large"))
        return tuple(found)

    def _transact(self, batch: Batch) -> None:
        fate = self.random.choices(("commit", "abort", "unknown"), self.world.plan.fates)[0]
        if fate == "commit" or (fate == "unknown" and self.random.random() < 0.5):
            offsets = {source: share.progress for source, share in batch.shares.items()}
            self.kafka.transact(self.group, (copy for entry in batch.entries for copy in entry.writes), offsets)
        else:
            self.kafka.leave_aborted(copy for entry in batch.entries for copy in entry.writes)
        if fate == "commit":
            self._report(Result(batch, True, done=batch.entries))
        elif fate == "abort":
            self.process.later(100, lambda: self._try(batch))
        else:
            self.process.later(self.random.choice((10, 800)), lambda: self._ask_kafka(batch))

    def _ask_kafka(self, batch: Batch) -> None:
        """As the committer does: what the committed progress covers is done, the rest goes again."""
        found = {source: self.kafka.progress(self.group, source) for source in batch.shares}
        done = tuple(entry for entry in batch.entries if found[entry.record.source].covers(entry.record.offset))
        if all(found[source] == share.progress for source, share in batch.shares.items()):
            self._report(Result(batch, True, done=batch.entries))
        elif done:
            rest = tuple(entry for entry in batch.entries if entry not in done)
            self._report(Result(batch, False, done=done, again=rest))
        else:
            self._try(batch)

    def _report(self, result: Result) -> None:
        self.process.later(self.random.choice((0, 3, 60)), lambda: self.lane.committed(result, self.process.now()))
