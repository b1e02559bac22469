"""What must be true at the end of every story, computed from the logs and the service's ledger alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Rejected, Throttled
from reconsume.sidecar.core.record import Partition
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.other_group_headers import is_original
from reconsume.topics.render_headers import DROPPED
from reconsume.topics.retry_headers import OURS, Headers, RetryState
from tests.sim.kafka_model import Stored
from tests.sim.lane_view import view
from tests.sim.samples import WALL, read, waits
from tests.sim.service_model import Delivery
from tests.sim.world import World

QUEUES = ("billing-ORDERED-orders",)


class Written(NamedTuple):
    """A copy in a level topic, the ready topic or the DLQ."""

    topic: str
    stored: Stored
    retry_state: RetryState


class Found:
    """The end of a story, sorted by the ids of its records."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.copies: dict[str, list[Written]] = defaultdict(list)
        self.dead: dict[str, list[Written]] = defaultdict(list)
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        self.excused = set(world.excused) | {origin for origin in world.sent if unread(world, origin)}
        for source, log in [*world.kafka.logs.items(), *world.kafka.deleted]:
            for stored in log.everything:
                self._sort(source, stored)
                if any(place == source and low <= stored.offset < high for place, low, high in world.gaps):
                    self.excused.add(world.origin(source, stored))
        for delivery in world.service.ledger:
            self.deliveries[delivery.record.id].append(delivery)

    def _sort(self, source: Partition, stored: Stored) -> None:
        if source.topic == "billing-RETRY-EVENTS":
            event = decode_event(stored.value)
            assert isinstance(event, Event)
            self.events[event.id].append(event)
        elif source.topic not in (*self.world.mains, self.world.everything.names.policy):
            life, fault = read(stored.headers, self.world.everything, stored.appended + 10**12)
            assert life is not None, fault
            kept = self.dead if source.topic == "billing-DLQ" else self.copies
            kept[life.id].append(Written(source.topic, stored, life))


def unread(world: World, origin: str) -> bool:
    """Whether it lies on a main topic that was removed before it was done: nobody reads it there any more."""
    topic, number, offset = origin.split(":")
    progress = world.kafka.progress("billing", Partition(topic, int(number)))
    return topic in world.removed and not progress.covers(int(offset))


def check(world: World) -> None:
    """All of it; AssertionError names the first record that is wrong."""
    found = Found(world)
    assert found.copies.keys() | found.dead.keys() | found.events.keys() <= world.sent.keys()
    for origin in world.sent.keys() - found.excused:
        nothing_is_lost(found, origin)
        each_attempt_is_counted_once(found, origin)
        a_second_delivery_has_a_reason(found, origin)
        nothing_is_early(found, origin)
        the_record_is_as_it_was(found, origin)
    all_is_done(world)
    nothing_waits_for_ever(world)


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
    dues = {(copy.retry_state.times, copy.retry_state.due_at) for copy in found.copies[origin]}
    assert sorted(times for times, _ in dues) == list(range(1, k + 1)), (origin, dues)
    assert len(found.dead[origin]) <= 1, f"{origin} has died twice"
    failed = {d.record.times for d in found.deliveries[origin] if isinstance(d.outcome, Failed | Rejected)}
    counted = set(range(k + 1 if found.dead[origin] and not quarantined(found, origin) else k))
    assert counted <= failed, f"{origin}: what was no attempt was counted"
    for copy in found.dead[origin]:
        assert copy.retry_state.times == k
        count = dict(copy.stored.headers)["__dlq.errors.delivery.count"]
        deliveries = k if copy.retry_state.reason.startswith("unknown-topic") else k + 1
        assert count == b"%d" % deliveries, origin


def quarantined(found: Found, origin: str) -> bool:
    """Whether it is in the DLQ without a last delivery that says so: nobody consumes its topic any more, or it is the
    one that kills, and then its last delivery ended with the death of a process."""
    if any(copy.retry_state.reason.startswith("unknown-topic") for copy in found.dead[origin]):
        return True
    if not any(copy.retry_state.reason.startswith("crashed-service") for copy in found.dead[origin]):
        return False
    last = found.dead[origin][0].retry_state.times
    ends = {delivery.tenure for delivery in found.deliveries[origin] if delivery.record.times == last}
    # Without one, a process died for another reason just after it had marked the record. Where an answer came too late
    # for its tenure, a later owner may have died so.
    sources = {source for _, _, source, _ in ends}
    assert not ends or any(place in sources for _, _, place, _ in found.world.broken), origin
    return True


def repeats(found: Found, origin: str) -> list[tuple[Delivery, Delivery]]:
    """Attempts that had been delivered before, with the delivery before; what was throttled was no attempt, and what a
    person has tried is another one."""
    seen: dict[tuple[int, str], Delivery] = {}
    again = []
    for delivery in found.deliveries[origin]:
        if isinstance(delivery.outcome, Throttled | NotSent):
            continue
        if (which := attempt_of(delivery)) in seen:
            again.append((seen[which], delivery))
        seen[which] = delivery
    return again


def attempt_of(delivery: Delivery) -> tuple[int, str]:
    """Which attempt at its record a delivery is: its retries, and what a person has decided last."""
    life = delivery.record.retry_state
    return delivery.record.times, "" if life is None else life.settled


def a_second_delivery_has_a_reason(found: Found, origin: str) -> None:
    """I3: only a crash, a lost partition or a lock that ran out explains one; always from the same place."""
    for pair in repeats(found, origin):
        broken = {delivery.tenure for delivery in pair} & found.world.broken  # the second's: it did not know that yet
        assert broken, f"{origin}: {pair[0].record.times} was delivered again"
    deliveries = [d for d in found.deliveries[origin] if not isinstance(d.outcome, Throttled | NotSent)]
    # One that does not know yet that it was put out may deliver a copy that has hopped on long ago.
    attempts = [d for d in deliveries if d.tenure not in found.world.broken]
    places = {(attempt_of(d), d.record.source, d.record.offset) for d in attempts}
    # By another clock a record that was throttled may have to hop first.
    if not found.world.stepped:
        assert len(places) == len({times for times, _, _ in places}), (origin, places)


def nothing_is_early(found: Found, origin: str) -> None:
    """I4: not before the level is over by the broker's clock, nor before it is due by the sidecar's own."""
    levels = waits(found.world.everything)
    for at, wall, record, *_ in found.deliveries[origin]:
        if record.retry_state is not None:
            assert at >= record.timestamp + levels[record.source.topic] - found.world.stepped, origin
            assert wall >= record.retry_state.due_at - found.world.stepped, origin


def own(headers: Headers) -> Headers:
    return [header for header in headers if header[0] not in DROPPED and not is_original(header[0])]


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
    for place, log in world.kafka.logs.items():
        if place.topic.endswith(("-DLQ", "-EVENTS", "-POLICY")) or place.topic in world.removed:
            continue
        group = "billing" if place.topic in (*world.mains, *QUEUES) else "billing-RETRY"
        progress = world.kafka.progress(group, place)
        offsets = [
            stored.offset
            for stored in log.records
            if f"{place.topic}:{place.number}:{stored.offset}" not in world.excused
        ]
        left = [offset for offset in offsets if not progress.covers(offset)]
        assert not left, f"{group} has not done {place} {left}"
    for process in world.processes:
        assert process.gate.in_flight == 0
        for host in process.hosts.values():
            assert view(host.lane).is_empty, f"{process.name} still has records of {host.group}"


LONGEST_ASKED = 61_234
"""ms that the service asks for at most."""
ROUND = 20_000
"""ms from one retry to the next beyond its wait, at most: hand-overs, commits, a lock, a refused entry's backoff."""
ATTEMPT = 6_000
"""ms that one attempt takes at most, with the pause before it where the service answers with failures alone."""
THROTTLE = 8_000
SUSPICION = 60_000
UNKNOWN = 3_600_000
"""ms that a record of a topic that nobody consumes any more is kept waiting."""


def nothing_waits_for_ever(world: World, in_line_ms: int = 0) -> None:
    """Once faults end and nothing new comes, all is delivered or dead-lettered within what the plan allows for.

    `in_line_ms`: what records that go one after another have waited for together.
    """
    plan = world.plan
    calm = max([world.faults.ended, last_sent(world), *(fault.at + fault.lasts for fault in plan.faults)])
    longest = max(LONGEST_ASKED, *world.everything.table) + world.apart
    tries = plan.retries + 1 + (plan.tries or 0)
    work = len(world.sent) * tries * ATTEMPT + world.throttled * THROTTLE + sum(world.deaths.values()) * SUSPICION
    bound = calm + max(tries * longest, in_line_ms) + tries * ROUND + work + bool(world.removed) * UNKNOWN
    at = rested(world)
    assert at <= bound, f"the last record was done after {at} ms, which may take {bound}"


def last_sent(world: World) -> int:
    """When the last record came."""
    logs = [log for place, log in world.kafka.logs.items() if place.topic in world.mains and log.everything]
    return max((log.everything[-1].appended for log in logs), default=WALL) - WALL - world.plan.broker_skew


def rested(world: World) -> int:
    """When the last delivery had its answer, and the last copy was written."""
    answered = max((delivery.until - WALL for delivery in world.service.ledger), default=0)
    written = (log.everything[-1].appended for log in world.kafka.logs.values() if log.everything)
    return max(answered, max(written, default=0) - WALL - world.plan.broker_skew)
