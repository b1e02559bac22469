"""A model of one sidecar process: two lanes on one gate, each with a consumer and a committer of virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.copy_reads import Spans
from reconsume.sidecar.core.lane import LaneOptions
from reconsume.sidecar.core.outcome import Failed, NotSent, Outcome, Throttled
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.rates import DeliveryLimits
from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import NoDelivery, Ports, Reply
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.sidecar.kafka.messages import Reading
from reconsume.topics.retry_headers import Headers, RetryState
from tests.sim.committer_model import CommitterModel
from tests.sim.consumer_side import ConsumerSide
from tests.sim.lane_view import view
from tests.sim.notes_model import NotesModel
from tests.sim.queue_model import QueueModel
from tests.sim.samples import WALL, read, waits
from tests.sim.service_model import Delivery
from tests.sim.unasked import nothing_is_left

if TYPE_CHECKING:
    from tests.sim.world import World


FAR = 6 * 3_600_000
"""ms. No wait of a story is longer."""


class Process:
    """One sidecar from its start to its end, under one of the plan's configurations. `skew`: its clock's error, ms."""

    def __init__(self, world: World, name: str, policy: Policy) -> None:
        self.world = world
        self.name = name
        self.policy = policy
        self.alive = True
        self.stopping = False
        self.frozen_until = 0
        self._deferred: list[Callable[[], None]] = []
        """What came while it is frozen."""
        self._steps = 0
        self.skew = world.plan.skews[world.random.randrange(len(world.plan.skews))]
        self.put_off: Counter[str] = Counter()
        """How often it was told to come back later with a record that kills."""
        plan, since = world.plan, self.now()
        limits = DeliveryLimits(plan.rate, None, dict(plan.terms), since.steady_ms)
        self.gate = Dispatcher(Pace(plan.concurrency, failures=plan.failures, since=since, start=1), limits=limits)
        levels = {**world.leftovers(policy), **waits(policy)}
        self.hosts = {
            "billing": LaneHost(self, "billing", {}),
            "billing-RETRY": LaneHost(self, "billing-RETRY", levels),
        }
        if world.holding.holds:
            self.obey()
        world.deciding.begin(self)
        if world.resetting.resets:
            self.hear_resets()

    def now(self) -> Now:
        return Now(WALL + self.world.steady_ms + self.skew, self.world.steady_ms)

    def later(self, ms: int, act: Callable[[], None]) -> None:
        """Act unless the process is dead by then; while it is frozen, it acts when it goes on."""
        self.world.later(ms, partial(self._act, act))

    def _act(self, act: Callable[[], None]) -> None:
        if self._deferred or self.frozen_until > self.world.steady_ms:
            self._deferred.append(act)
            if len(self._deferred) == 1:
                self._thaw()
        elif self.alive:
            act()
            self._check()

    def _thaw(self) -> None:
        """Do what came meanwhile, in its order, once the process goes on: it may have been frozen for longer."""
        if self.frozen_until > self.world.steady_ms:
            self.world.later(self.frozen_until - self.world.steady_ms, self._thaw)
            return
        acts, self._deferred = self._deferred, []
        for act in acts:
            self._act(act)

    def _check(self) -> None:
        """Nothing of a lane contradicts anything else of it."""
        self._steps += 1
        if self._steps % self.world.check_every == 0:
            for host in self.hosts.values():
                host.lane.check()
            nothing_is_left(self)

    def obey(self) -> None:
        """Take in what the operator holds now."""
        for host in self.hosts.values():
            host.lane.hold(self.world.holding.in_force, self.now())

    def hear_resets(self) -> None:
        """Take in which positions are to be reset, and which were."""
        orders, known = self.world.resetting.told()
        for host in self.hosts.values():
            host.lane.reset(orders, known, self.now())

    def read_leftovers(self) -> None:
        """Read levels of older configurations too until they are empty."""
        if not self.stopping and (levels := self.world.leftovers(self.policy)):
            self.hosts["billing-RETRY"].widen({**waits(self.policy), **levels})

    def end(self) -> None:
        """SIGKILL, or the end of an orderly stop."""
        self.alive = False
        for host in self.hosts.values():
            host.abandon()

    def stop(self, then: Callable[[], None]) -> None:
        """SIGTERM: each lane gives everything up in order and leaves; `then`, once the process is over."""
        self.stopping = True
        for host in self.hosts.values():
            host.close(partial(self._closed, then))

    def _closed(self, then: Callable[[], None]) -> None:
        if all(host.closed for host in self.hosts.values()):
            self.end()
            then()


class LaneHost(ConsumerSide):
    """What surrounds one lane: the ports, a consumer that fetches ahead, a committer. `levels`: of the retry lane."""

    def __init__(self, process: Process, group: str, levels: dict[str, int]) -> None:
        self.waits: Mapping[str, int] = levels
        super().__init__(process, group, levels or process.policy.topics, self._reading() if levels else None)
        self.kafka = self.world.kafka
        self._timer = 0
        self.wake_at = NEVER
        self.acts = 0
        """How often its lane has delivered, committed, let a partition continue, or had a record of a queue read."""
        self.queues = QueueModel(self)
        self._submit, recall = CommitterModel(self).submit, NoDelivery().recall
        notes = NotesModel(self)
        ports = Ports(self, self._deliver, self._commit, self._wake, recall, queues=self.queues, notes=notes)
        ports = ports._replace(repeat_takeover=self.repeat_takeover)
        terms = LaneOptions(self.world.plan.room, self.world.order, bounds=self.world.plan.bounds)
        self.lane = self.world.make_lane(process.policy, levels, ports, process.gate, terms)
        if self.lane.queues is not None:
            hop_span = self.world.plan.hop_span
            self.lane.queues.within(Spans(2 * hop_span, hop_span))

    def widen(self, levels: dict[str, int]) -> None:
        """Read more levels; never fewer, as the product does it."""
        self.waits = {**self.waits, **levels}
        self.lane.apply_policy(self.process.policy, self.waits)
        if not self.topics >= self.waits.keys():
            self.consumer.subscribe(sorted(self.waits))
            self.turn_soon()

    def _reading(self) -> Reading:
        def reading(headers: Headers, _source: Partition, _offset: int, _at: int) -> tuple[RetryState | None, str]:
            return read(headers, self.process.policy, self.process.now().wall_ms)

        return reading

    def want_fetch(self, partition: Partition, wanted: WantedFetch) -> None:
        self.acts += wanted.is_fetched
        super().want_fetch(partition, wanted)

    def repeat_takeover(self, partitions: Collection[Partition]) -> None:
        """Begin with partitions once more."""
        self.acts += 1
        self.consumer.repeat_takeover(partitions)
        self.turn_soon()

    def _commit(self, batch: CommitBatch) -> None:
        self.acts += 1
        self._submit(batch)

    # --- deliver -----------------------------------------------------------------------------------------------------

    def _deliver(self, record: Record, reply: Reply) -> None:
        self.acts += 1
        outcome, ms = self.world.service.verdict(record)
        fatal = self.world.killers.get(record.id)
        if fatal is not None and record.times <= fatal and not isinstance(outcome, NotSent):
            outcome = self._fate(record, fatal)
        if not isinstance(outcome, NotSent):
            now = self.process.now()
            main = view(self.lane).main_partition(record.source)
            tenure = (self.process.name, self.group, main, record.epoch)
            at = WALL + self.world.steady_ms
            self.world.service.ledger.append(Delivery(at, now.wall_ms, record, tenure, outcome, at + ms))
            if isinstance(outcome, Throttled):
                self.world.throttled += 1
        if outcome == Failed("killed"):
            self.process.later(ms, lambda: self.world.killed_by(record.id, self.process))
        else:
            self.process.later(ms, lambda: reply(record, outcome, self.process.now()))

    def _fate(self, record: Record, fatal: int) -> Outcome:
        """What a killer does at this delivery: this process may have to come back first."""
        said = self.process.put_off
        if said[record.id] < self.world.plan.put_off:
            said[record.id] += 1
            return Throttled(1_000)
        return Failed("killed" if record.times == fatal else "http-500")

    def _wake(self, at: int) -> None:
        """One timer: what is asked for last counts."""
        if at == self.wake_at:
            return
        self._timer += 1
        self.wake_at = at
        if at - self.world.steady_ms > FAR:
            return  # the progress of queues, twice a day: a story ends where nothing else is to be done
        mine = self._timer
        self.process.later(max(0, at - self.world.steady_ms), lambda: self._ring(mine))

    def _ring(self, timer: int) -> None:
        if timer == self._timer:
            self.wake_at = NEVER
            self.lane.tick(self.process.now())
