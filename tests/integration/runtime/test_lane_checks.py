"""A sidecar that is told to checks its lanes once a second, and ends with the sentence of what does not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from reconsume.sidecar.runtime.lane_checks import CHECK_EVERY_S, SWITCH, check_lanes
from reconsume.sidecar.runtime.loop_faults import LoopFaults
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS

WITHIN = 10 * CHECK_EVERY_S


def lane_at_work() -> Rig:
    rig = Rig()
    rig.assign(ORDERS)
    rig.take_offsets(range(9))
    return rig


def lose_a_record(rig: Rig) -> None:
    rig.lane.ready.pick(next(iter(rig.lane.ready)))


def forget_the_pace(rig: Rig) -> None:
    """Nobody asks for the call that the pace waits for."""
    rig.gate.pace.probe_at_ms = -1


async def run(
    rig: Rig, environ: dict[str, str], ends: asyncio.Event, spoil: Callable[[Rig], None] = lose_a_record
) -> LoopFaults:
    """Check a lane with which something is wrong, until the loop has seen a fault or `ends` is set."""
    faults, loop = LoopFaults(), asyncio.get_running_loop()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        faults.handle(loop, context)
        ends.set()

    loop.set_exception_handler(handle)
    check_lanes([rig.lane], rig.gate, environ)
    spoil(rig)
    await asyncio.wait_for(ends.wait(), WITHIN)
    return faults


def test_a_record_that_is_nowhere_ends_the_process_with_a_sentence() -> None:
    async def story() -> LoopFaults:
        return await run(lane_at_work(), {SWITCH: "1"}, asyncio.Event())

    assert "BrokenInvariantError('each ready record has one place in its flow')" in asyncio.run(story()).fatal


def test_a_time_of_the_pace_that_nobody_is_woken_for_ends_the_process_too() -> None:
    async def story() -> LoopFaults:
        return await run(lane_at_work(), {SWITCH: "1"}, asyncio.Event(), forget_the_pace)

    assert "BrokenInvariantError('a lane is woken for the pace: -1')" in asyncio.run(story()).fatal


def test_a_lane_is_not_looked_at_unless_the_environment_says_so() -> None:
    async def story() -> LoopFaults:
        ends = asyncio.Event()
        asyncio.get_running_loop().call_later(2.5 * CHECK_EVERY_S, ends.set)
        return await run(lane_at_work(), {}, ends)

    assert asyncio.run(story()).fatal == ""
