"""Check the lanes of a running sidecar once a second: what holds between any two calls must hold in a real one too.

For tests and soaks alone. A check reads every record in memory, so it is never on unless the environment asks for it.
What does not hold is an exception on the event loop, and the process ends with its sentence (`loop_faults.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane import Lane
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.record import NEVER

SWITCH = "SIDECAR_CHECK_LANES"
"""The variable that turns the checks on. It has not the prefix of settings: it is none."""
CHECK_EVERY_S = 1.0


def check_lanes(lanes: Sequence[Lane], dispatcher: Dispatcher, environ: Mapping[str, str]) -> None:
    """Check lanes once a second on the running event loop, for as long as it runs, if the environment asks for it.

    `dispatcher`: the one that they share.
    """
    if environ.get(SWITCH) == "1":
        loop = asyncio.get_running_loop()
        loop.call_later(CHECK_EVERY_S, _check, loop, lanes, dispatcher)


def _check(loop: asyncio.AbstractEventLoop, lanes: Sequence[Lane], dispatcher: Dispatcher) -> None:
    for lane in lanes:
        lane.check()
    # Any of them may have asked for it: the pace is that of all.
    due_ms = NEVER if dispatcher.doubts else dispatcher.pace.probe_at_ms
    is_woken = due_ms == NEVER or any(lane.wakes_by(due_ms) for lane in lanes)
    ensure(is_woken, f"a lane is woken for the pace: {due_ms}")
    loop.call_later(CHECK_EVERY_S, _check, loop, lanes, dispatcher)
