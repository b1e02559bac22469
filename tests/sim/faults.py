"""What goes wrong in a story, and how it ends: every fault ends, so that in the end everything must be done."""

from __future__ import annotations

from functools import partial

from confluent_kafka import KafkaError, KafkaException

from tests.sim.client_questions import NODES
from tests.sim.kafka_faults import KafkaFaults
from tests.sim.plan import Fault
from tests.sim.process import LaneHost, Process

SESSION = 8_000
"""ms without a heartbeat after which a member is put out."""
GONE_YET = 100
"""ms between looks at a pod that is stopping."""


class Faults(KafkaFaults):
    """Strikes a world."""

    def strike(self, fault: Fault) -> None:
        """Let it happen."""
        self.ended = max(self.ended, self.world.steady_ms + fault.lasts)
        getattr(self, f"_{fault.kind}")(fault)

    def slow(self, call: str) -> None:
        """A question to the broker; while questions hang, some are not answered."""
        if self.questions_hang and self.random.random() < 0.5:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _one(self, fault: Fault) -> Process:
        alive = [process for process in self.world.processes if process.alive]
        return alive[fault.whom % len(alive)]

    # --- processes ---------------------------------------------------------------------------------------------------

    def _crash(self, fault: Fault) -> None:
        self.world.kill(self._one(fault), fault.lasts)

    def _freeze(self, fault: Fault) -> None:
        """SIGSTOP, and SIGCONT; one that stands still for too long is put out of its groups."""
        victim = self._one(fault)
        # A shorter one within a longer one ends nothing: what waits for the end would come in another order.
        victim.frozen_until = max(victim.frozen_until, self.world.steady_ms + fault.lasts)
        if fault.lasts > SESSION:
            for host in victim.hosts.values():
                self.world.later(SESSION, partial(self._expel, host, fault.lasts - SESSION))

    def _expel(self, host: LaneHost, learns_after: int) -> None:
        coordinator = self.world.groups[host.group]
        if host.process.alive and host.member in coordinator.hosts and not host.closing:
            self.world.broken |= host.tenures()
            coordinator.expel(host, 0)
            host.process.later(learns_after, host.learn_loss)

    def _lose(self, fault: Fault) -> None:
        """One member's heartbeats do not come through."""
        for host in self._one(fault).hosts.values():
            if self.random.random() < 0.6:
                self._expel(host, fault.lasts // 2)

    def _outside(self, fault: Fault) -> None:
        """A pod leaves its groups, for its service is away, and joins again later; its lanes stay."""
        for host in self._one(fault).hosts.values():
            host.stay_outside(fault.lasts)

    def _join(self, fault: Fault) -> None:
        """Another pod for a while."""
        guest = self.world.start()
        self.world.later(fault.lasts, partial(self._part, guest))

    def _part(self, guest: Process) -> None:
        if guest.alive and guest in self.world.processes and not guest.stopping:
            guest.stop(partial(self.world.retire, guest))

    def _rollout(self, fault: Fault) -> None:
        """The next configuration, pod by pod."""
        self.world.deployed = min(self.world.deployed + 1, len(self.world.policies) - 1)
        self._replace(list(self.world.processes), fault.lasts // 4)

    def _replace(self, old: list[Process], pause: int) -> None:
        while old and (not old[0].alive or old[0].stopping):
            old.pop(0)
        if not old:
            return
        self.world.start()
        leaving = old.pop(0)
        leaving.stop(partial(self.world.retire, leaving))
        self._await_gone(leaving, old, pause)

    def _await_gone(self, leaving: Process, old: list[Process], pause: int) -> None:
        """The roll-out goes on when a pod has gone, be it by its stop or by a crash meanwhile."""
        self.ended = max(self.ended, self.world.steady_ms + pause)
        if leaving in self.world.processes:
            self.world.later(max(pause, GONE_YET), partial(self._await_gone, leaving, old, pause))
        else:
            self.world.later(pause, partial(self._replace, old, pause))

    def _step(self, fault: Fault) -> None:
        by = self.random.choice((-4_000, -300, 250, 6_000))
        self._one(fault).skew += by
        self.world.stepped += abs(by)
        self.world.apart += abs(by)

    def _unreach(self, fault: Fault) -> None:
        """One pod's consumers cannot reach a node, which leads partitions all the same."""
        for host in self._one(fault).hosts.values():
            host.client.unreached.add(fault.whom % NODES)
            self.world.later(fault.lasts, partial(self._reach, host, fault.whom % NODES))

    def _reach(self, host: LaneHost, node: int) -> None:
        host.client.unreached.discard(node)
        if host.process.alive:
            host.turn_soon()

    def _settle(self, fault: Fault) -> None:
        """A person decides about one of the records that wait."""
        self.world.deciding.decide_one()

    def _decide(self, fault: Fault) -> None:
        """An operator decides about waiting records, as many as fit."""
        self.world.deciding.decide(fault)

    # --- the groups --------------------------------------------------------------------------------------------------

    def _revoke(self, fault: Fault) -> None:
        for host in self._one(fault).hosts.values():
            coordinator = self.world.groups[host.group]
            places = [place for place in coordinator.held(host) if self.random.random() < 0.6]
            coordinator.revoke(host, places, fault.lasts % 500)

    def _grow(self, fault: Fault) -> None:
        """Partitions are added to a topic."""
        world = self.world
        topics = sorted(topic for topic in world.kafka.sizes if not topic.endswith(("DLQ", "EVENTS")))
        topic = topics[fault.whom % len(topics)]
        world.kafka.create(topic, world.kafka.sizes[topic] + 1)
        if world.plan.queued and topic in world.mains:
            self._grow_later(world.everything.names.ordered(topic), topic, fault.lasts)
        for coordinator in world.groups.values():
            coordinator.topics_changed()
            coordinator.deal_soon(1_000)

    def _grow_later(self, queue: str, main: str, after: int) -> None:
        """Copies for partitions that a queue lacks are refused meanwhile."""
        world = self.world
        world.refused, self.ended = True, max(self.ended, world.steady_ms + after)
        sizes = world.kafka.sizes
        world.later(after, lambda: world.kafka.create(queue, max(sizes[queue], sizes[main])) and None)

    def _held(self, fault: Fault) -> None:
        """An operator holds some of the records."""
        self.world.holding.hold(fault)

    def _reset(self, fault: Fault) -> None:
        """An operator moves the position of a partition backwards."""
        self.world.resetting.reset(fault, forwards=False)

    def _skip(self, fault: Fault) -> None:
        """An operator moves the position of a partition forwards."""
        self.world.resetting.reset(fault, forwards=True)

    # --- the service -------------------------------------------------------------------------------------------------

    def _outage(self, fault: Fault) -> None:
        self.world.service.away = True
        self.world.later(fault.lasts, partial(setattr, self.world.service, "away", False))

    def _failing(self, fault: Fault) -> None:
        self.world.service.failing = True
        self.world.later(fault.lasts, partial(setattr, self.world.service, "failing", False))
