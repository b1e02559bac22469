"""What must be true at the end of a story of a group whose order survives long waits: the promise's four sentences.

No two records of a key are out at once; none is delivered before an earlier one of its key is done; no attempt is lost
or counted twice; nothing waits for ever.
"""

from __future__ import annotations

from collections import Counter

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Rejected
from reconsume.topics.events import Event, State
from reconsume.topics.transitions import BY_OPERATOR
from tests.sim.checker import (
    Found,
    a_second_delivery_has_a_reason,
    all_is_done,
    nothing_waits_for_ever,
    quarantined,
    the_record_is_as_it_was,
)
from tests.sim.order_checker import lines_of, one_at_a_time, who_is_first_is_done_first
from tests.sim.world import World


def check_ladder(world: World) -> None:
    """All of it; AssertionError names the first record that is wrong."""
    found = Found(world)
    assert found.copies.keys() | found.dead.keys() | found.events.keys() <= world.sent.keys()
    for origin in world.sent:
        it_ends_once(found, origin)
        each_attempt_is_counted_once(found, origin)
        a_second_delivery_has_a_reason(found, origin)
        nothing_is_early(found, origin)
        the_record_is_as_it_was(found, origin)
        nothing_goes_to_a_level(found, origin)
    for line in lines_of(found).values():
        who_is_first_is_done_first(found, line)
        one_at_a_time(found, line)
    all_is_done(world)
    nothing_waits_for_ever(world, longest_line_ms(found))


def longest_line_ms(found: Found) -> int:
    """The sum of the waits of a line, of the line that has the longest: what follows waits behind each of them."""
    rung = max(found.world.everything.table)

    def waited_ms(origin: str) -> int:
        outcomes = [delivery.outcome for delivery in found.deliveries[origin]]
        return sum(one.delay or rung for one in outcomes if isinstance(one, Failed))

    return max((sum(map(waited_ms, line)) for line in lines_of(found).values()), default=0)


def check_order_alone(world: World, *, kept: bool = True) -> None:
    """What is left of the promise while some pods retry in place, and so count in memory: order, and an end.

    `kept`: whether all progress is there still.
    """
    found = Found(world)
    for origin in world.sent:
        assert taken(found, origin) or found.dead[origin], f"{origin} is lost"
        the_record_is_as_it_was(found, origin)
    for line in lines_of(found).values():
        who_is_first_is_done_first(found, line)
        one_at_a_time(found, line)
    if kept:
        all_is_done(world)


def check_what_is_left(world: World) -> None:
    """What waited in a queue was lost with its log: nothing else is, order holds for the rest, and no key stands."""
    found = Found(world)
    ended = {origin for origin in world.sent if taken(found, origin) or found.dead[origin]}
    assert world.sent.keys() - ended <= world.excused, "lost, and not with its queue"
    for origin in world.sent:
        the_record_is_as_it_was(found, origin)
    for line in lines_of(found).values():
        left = [origin for origin in line if origin in ended and not lost_while_out(found, origin)]
        who_is_first_is_done_first(found, left)
        one_at_a_time(found, left)
    all_is_done(world)
    nothing_waits_for_ever(world, longest_line_ms(found))


def lost_while_out(found: Found, origin: str) -> bool:
    """Whether a record was with the service when its copy was lost and its owner ended: nobody waits for its answer."""
    tenures = {delivery.tenure for delivery in found.deliveries[origin] if delivery.outcome is COMMITTED}
    return origin in found.world.excused and tenures <= found.world.broken


def it_ends_once(found: Found, origin: str) -> None:
    """It was taken or is dead; an event says so, once, if it ever failed."""
    assert taken(found, origin) or found.dead[origin], f"{origin} is lost"
    told = bool(found.dead[origin]) or any(
        copy.retry_state.times or copy.retry_state.parked for copy in found.copies[origin]
    )
    ends = [event for event in found.events[origin] if event.state in (State.COMMIT, State.DLQ)]
    assert len(ends) == (1 if told or any(map(is_by_hand, ends)) else 0), (origin, ends)


def taken(found: Found, origin: str) -> bool:
    """Whether the service took a record, or a person called it done."""
    done = any(is_by_hand(event) for event in found.events[origin] if event.state is State.COMMIT)
    return done or any(delivery.outcome is COMMITTED for delivery in found.deliveries[origin])


def is_by_hand(event: Event) -> bool:
    """Whether an event tells of a person's decision, or waits for one: it counts no attempt."""
    return event.parked is True or event.reason == BY_OPERATOR


def each_attempt_is_counted_once(found: Found, origin: str) -> None:
    """Counts 1..k without gap or repeat, each with one due time, after as many failures; at most one dead letter."""
    events = [event for event in found.events[origin] if event.state is State.WAITING_RETRY]
    retried = Counter(event.times for event in events if not is_by_hand(event))
    k = len(retried)
    assert retried == Counter(range(1, k + 1)), (origin, retried)
    assert k <= found.world.plan.retries
    copies = [copy.retry_state for copy in found.copies[origin]]
    dues = {(life.times, life.due_at) for life in copies if life.times and not life.parked and not life.settled}
    assert sorted(times for times, _ in dues) == list(range(1, k + 1)), (origin, dues)
    assert len(found.dead[origin]) <= 1, f"{origin} has died twice"
    failed = {d.record.times for d in found.deliveries[origin] if isinstance(d.outcome, Failed | Rejected)}
    # One that was parked by a lower limit than the present one may have been tried on.
    parked = any(life.parked and life.times == k for life in copies)
    last = parked or bool(found.dead[origin])
    if quarantined(found, origin) or any(
        copy.retry_state.reason.startswith(BY_OPERATOR) for copy in found.dead[origin]
    ):
        last = parked
    assert set(range(k + last)) <= failed, f"{origin}: what was no attempt was counted"
    for copy in found.dead[origin]:
        assert copy.retry_state.times == k
        assert (copy.retry_state.order, copy.retry_state.behind) == (None, False)


def nothing_is_early(found: Found, origin: str) -> None:
    """No retry goes out before it is due by the sidecar's own clock."""
    for _, wall, record, *_ in found.deliveries[origin]:
        if record.retry_state is not None:
            assert wall >= record.retry_state.due_at - found.world.stepped, origin


def nothing_goes_to_a_level(found: Found, origin: str) -> None:
    """Each copy is in the queue, in the partition of its own number, with one place."""
    for copy in found.copies[origin]:
        assert copy.topic == "billing-ORDERED-orders", (origin, copy.topic)
    assert len({copy.retry_state.order for copy in found.copies[origin]}) <= 1, origin


def waits(world: World) -> Counter[str]:
    """How many copies waited, behind others or for their time: the stories mean nothing without both."""
    lives = [copy.retry_state for copies in Found(world).copies.values() for copy in copies]
    return Counter("behind" if life.behind else "failed" for life in lives)
