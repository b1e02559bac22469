"""One lane, or two that share a gate, driven by hand on a clock that only moves when told to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.ages import Ages, Wait
from reconsume.sidecar.core.commit_batch import CommitBatch, CommitResult, Refusal, SettledRecord, WrittenAt
from reconsume.sidecar.core.facts import LaneFacts
from reconsume.sidecar.core.lane import Lane, LaneOptions
from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.outcome import COMMITTED, Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.rates import DeliveryLimits, TopicTerms
from reconsume.sidecar.core.partition import SETTLED, AssignedPartition, FetchedRecords, PartitionState, WantedFetch
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Ports, QueueReads, Reply
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.tags import TagFilter
from tests.sim import samples
from tests.sim.samples import ORDERS, WALL


class Sent(NamedTuple):
    """A delivery that waits for its answer."""

    record: Record
    reply: Reply
    at: int


class Clock:
    """Virtual time, shared by all rigs of a test. `behind`: how much the wall clock was set back, in ms."""

    def __init__(self) -> None:
        self.steady_ms = 0
        self.behind = 0
        self.rigs: list[Rig] = []

    @property
    def now(self) -> Now:
        return Now(WALL + self.steady_ms - self.behind, self.steady_ms)

    def run(self, ms: int) -> None:
        """Let time pass; every lane is ticked exactly when it asked to be."""
        end, turns = self.steady_ms + ms, 0
        while (at := min(rig.wake_at for rig in self.rigs)) <= end:
            turns = turns + 1 if at <= self.steady_ms else 0
            assert turns < 100, "the lane keeps asking to be woken at once"
            self.steady_ms = max(self.steady_ms, at)
            rig = min(self.rigs, key=lambda rig: rig.wake_at)
            rig.wake_at = NEVER
            rig.lane.tick(self.now)
        self.steady_ms = end


class Rig:
    """A lane with ports that only note what is asked of them."""

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        retry: bool = False,
        concurrency: int = 4,
        failures: int | None = None,
        room: int = 1 << 20,
        beside: Rig | None = None,
        order: OrderBy | None = None,
        wanted: TagFilter | None = None,
        queues: QueueReads | None = None,
        terms: Mapping[str, TopicTerms] | None = None,
        proves_room: bool = False,
    ) -> None:
        self.policy = policy or samples.policy()
        self.clock: Clock = Clock() if beside is None else beside.clock
        limits = DeliveryLimits(terms=terms, since_ms=self.clock.steady_ms)
        pace = Pace(concurrency, failures=failures)
        self.gate: Dispatcher = Dispatcher(pace, limits=limits) if beside is None else beside.gate
        self.sent: list[Sent] = []
        self.history: list[Sent] = []
        self.batches: list[CommitBatch] = []
        self.fetches: list[tuple[object, ...]] = []
        self.kafka: dict[Partition, Progress] = {}
        """What was committed last."""
        self.told: list[tuple[str, Partition, int, int]] = []
        self.recalls: list[tuple[set[Partition], bool]] = []
        """The partitions whose deliveries were withdrawn, and whether they were lost."""
        self.withdrawn: list[Record] = []
        """What was out when the lane asked to have all that is held withdrawn."""
        self.taken_over: list[tuple[Partition, ...]] = []
        """The partitions that the lane wanted to begin with once more."""
        self.wake_at = NEVER
        self._calls = 0
        self.whole = True
        """False: the invariants are not checked. The test has taken the lane apart, or looks too often."""
        waits = samples.waits(self.policy) if retry else {}
        ports = Ports(self, self._deliver, self._commit, self._wake, self._recall, self._notice, queues)
        ports = ports._replace(withdraw=self._withdraw, notes=self, repeat_takeover=self._repeat_takeover)
        self.notes_read: list[Mapping[Partition, int]] = []
        """The partitions whose notes the lane has asked for, with their epochs."""
        self.scans: list[tuple[Partition, int, int, int]] = []
        """The ranges that it has asked for, with the epochs of their partitions."""
        self.lane = Lane(
            self.policy, waits, ports, self.gate, LaneOptions(room, order, wanted, proves_room=proves_room)
        )
        self.lane.machines.commits.take_batch(self.now)  # as if progress had been committed just now
        self.clock.rigs.append(self)

    @property
    def facts(self) -> LaneFacts:
        """What is true of the lane now."""
        return self.lane.shown.facts(self.now)

    def wait(self) -> Wait:
        """Why the only partition, or the first one, is not delivered and not fetched; its log was not looked at."""
        return next(iter(Ages().waits(self.facts, self.now).values()))

    # --- ports -------------------------------------------------------------------------------------------------------

    def want_fetch(self, partition: Partition, wanted: WantedFetch) -> None:
        goes_on = ("resume", partition, wanted.offset, wanted.seek_count)
        self.fetches.append(goes_on if wanted.is_fetched else ("pause", partition))

    def _deliver(self, record: Record, reply: Reply) -> None:
        sent = Sent(record, reply, self.clock.steady_ms)
        self.sent.append(sent)
        self.history.append(sent)

    def _commit(self, batch: CommitBatch) -> None:
        self.batches.append(batch)

    def _wake(self, at: int) -> None:
        self.wake_at = at  # one timer, as the driver has: what is asked for last counts

    def _recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        self.recalls.append((set(partitions), lost))

    def read_notes(self, wanted: Mapping[Partition, int]) -> None:
        self.notes_read.append(wanted)

    def scan(self, source: Partition, epoch: int, begin: int, end: int) -> None:
        self.scans.append((source, epoch, begin, end))

    def _withdraw(self, is_held: Callable[[Record], bool]) -> None:
        self.withdrawn += [sent.record for sent in self.sent if is_held(sent.record)]

    def _repeat_takeover(self, partitions: Collection[Partition]) -> None:
        self.taken_over.append(tuple(partitions))

    def _notice(self, what: str, partition: Partition, deaths: int, offset: int) -> None:
        self.told.append((what, partition, deaths, offset))

    def check(self) -> None:
        """Nothing of the lane contradicts anything else of it. With much of it in memory only now and then: a check
        looks at everything."""
        self._calls += 1
        partitions = self.lane.partitions.values()
        size = (
            self.lane.shown.waiting()
            + len(self.sent)
            + sum(1 + partition.offsets.counts[SETTLED] for partition in partitions)
        )
        if self.whole and self._calls % (1 + size // 50) == 0:
            self.lane.check()

    # --- what a test does --------------------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return self.clock.now

    def run(self, ms: int) -> None:
        """Let `ms` pass."""
        self.clock.run(ms)
        self.check()

    def assign(self, *sources: Partition, epoch: int = 1, resume: Progress | None = None) -> None:
        """Give partitions to the lane."""
        self.lane.ownership.begin_partitions(
            [AssignedPartition(source, epoch, resume or Progress(0)) for source in sources]
        )

    def take(self, *records: Record, turn: int | None = None, end: int | None = None) -> None:
        """Hand over records of one partition."""
        source, epoch = records[0].source, records[0].epoch
        part = self.lane.partitions.get(source)
        current = 0 if part is None else part.seek_count
        self.lane.received(
            [FetchedRecords(source, epoch, current if turn is None else turn, list(records), end)], self.now
        )
        self.check()

    def take_offsets(self, offsets: Iterable[int], source: Partition = ORDERS, epoch: int = 1) -> None:
        """Hand over plain records of a main topic."""
        records = [samples.record(offset, source=source, epoch=epoch) for offset in offsets]
        if records:
            self.take(*records)

    def answer(self, outcome: Outcome = COMMITTED, place: int = 0) -> Record:
        """Answer a delivery that is out, the oldest unless told otherwise."""
        sent = self.sent.pop(place)
        sent.reply(sent.record, outcome, self.now)
        self.check()
        return sent.record

    def answer_all(self, outcome: Outcome = COMMITTED) -> None:
        """Answer until nothing is out."""
        while self.sent:
            self.answer(outcome)

    def conclude(
        self,
        *,
        again: Iterable[SettledRecord] | None = None,
        refused: Iterable[tuple[SettledRecord, str]] = (),
        where: str = "t",
        fenced: Iterable[Partition] = (),
        unwritable: Iterable[Partition] = (),
        apart: bool = False,
        located: Mapping[int, WrittenAt] | None = None,
    ) -> CommitBatch:
        """Tell the lane what became of the batch that is out: committed, unless told otherwise."""
        batch = self.batches.pop(0)
        refusals = tuple(Refusal(entry, about, f"{where}: refused", where) for entry, about in refused)  # type: ignore[arg-type]
        places = frozenset(fenced)
        denied = dict.fromkeys(unwritable, "no right")
        failed = again is not None or bool(refusals) or bool(places) or bool(denied) or apart
        if not failed:
            self.kafka |= {source: share.progress for source, share in batch.commits.items()}
            result = CommitResult(batch, committed=True, done=batch.entries, located=located or {})
        else:
            out = {id(refusal.entry) for refusal in refusals}
            rest = tuple(e for e in batch.entries if id(e) not in out and e.record.source not in places)
            result = CommitResult(
                *(batch, False),
                again=rest,
                refused=refusals,
                fenced=places,
                apart=apart,
                unwritable=denied,
            )
        self.lane.committed(result, self.now)
        self.check()
        return batch

    def settle(self) -> list[CommitBatch]:
        """Commit whatever wants to be committed within the next few seconds; nothing is left afterwards."""
        done = []
        for _ in range(20):
            while self.batches:
                done.append(self.conclude())
            self.run(250)
        assert not self.batches
        return done

    def release(self, *sources: Partition) -> list[str]:
        """Revoke partitions; the list gets an item when they are given up."""
        given_up: list[str] = []
        self.lane.release(sources, lambda: given_up.append("given up"), self.now)
        return given_up

    def part(self, source: Partition = ORDERS) -> PartitionState:
        """What the lane knows of a partition."""
        return self.lane.partitions[source]

    def out_offsets(self) -> list[int]:
        """The offsets that are out for delivery."""
        return [sent.record.offset for sent in self.sent]
