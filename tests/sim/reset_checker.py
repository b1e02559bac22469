"""What must be true at the end of a story with resets, computed from the logs and the service's ledger alone.

Each cycle of a record is a story of its own: what must be true of a record without resets is true of each.
"""

from __future__ import annotations

from collections import defaultdict

from reconsume.sidecar.core.outcome import COMMITTED, NotSent
from reconsume.topics.events import State
from reconsume.topics.position_ranges import BY_RESET
from tests.sim import ladder_checker
from tests.sim.checker import (
    Found,
    a_second_delivery_has_a_reason,
    all_is_done,
    each_attempt_is_counted_once,
    nothing_is_early,
    nothing_waits_for_ever,
    the_record_is_as_it_was,
)
from tests.sim.ladder_checker import longest_line_ms
from tests.sim.order_checker import lines_of, one_at_a_time, who_is_first_is_done_first
from tests.sim.reset_model import Moved
from tests.sim.samples import WALL
from tests.sim.world import World

AN_HOUR = 3_600_000


def check_resets(world: World) -> None:
    """All of it; AssertionError names the first record that is wrong."""
    found = Found(world)
    for origin in world.sent.keys() - found.excused:
        moves = moves_of(world, origin)
        last = max((move.made.cycle for move in moves if move.made), default=0)
        only_cycles_of_ranges(found, origin, {0, *(move.made.cycle for move in moves if move.made)})
        nothing_of_an_older_cycle_is_delivered(found, origin, moves)
        for cycle in range(last + 1):
            own = of_cycle(found, origin, cycle)
            a_superseded_copy_ends_once(own, origin)
            each_attempt_is_counted_once(own, origin)
            a_second_delivery_has_a_reason(own, origin)
            nothing_is_early(own, origin)
            the_record_is_as_it_was(own, origin)
        if not is_skipped(world, origin):
            is_delivered_to_its_end(of_cycle(found, origin, last), origin)
    all_is_done(world)
    nothing_waits_for_ever(world, len(world.sent) * len(world.resetting.resets) * 60_000)


def check_ordered_resets(world: World) -> None:
    """The same of a group whose order survives long waits: in its last cycle each key is delivered in its order."""
    found = Found(world)
    for origin in world.sent.keys() - found.excused:
        moves = moves_of(world, origin)
        last = max((move.made.cycle for move in moves if move.made), default=0)
        only_cycles_of_ranges(found, origin, {0, *(move.made.cycle for move in moves if move.made)})
        nothing_of_an_older_cycle_is_delivered(found, origin, moves)
        for cycle in range(last + 1):
            own = of_cycle(found, origin, cycle)
            ladder_checker.each_attempt_is_counted_once(own, origin)
            a_second_delivery_has_a_reason(own, origin)
            the_record_is_as_it_was(own, origin)
        if not is_skipped(world, origin):
            is_delivered_to_its_end(of_cycle(found, origin, last), origin)
    for line in lines_of(found).values():
        one_at_a_time(found, line)
        left = [origin for origin in line if origin in world.sent and not is_skipped(world, origin)]
        who_is_first_is_done_first(in_last_cycles(found, left), left)
    all_is_done(world)
    waits_ms = longest_line_ms(found) + len(world.sent) * len(world.resetting.resets) * 60_000
    nothing_waits_for_ever(world, waits_ms)


def by_reset(world: World) -> int:
    """How many copies have ended by a reset."""
    return sum(event.reason == BY_RESET for events in Found(world).events.values() for event in events)


def moves_of(world: World, origin: str) -> list[Moved]:
    """The resets whose range has a record."""
    topic, number, offset = origin.split(":")
    return [
        move
        for move in world.resetting.moved
        if move.partition == (topic, int(number)) and move.made and move.made.start <= int(offset) < move.made.end
    ]


def is_skipped(world: World, origin: str) -> bool:
    """Whether a reset forwards has named a record as one that it skips."""
    topic, number, offset = origin.split(":")
    return any(
        start <= int(offset) < end
        for move in world.resetting.moved
        if move.partition == (topic, int(number))
        for start, end in move.skipped
    )


def of_cycle(found: Found, origin: str, cycle: int) -> Found:
    """What was found of a record in one of its cycles."""
    own = Found.__new__(Found)
    own.world, own.excused = found.world, found.excused
    own.copies, own.dead, own.events, own.deliveries = (defaultdict(list) for _ in range(4))
    own.copies[origin] = [one for one in found.copies[origin] if one.retry_state.cycle == cycle]
    own.dead[origin] = [one for one in found.dead[origin] if one.retry_state.cycle == cycle]
    own.events[origin] = [one for one in found.events[origin] if one.cycle == cycle]
    own.deliveries[origin] = [one for one in found.deliveries[origin] if one.record.cycle == cycle]
    return own


def in_last_cycles(found: Found, origins: list[str]) -> Found:
    """What was found of records in their last cycles."""
    last = of_cycle(found, "", 0)
    for origin in origins:
        cycle = max((move.made.cycle for move in moves_of(found.world, origin) if move.made), default=0)
        own = of_cycle(found, origin, cycle)
        for name in ("copies", "dead", "events", "deliveries"):
            getattr(last, name)[origin] = getattr(own, name)[origin]
    return last


def only_cycles_of_ranges(found: Found, origin: str, cycles: set[int]) -> None:
    """R1: no record is in a cycle that no range gives it."""
    seen = {one.record.cycle for one in found.deliveries[origin]}
    seen |= {one.retry_state.cycle for one in (*found.copies[origin], *found.dead[origin])}
    assert seen <= cycles, f"{origin} was in the cycles {seen}, and its ranges are {cycles}"


def nothing_of_an_older_cycle_is_delivered(found: Found, origin: str, moves: list[Moved]) -> None:
    """R2: from the transaction on that moves the position, nothing begins of an older cycle."""
    for move in moves:
        assert move.made is not None
        for delivery in found.deliveries[origin]:
            is_old = delivery.record.cycle < move.made.cycle and not isinstance(delivery.outcome, NotSent)
            is_late = is_old and delivery.at - WALL > move.at and delivery.tenure not in found.world.broken
            assert not is_late, f"{origin}: cycle {delivery.record.cycle} at {delivery.at - WALL}, moved at {move.at}"


def a_superseded_copy_ends_once(own: Found, origin: str) -> None:
    """R3: a cycle of a record ends once, be it by its service, in the DLQ, or by the reset."""
    ends = [event.state for event in own.events[origin] if event.state in (State.COMMIT, State.DLQ)]
    waits = own.copies[origin] or own.dead[origin]
    assert len(ends) == (1 if waits else 0), (origin, ends)
    by_reset = [event for event in own.events[origin] if event.reason == BY_RESET]
    assert all(event.state is State.COMMIT for event in by_reset), origin


def is_delivered_to_its_end(own: Found, origin: str) -> None:
    """R4: in its last cycle a record was taken by the service, or is in the DLQ."""
    taken = any(delivery.outcome is COMMITTED for delivery in own.deliveries[origin])
    assert taken or own.dead[origin], f"{origin} is lost in its last cycle"
    assert not any(event.reason == BY_RESET for event in own.events[origin]), f"{origin} ends by a reset in its last"
