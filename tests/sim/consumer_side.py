"""A lane's consumer: the product's own code, on the model of the client and on virtual time.

`Assignment` and the commands, the choking and the handing over of `ConsumerThread` are the real ones. Only its loop is
modelled, since the real one sleeps, and that which waits in a rebalance, since the real one waits for another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.record import NEVER, Partition
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.consumer import CHOKED_AFTER, ConsumerThread
from reconsume.sidecar.kafka.consumer.log_checks import no_log_ids
from reconsume.sidecar.kafka.messages import Reading
from tests.sim.client_model import ClientModel
from tests.sim.driver_model import DriverModel
from tests.sim.lockstep import Lockstep

if TYPE_CHECKING:
    from tests.sim.process import Process

MOST = 12
"""Records that one look brings at most."""
LOOK = 100
"""ms between looks of a thread that waits for something."""


class ConsumerSide(DriverModel):
    """One lane's consumer in one process. `lane` and `waits` are set by who makes it."""

    waits: Mapping[str, int]
    """ms that each level waits."""

    def __init__(self, process: Process, group: str, topics: Collection[str], reading: Reading | None) -> None:
        super().__init__(process, group)
        self.member = ""
        """As the coordinator knows it."""
        self.closing = self.closed = False
        self.leaving = self._leave_begins = False
        """Whether it waits for what is under way, before it is closed: it takes part in rebalances meanwhile."""
        start = self.world.plan.start if group == "billing" else "earliest"
        has_ids = self.world.resetting.is_used or self.world.deciding.is_used
        log_ids = self.world.resetting.log_ids if has_ids else no_log_ids
        # The lock is waited for in `release`.
        self.assignment = Assignment(self, start_at=start, lock_timeout=0.0, log_ids=log_ids)
        self.consumer = ConsumerThread({"group.id": group}, sorted(topics), self, self.assignment, reading)
        self._begin()
        self.consumer.looks.due_offsets.waits = lambda: self.waits
        self.assignment.starts.leaders.clock = lambda: self.world.steady_ms / 1000
        self._calls: Lockstep | None = None
        self._waiting = 0
        self._next_turn, self._full_since = NEVER, NEVER
        self._cold: dict[Partition, int] = {}
        """Until when a partition is not fetched: an idle thread of the client takes up to a second to begin."""

    def _begin(self) -> None:
        """Make a client, and join."""
        self.client = ClientModel(self.world.kafka, self.group, self.random, self.world.faults.slow)
        self._client: Any = self.client
        self.consumer._client.consumer = self._client
        self.assignment.join(self._client, self.consumer._demands.topics)
        self.topics = frozenset(self.client.topics)
        """What its group knows that it subscribes to; demanded while it is outside: from its next join on."""

    @property
    def coordinator(self) -> Any:
        """The group's."""
        return self.world.groups[self.group]

    def tenure(self, source: Partition) -> tuple[str, str, Partition, int]:
        """Under what it holds a partition."""
        return self.process.name, self.group, source, self.assignment.owned_partitions[source].epoch

    def tenures(self) -> set[tuple[str, str, Partition, int]]:
        """Of all that it holds, and believes to hold."""
        return {self.tenure(owned.partition) for owned in self.assignment.owned_partitions.values()}

    # --- port `Fetch` ------------------------------------------------------------------------------------------------

    def want_fetch(self, partition: Partition, wanted: WantedFetch) -> None:
        self.consumer.want_fetch(partition, wanted)
        if wanted.is_fetched:
            self._cold[partition] = self.world.steady_ms + self.random.choice((1, 20, 1_000))
        self.turn_soon()

    def ask_membership(self) -> None:
        """Have the membership taken anew."""
        self.assignment.ask_membership()
        self.turn_soon()

    # --- the loop of the thread --------------------------------------------------------------------------------------

    def turn_soon(self, ms: int = 1) -> None:
        """Have the thread look around."""
        at = self.world.steady_ms + ms
        if at < self._next_turn:
            self._next_turn = at
            self.process.later(ms, partial(self._due, at))

    def _due(self, at: int) -> None:
        if at != self._next_turn:
            return
        self._next_turn = NEVER
        if self._calls is not None or self.closed:
            return  # it waits in a rebalance
        if self.closing:
            self._calls = Lockstep(self._close)
            self.go_on(self._waiting)
        elif self.client.rebalancing:
            self._calls = Lockstep(self._rebalance)
            self.go_on(self._waiting)
        else:
            self._turn()

    def _subscribe(self) -> None:
        self.consumer._subscribe(self._client)
        if self.consumer._demands.topics is self.assignment.topics:
            self.topics = frozenset(self.client.topics)
            self.coordinator.widen(self)
        else:
            self.turn_soon(LOOK)

    def _turn(self) -> None:
        if self.consumer._demands.topics is not self.assignment.topics:
            self._subscribe()
        self.assignment.answer(self._client)
        self.assignment.request_offsets(self._client, self.world.steady_ms / 1000)
        self.consumer._run_commands()
        if self.consumer.looks.is_time(self.world.steady_ms / 1000):
            self.consumer._check_client(self._client, self.world.steady_ms / 1000)
        if self.full():
            self._wait_for_room()
            return
        self._full_since = NEVER
        if self.assignment.client.is_choked:
            self.consumer._choke(self._client, False)
        self._fetch()
        self._take(self.random.randint(1, MOST))

    def _take(self, most: int) -> None:
        messages: list[Any] = self.client.consume(most, 0)
        if messages:
            self.consumer._hand_over(self._client, messages)
        if any(toppar.queue for toppar in self.client.toppars.values()):
            self.turn_soon(3)
        if self.assignment.client.waiting:
            self.turn_soon(LOOK)
        for source in self.client.assignment_now:
            if self.client.hungry(source):
                self.turn_soon(max(3, self._cold.get(source, 0) - self.world.steady_ms))

    def _fetch(self) -> None:
        for source in self.client.assignment_now:
            if self._cold.get(source, 0) <= self.world.steady_ms:
                self.client.fetch_one(source, self.random.randint(1, MOST))

    def _wait_for_room(self) -> None:
        self.turn_soon(LOOK)
        if self.assignment.client.is_choked:
            self._take(1)
        elif self._full_since == NEVER:
            self._full_since = self.world.steady_ms
        elif self.world.steady_ms - self._full_since >= CHOKED_AFTER * 1000:
            self.consumer._choke(self._client, True)

    # --- rebalances --------------------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        """In lockstep: the callbacks, which may wait."""
        while self.client.rebalancing:
            self.coordinator.begin(self, *self.client.next_callback)
            kind, _ = self.client.run_callback()
            self.coordinator.done(self, kind)

    def go_on(self, waited: int) -> None:
        """Let the thread go on with its rebalance, if it still waits there."""
        calls = self._calls
        if calls is None or waited != self._waiting:
            return
        self._waiting += 1
        calls.go()
        if calls.ended:
            self._calls = None
            self.turn_soon()

    def learn_loss(self) -> None:
        """It hears that it was put out of the group: everything is lost, and it joins anew."""
        if self.closed or self.member in self.coordinator.hosts:
            return  # it has left meanwhile, and may have come back
        if self._calls is not None:
            self.process.later(LOOK, self.learn_loss)
            return
        self.client.forget_rebalances()
        self.world.broken |= self.tenures()
        self.client.rebalance("on_lost", self._owned())
        self.turn_soon()

    def close(self, then: Callable[[], None]) -> None:
        """Give everything up in order, and leave."""
        self.closing, self._then = True, then
        if self.closed:
            self.process.later(0, then)
        self.turn_soon()

    def stay_outside(self, ms: int) -> None:
        """Leave as at the thread's end, and join again so many ms later."""
        if not self.closing:
            self.close(lambda: self.process.later(ms, self._come_back))

    def _come_back(self) -> None:
        if not self.process.stopping:
            self.closing = self.closed = False
            self._full_since = NEVER
            self._begin()
            self.coordinator.join(self)
            self.turn_soon()

    def _close(self) -> None:
        """In lockstep, as the thread's end."""
        self._rebalance()
        self.leaving = self._leave_begins = True
        self.assignment.leave(self._client)
        self.leaving = False
        if places := self._owned():
            self.client.rebalance("on_revoke", places)
            self._rebalance()
        self.coordinator.leave(self)
        self.closed = True
        self.process.later(0, self._then)

    def _owned(self) -> list[Partition]:
        """What the group has given it, and the client may not have yet."""
        return [owned.partition for owned in self.assignment.owned_partitions.values()]

    def abandon(self) -> None:
        """End a thread that waits in a rebalance."""
        if self._calls is not None:
            self._calls.abandon()

    def _wait(self, ms: int) -> None:
        """In lockstep."""
        assert self._calls is not None
        self.process.later(ms, partial(self.go_on, self._waiting))
        self._calls.wait()

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        """In lockstep: give partitions up, and wait for that as long as the lock allows."""
        over, leaves = [False], self._leave_begins
        self._leave_begins = False

        def given_up() -> None:
            over[0] = True
            done()
            self.process.later(0, partial(self.go_on, self._waiting))

        self.world.gives_up(self, partitions)
        self.on_loop(partial(self._release, partitions, given_up))
        deadline = self.world.steady_ms + self.world.plan.lock
        while not over[0] and self.world.steady_ms < deadline:
            self._wait(min(LOOK, deadline - self.world.steady_ms))
            if leaves:
                self.assignment.answer(self._client)
                self._rebalance()
            elif self.assignment.group.has_moved_on(self._client):
                break
        self.world.gives_up(self, partitions)  # what Kafka refuses since
        if not over[0]:
            self.world.given_away(self, partitions)
