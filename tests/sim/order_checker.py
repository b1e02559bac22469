"""What must be true at the end of an ordered story: each line's records went one by one, and nothing else changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Rejected, Throttled
from reconsume.sidecar.core.policy import LONGEST_IN_PLACE, SHORTEST_IN_PLACE
from reconsume.sidecar.core.record import Partition
from reconsume.topics.events import State
from tests.sim.checker import Found, all_is_done, nothing_is_lost, quarantined, the_record_is_as_it_was
from tests.sim.samples import WALL
from tests.sim.service_model import Delivery
from tests.sim.world import INTERVAL, World

Line = tuple[Partition, bytes | None]


def check_ordered(world: World) -> None:
    """All of it; AssertionError names the first record that is wrong."""
    found = Found(world)
    for origin in world.sent:
        nothing_is_lost(found, origin)
        nothing_is_written_before_the_dead_letter(found, origin)
        the_record_is_as_it_was(found, origin)
    for line in lines_of(found).values():
        who_is_first_is_done_first(found, line)
        one_at_a_time(found, line)
    for tenure, deliveries in tenures_of(found):
        tries_are_counted_and_spaced(found, tenure, deliveries)
    all_is_done(world)


def lines_of(found: Found) -> dict[Line, list[str]]:
    """The ids of each line's records, in the order of their offsets; records that have no order are in none."""
    by_key = found.world.plan.order == "key"
    lines: dict[Line, list[str]] = defaultdict(list)
    for source, log in found.world.kafka.logs.items():
        if source.topic == "orders":
            for stored in log.records:
                if not by_key or stored.key is not None:
                    lines[source, stored.key if by_key else None].append(f"orders:{source.number}:{stored.offset}")
    return lines


def nothing_is_written_before_the_dead_letter(found: Found, origin: str) -> None:
    """No copy on any level, no event but the one of the DLQ, and its count is what the policy says."""
    assert not found.copies[origin], f"{origin} has left its place"
    assert [event.state for event in found.events[origin]] == [State.DLQ] * len(found.dead[origin])
    assert len(found.dead[origin]) <= 1, f"{origin} has died twice"
    for copy in [] if quarantined(found, origin) else found.dead[origin]:
        failed = [d for d in found.deliveries[origin] if isinstance(d.outcome, Failed | Rejected)]
        assert copy.retry_state.times in {d.record.times for d in failed}
        asked = any(isinstance(d.outcome, Rejected) or d.outcome.level == -1 for d in failed)  # type: ignore[union-attr]
        assert asked or copy.retry_state.times == found.world.plan.tries, (origin, copy.retry_state)
        assert copy.retry_state.first_failed_at <= copy.retry_state.due_at


def done_at(found: Found, origin: str) -> int:
    """When a record was done: taken by the service, called done by a person, or dead."""
    taken = [d.until for d in found.deliveries[origin] if d.outcome is COMMITTED]
    dead = [copy.stored.appended for copy in found.dead[origin]]
    called_done = [event.at for event in found.events[origin] if event.state is State.COMMIT]
    return min(taken + dead + called_done)


def who_is_first_is_done_first(found: Found, line: list[str]) -> None:
    """No record is delivered, for the first time, before each one in front of it is done, whoever holds the line."""
    done = 0
    for origin in line:
        begun = min((d.at for d in found.deliveries[origin]), default=done)
        assert begun >= done, f"{origin} overtook"
        done = max(done, done_at(found, origin))


def one_at_a_time(found: Found, line: list[str]) -> None:
    """Two deliveries of a line overlap only where one of the tenures ended without order: it does not know that yet."""
    deliveries = sorted((d for origin in line for d in found.deliveries[origin]), key=lambda d: d.at)
    for before, after in pairwise(d for d in deliveries if d.tenure not in found.world.broken):
        assert before.until <= after.at, f"{before.record.id} and {after.record.id} were out together"


def tenures_of(found: Found) -> Iterator[tuple[object, list[Delivery]]]:
    """The deliveries of each record under each assignment, in their order."""
    groups: dict[tuple[str, object], list[Delivery]] = defaultdict(list)
    for delivery in found.world.service.ledger:
        groups[delivery.record.id, delivery.tenure].append(delivery)
    yield from groups.items()


def tries_are_counted_and_spaced(found: Found, where: object, deliveries: list[Delivery]) -> None:
    """Under one assignment the times are 0, 1, … by the failures before, each after the wait that it was due.

    They are counted in memory: a partition that stops because Kafka refuses a copy lets go of its records, and they
    come anew.
    """
    times, earliest = 0, 0
    for delivery in deliveries:
        if found.world.refused and delivery.record.times == 0:
            times, earliest = 0, 0
        assert delivery.record.times == times, (where, delivery)
        assert delivery.at >= earliest, (where, delivery)
        match delivery.outcome:
            case Failed(delay=delay, level=level):
                wait = found.world.policies[0].delay_of(level) if delay is None else delay
                wait = INTERVAL if wait is None else min(max(wait, SHORTEST_IN_PLACE), LONGEST_IN_PLACE)
                times, earliest = times + 1, delivery.until + wait
            case Throttled(after_ms=after):
                earliest = delivery.until + after


def tries(world: World) -> Counter[int]:
    """How many attempts had each count: the stories mean nothing if nobody ever fails twice."""
    attempts = (d for d in world.service.ledger if not isinstance(d.outcome, Throttled | NotSent))
    return Counter(d.record.times for d in attempts)


def overtakers(world: World) -> int:
    """How many records were delivered before one in front of them that was of another line was done."""
    done: dict[str, int] = {d.record.id: d.until - WALL for d in world.service.ledger if d.outcome is COMMITTED}
    firsts = {d.record.id: d.at - WALL for d in reversed(world.service.ledger)}
    places = sorted((int(origin.split(":")[1]), int(origin.split(":")[2]), origin) for origin in done)
    return sum(firsts[two[2]] < done[one[2]] for one, two in pairwise(places) if one[0] == two[0])
