"""What must be true at the end of every story, computed from the logs and the service's ledger alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from sidecar.core.outcome import COMMITTED, Failed, NotSent, Rejected, Throttled
from sidecar.core.record import Partition
from tests.sim.kafka_model import Stored
from tests.sim.samples import read, waits
from tests.sim.service_model import Delivery
from tests.sim.world import World
from topics.events import Event, State, decode_event
from topics.headers import DEAD_LETTER, OURS, Headers, Life


class Written(NamedTuple):
    """A copy in a level topic, the ready topic or the DLQ."""

    topic: str
    stored: Stored
    life: Life


class Found:
    """The end of a story, sorted by the ids of its records."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.copies: dict[str, list[Written]] = defaultdict(list)
        self.dead: dict[str, list[Written]] = defaultdict(list)
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        for source, log in world.kafka.logs.items():
            for stored in log.records:
                self._sort(source, stored)
        for delivery in world.service.ledger:
            self.deliveries[delivery.record.id].append(delivery)

    def _sort(self, source: Partition, stored: Stored) -> None:
        if source.topic == "billing-RETRY-EVENTS":
            event = decode_event(stored.value)
            assert isinstance(event, Event)
            self.events[event.id].append(event)
        elif source.topic != "orders":
            life, fault = read(stored.headers, self.world.policy, stored.appended + 10**12)
            assert life is not None, fault
            kept = self.dead if source.topic == "billing-DLQ" else self.copies
            kept[life.id].append(Written(source.topic, stored, life))


def check(world: World) -> None:
    """All of it; AssertionError names the first record that is wrong."""
    found = Found(world)
    assert found.copies.keys() | found.dead.keys() | found.events.keys() <= world.sent.keys()
    for origin in world.sent:
        nothing_is_lost(found, origin)
        each_attempt_is_counted_once(found, origin)
        a_second_delivery_has_a_reason(found, origin)
        nothing_is_early(found, origin)
        the_record_is_as_it_was(found, origin)
    all_is_done(world)


def nothing_is_lost(found: Found, origin: str) -> None:
    """I1: in the end a record was taken by the service, or is in the DLQ; and only one of them, unless repeated."""
    taken = any(delivery.outcome is COMMITTED for delivery in found.deliveries[origin])
    assert taken or found.dead[origin], f"{origin} is lost"
    ends = [event.state for event in found.events[origin] if event.state in (State.COMMIT, State.DLQ)]
    assert len(ends) == (1 if found.copies[origin] or found.dead[origin] else 0), (origin, ends)
    if not repeats(found, origin) and not quarantined(found, origin):
        assert taken != bool(found.dead[origin]), origin


def each_attempt_is_counted_once(found: Found, origin: str) -> None:
    """I2: counts 1..k without gap or repeat, hops repeat a count with the same due time, at most one dead letter."""
    retried = Counter(event.times for event in found.events[origin] if event.state is State.WAITING_RETRY)
    k = len(retried)
    assert retried == Counter(range(1, k + 1)), (origin, retried)
    assert k <= found.world.plan.retries
    dues = {(copy.life.times, copy.life.due_at) for copy in found.copies[origin]}
    assert sorted(times for times, _ in dues) == list(range(1, k + 1)), (origin, dues)
    assert len(found.dead[origin]) <= 1, f"{origin} has died twice"
    failed = {d.record.times for d in found.deliveries[origin] if isinstance(d.outcome, Failed | Rejected)}
    counted = set(range(k + 1 if found.dead[origin] and not quarantined(found, origin) else k))
    assert counted <= failed, f"{origin}: what was no attempt was counted"
    for copy in found.dead[origin]:
        assert copy.life.times == k
        count = dict(copy.stored.headers)["__dlq.errors.delivery.count"]
        assert count == b"%d" % (k + 1)


def quarantined(found: Found, origin: str) -> bool:
    """Whether it is in the DLQ as the one that kills: then its last delivery ended with the death of a process."""
    if not any(copy.life.reason.startswith("crashed-service") for copy in found.dead[origin]):
        return False
    if not found.deliveries[origin]:
        return True  # a process died for another reason just after it had marked the record
    last = max(d.record.times for d in found.deliveries[origin])
    assert any(d.tenure in found.world.broken for d in found.deliveries[origin] if d.record.times == last), origin
    return True


def repeats(found: Found, origin: str) -> list[Delivery]:
    """Deliveries of an attempt that had been delivered before; what was throttled was no attempt."""
    seen: dict[int, Delivery] = {}
    again = []
    for delivery in found.deliveries[origin]:
        if isinstance(delivery.outcome, Throttled | NotSent):
            continue
        if delivery.record.times in seen:
            again.append(seen[delivery.record.times])
        seen[delivery.record.times] = delivery
    return again


def a_second_delivery_has_a_reason(found: Found, origin: str) -> None:
    """I3: only a crash, a lost partition or a lock that ran out explains one; always from the same place."""
    for earlier in repeats(found, origin):
        assert earlier.tenure in found.world.broken, f"{origin}: {earlier.record.times} was delivered again"
    attempts = [d.record for d in found.deliveries[origin] if not isinstance(d.outcome, Throttled | NotSent)]
    places = {(record.times, record.source, record.offset) for record in attempts}
    if not found.world.stepped:  # by another clock a record that was throttled may have to hop first
        assert len(places) == len({times for times, _, _ in places}), (origin, places)


def nothing_is_early(found: Found, origin: str) -> None:
    """I4: not before the level is over by the broker's clock, nor before it is due by the sidecar's own."""
    levels = waits(found.world.policy)
    for at, wall, record, *_ in found.deliveries[origin]:
        if record.life is not None:
            assert at >= record.timestamp + levels[record.source.topic] - found.world.stepped, origin
            assert wall >= record.life.due_at - found.world.stepped, origin


def own(headers: Headers) -> Headers:
    return [header for header in headers if header[0] not in OURS and header[0] not in DEAD_LETTER]


def the_record_is_as_it_was(found: Found, origin: str) -> None:
    """I5: key, value and own headers, wherever it is."""
    sent = found.world.sent[origin]
    for _, stored, _ in found.copies[origin] + found.dead[origin]:
        assert (stored.key, stored.value, own(stored.headers)) == sent, origin
        names = [name for name, _ in stored.headers if name in OURS]
        assert len(names) == len(set(names)), origin
    for delivery in found.deliveries[origin]:
        record = delivery.record
        assert (record.key, record.value, own(record.headers or [])) == sent, origin


def all_is_done(world: World) -> None:
    """I6 and I8: the groups' progress covers every record, and no lane holds anything any more."""
    for group, places in world.places.items():
        for place in places:
            progress = world.kafka.progress(group, place)
            left = [stored.offset for stored in world.kafka.logs[place].records if not progress.covers(stored.offset)]
            assert not left, f"{group} has not done {place} {left}"
    for process in world.processes:
        assert process.gate.in_flight == 0
        for host in process.hosts.values():
            assert host.lane.tenure.load == 0
            assert not host.lane.ready
            assert not host.lane.outbox.held
