"""What goes wrong with Kafka itself in a story: refusals, missing leaders, logs that are cut, truncated or deleted."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from reconsume.sidecar.core.record import Partition
from tests.sim.kafka_model import Log, Stored
from tests.sim.lane_view import view
from tests.sim.plan import Fault

if TYPE_CHECKING:
    from tests.sim.world import World

TARGETS = ("billing-DLQ", "billing-RETRY-1s", "billing-RETRY-5s", "billing-RETRY-EVENTS")
REVOKED = 10_000
"""ms after which everybody has given up what was deleted."""
RENEWED, NARROW = 40, 8_000
"""ms at least until a topic that was deleted is made anew; ms after which one that has too few partitions gets more."""
MOVING = frozenset({"crash", "freeze", "lose", "join", "rollout", "revoke", "truncate", "recreate", "grow"})
"""After these a partition may have another owner, which knows nothing of what the one before had in hand."""
STOPPING = frozenset({"refuse", "oversize", "unled", "underreplicated"})
"""After these a partition may be stopped, and what it had in hand be let go to be fetched again."""


class KafkaFaults:
    """Strikes the world's Kafka."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random: Random = world.random
        self.questions_hang = 0
        self.ended = 0
        """When the last fault so far is over."""

    def _refuse(self, fault: Fault) -> None:
        queue = ("billing-ORDERED-orders",) * 2 if self.world.plan.queued else ()
        topic = self.random.choice((*TARGETS, *queue))
        self._refuses()
        self.world.kafka.refusing.add(topic)
        self.world.later(fault.lasts, partial(self.world.kafka.refusing.discard, topic))

    def _oversize(self, fault: Fault) -> None:
        self._refuses()
        self.world.oversized |= set(sorted(self.world.sent)[fault.whom % 3 :: 3])
        self.world.later(fault.lasts, self.world.oversized.clear)

    def _refuses(self) -> None:
        self.world.refused = True
        for host in self.world.hosts():
            leaving = self.world.groups[host.group].leaving
            self.world.broken |= {tenure for tenure in host.tenures() if tenure[2] in leaving}

    def _hang(self, fault: Fault) -> None:
        """Commits hang for a while each."""
        self.world.hang = 2_000
        self.world.later(fault.lasts, partial(setattr, self.world, "hang", 0))

    def _late(self, fault: Fault) -> None:
        """Requests of transactions are lost on the way: clients send them again, and the first copies come late."""
        self.world.losses += 1
        self.world.later(fault.lasts, self._arrive)

    def _arrive(self) -> None:
        self.world.losses -= 1

    def _slowness(self, fault: Fault) -> None:
        """Questions to the broker time out."""
        self.questions_hang += 1
        self.world.later(fault.lasts, self._answers)

    def _answers(self) -> None:
        self.questions_hang -= 1

    def _hold(self, fault: Fault) -> None:
        """Open transactions of a pod that has died hold back some of a group's offsets."""
        for group in ("billing", "billing-RETRY"):
            for source in sorted(self.world.kafka.logs):
                if self.random.random() < 0.5:
                    self.world.kafka.hold(group, source)
                    self.world.later(fault.lasts, partial(self.world.kafka.let_go, group, source))

    def _forget(self, fault: Fault) -> None:
        """Somebody deletes the progress of the main group on a main partition; its next owner begins anew."""
        mains = sorted(place for place in self.world.kafka.logs if place.topic in self.world.mains)
        self.world.kafka.committed.pop(("billing", mains[fault.whom % len(mains)]), None)

    def _unled(self, fault: Fault) -> None:
        """A partition has no leader: nothing of it is read or written."""
        self._without(fault, "led")

    def _underreplicated(self, fault: Fault) -> None:
        """A partition takes no writes."""
        self._without(fault, "in_sync")

    def _without(self, fault: Fault, what: str) -> None:
        place = sorted(self.world.kafka.logs)[fault.whom * 7 % len(self.world.kafka.logs)]
        self._refuses()
        log = self.world.kafka.logs[place]
        setattr(log, what, False)
        self.world.later(fault.lasts, partial(self._whole, place, what))

    def _whole(self, place: Partition, what: str) -> None:
        if place in self.world.kafka.logs:
            setattr(self.world.kafka.logs[place], what, True)
            self.world.kafka.appended(place)

    def _cut(self, fault: Fault) -> None:
        """Retention takes the beginning of a log, read or not."""
        place, log = self._some_log(fault)
        before = self.random.randint(log.start, log.end)
        self._excuse(place, [stored for stored in log.records if stored.offset < before])
        log.cut(before)
        self.world.kafka.appended(place)

    def _cutqueue(self, fault: Fault) -> None:
        """Retention takes the beginning of a queue, with what waits there."""
        if (topic := "billing-ORDERED-orders") not in self.world.kafka.sizes:
            return
        queues = self.world.kafka.places(topic)
        place = queues[fault.whom % len(queues)]
        log = self.world.kafka.logs[place]
        before = self.random.randint(log.start, log.end)
        for stored in log.records:
            if stored.offset < before and not self.world.kafka.progress("billing", place).covers(stored.offset):
                self.world.excused.add(self.world.origin(place, stored))
        log.cut(before)
        self.world.kafka.appended(place)

    def _renewqueue(self, fault: Fault) -> None:
        """Somebody deletes the queues and makes them anew: with as many partitions, with more, or with fewer for a
        while. What waited in them is lost."""
        world, topic = self.world, "billing-ORDERED-orders"
        if (size := world.kafka.sizes.get(topic)) is None:
            return
        self._refuses()
        for place in world.kafka.places(topic):
            progress = world.kafka.progress("billing", place)
            for stored in world.kafka.logs[place].records:
                # Until the owner of a former log ends, it commits progress that is no progress in this one.
                former = progress.log not in (None, world.kafka.logs[place].ident)
                if former or not progress.covers(stored.offset):
                    world.excused.add(world.origin(place, stored))
        world.kafka.delete(topic)
        made, width = max(fault.lasts, RENEWED), (size, size + 1, max(1, size - 1))[fault.whom % 3]
        world.later(made, partial(self._make_queue, topic, width))
        world.later(made + NARROW, partial(self._make_queue, topic, size))
        self.ended = max(self.ended, world.steady_ms + made + NARROW)
        self._have_logs_watched()

    def _make_queue(self, topic: str, width: int) -> None:
        kafka = self.world.kafka
        for place in kafka.create(topic, max(width, kafka.sizes.get(topic, 0))):
            kafka.appended(place)
        self._have_logs_watched()

    def _have_logs_watched(self) -> None:
        for host in self.world.hosts():
            host.queues.watch_logs()

    def _truncate(self, fault: Fault) -> None:
        """An unclean election: the end of a log is lost, and its offsets are used again."""
        place, log = self._some_log(fault)
        old, end = log.end, self.random.randint(log.start, log.end)
        self._excuse(place, log.truncate(end))
        self.world.gaps.append((place, end, old))
        for host in self.world.hosts():
            host.client.truncated(place, end)
        self.world.kafka.appended(place)

    def _recreate(self, fault: Fault) -> None:
        """Somebody deletes a level or the DLQ, and makes it again."""
        world, topics = self.world, ("billing-DLQ", "billing-RETRY-1s", "billing-RETRY-5s")
        topic = topics[fault.whom % len(topics)]
        if topic not in world.kafka.sizes:
            return
        self._refuses()
        size = world.kafka.sizes[topic]
        for place in world.kafka.places(topic):
            self._excuse(place, world.kafka.logs[place].records, in_hand=False)
        world.kafka.delete(topic)
        world.groups["billing-RETRY"].forget(topic)
        world.later(max(fault.lasts, REVOKED), partial(self._made, topic, size))

    def _made(self, topic: str, size: int) -> None:
        self.world.kafka.create(topic, size)
        self.world.groups["billing-RETRY"].deal_soon(1_000)
        for number in range(1, 61):  # the real thread never sleeps
            self.world.later(number * 10_000, self._turn_all)

    def _turn_all(self) -> None:
        for host in self.world.hosts():
            host.turn_soon()

    def _some_log(self, fault: Fault) -> tuple[Partition, Log]:
        logs = self.world.kafka.logs
        readable = sorted(place for place in logs if not place.topic.endswith(("-DLQ", "-EVENTS")) and logs[place].end)
        place = readable[fault.whom * 7 % len(readable)] if readable else Partition("orders", 0)
        return place, logs[place]

    def _excuse(self, place: Partition, gone: Iterable[Stored], *, in_hand: bool = True) -> None:
        """What is gone was somebody's to save only if it was in hand, and stayed with who had it."""
        world = self.world
        group = "billing" if place.topic in world.mains else "billing-RETRY"
        held = (
            self._in_hand(place)
            if in_hand and not (MOVING | STOPPING) & {fault.kind for fault in world.plan.faults}
            else set()
        )
        for stored in gone:
            if not world.kafka.progress(group, place).covers(stored.offset) and stored.offset not in held:
                world.excused.add(world.origin(place, stored))

    def _in_hand(self, place: Partition) -> set[int]:
        return {offset for host in self.world.hosts() for offset in view(host.lane).in_hand(place)}
