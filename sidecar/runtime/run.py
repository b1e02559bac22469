"""`reconsume run`: all groups of a sidecar and its API on one event loop, started and stopped in order.

Order of a stop (contract 9.4): nothing new is sent, what is out is answered, progress is committed, the group is left,
the process exits. A second signal exits at once; even then nothing is lost. A restart in place (9.7) has the same order
and ends in a new process with the same pid (`restarts.py`).
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import uvloop

from reconsume.sidecar.background import background
from reconsume.sidecar.http.listeners import hand_over
from reconsume.sidecar.observability.logs import configure
from reconsume.sidecar.observability.thread_watch import log_ends
from reconsume.sidecar.process_memory import give_back_memory, keep_memory_private
from reconsume.sidecar.runtime.restarts import USED_UP, Restarts, become_new
from reconsume.sidecar.runtime.sidecar import _LOG, Sidecar, context_of
from reconsume.sidecar.runtime.stop_signals import StopSignals, block_stops, restore_blocked
from reconsume.sidecar.settings.checks import exposed, without_effect
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.modes import ignored_settings

COLLECT_EVERY = 60.0
"""Seconds between two collections of everything. One takes 2.5 ms where 50 000 objects can be part of a cycle (lists,
dictionaries, frames; records cannot): 0.005 % of the time."""


def run(groups: Sequence[Settings], speed: int = 1) -> int:
    """Run a sidecar of these groups until it is stopped; return the exit code. Raises what prevents its start.

    `speed`: what the waits of retries are divided by; more than 1 only under `dev up`.
    """
    blocked_before = block_stops()
    try:
        keep_memory_private()
        # There is no core dump, so what ends the process from C (an assertion of the client: signal 6, exit code 134)
        # would leave no trace: the stacks of all threads go to stderr. They name functions and lines, and no values.
        faulthandler.enable(2)
        log = groups[0].log  # the same in all groups, as every setting of the process
        configure(log.level, log.format)
        log_ends()
        for settings in groups:
            context_of(settings.group, is_one_of_several=len(groups) > 1).run(log_warnings, settings)
        give_back_memory()
        # Records are many and short-lived, and none of them is ever part of a reference cycle: collect less often. A
        # relay at full speed spends 10 % of its time on collections from 50 000 objects on, and 2 % from 200 000 on.
        gc.freeze()
        gc.set_threshold(200_000, 20, 100)
        return uvloop.run(_main(groups, speed))
    finally:  # only where a start has failed: a sidecar that has run ends its process itself
        restore_blocked(blocked_before)


def log_warnings(settings: Settings) -> None:
    """Log what is allowed in the settings of a group and has no effect, or is dangerous."""
    for sentence in (*ignored_settings(settings), *without_effect(settings)):
        _LOG.warning("%s", sentence, extra={"event": "setting-ignored"})
    for sentence in exposed(settings):
        _LOG.warning("%s", sentence, extra={"event": "token-exposed"})


async def _collect_regularly() -> NoReturn:
    """Free reference cycles whose makers do not: those of a library, and those that nobody has found yet.

    By the thresholds alone an idle sidecar would collect once in hours, and keep all that the cycles hold.
    """
    while True:
        await asyncio.sleep(COLLECT_EVERY)
        gc.collect()


async def _main(groups: Sequence[Settings], speed: int = 1) -> NoReturn:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = StopSignals(lambda: loop.call_soon_threadsafe(stop.set))
    signals.start()
    restarts = Restarts(os.environ)
    sidecar = Sidecar(groups, restarts, speed=speed)
    await sidecar.start()
    collecting = background(_collect_regularly(), "collector")
    while (code := await sidecar.watch(stop)) is None:
        if await sidecar.drain_for_restart() and not stop.is_set():
            await _restart(sidecar, restarts, signals)
    collecting.cancel()
    try:
        await sidecar.stop()
    except Exception:  # noqa: BLE001 - the process must end with its code, whatever is broken
        _LOG.exception("the stop failed; the process ends all the same", extra={"event": "fault"})
        code = code or 1
    leave(code)  # before the loop's own end: that waits for threads, which may wait for an unreachable Kafka


async def _restart(sidecar: Sidecar, restarts: Restarts, signals: StopSignals) -> NoReturn:
    """Become a new process, unless a signal has come before."""
    try:
        hand_over(await sidecar.close_for_restart(), os.environ)
        if signals.leave_signals():
            leave(0)
        restarts.note_restart(os.environ, sidecar.unclean_partitions())
        become_new()
    except Exception:  # noqa: BLE001 - it has left its group: only a new process can go on, whoever starts it
        _LOG.exception("the restart in place failed; the process ends", extra={"event": "fault"})
        leave(USED_UP)


def leave(code: int) -> NoReturn:
    """Exit without destroying clients: a producer that is stuck in a call would block the exit for ever."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
