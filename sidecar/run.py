"""`reconsume run`: builds the two lanes from the settings, starts them, and stops them in order.

Order of a stop (contract §7, http-delivery): nothing new is sent, what is out is answered, progress is committed, the
group is left, the process exits. A second signal exits at once; nothing is lost by that either.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys

import uvloop

from sidecar.core.gate import Gate
from sidecar.core.pace import Pace
from sidecar.core.policy import Policy
from sidecar.edges.clock import now
from sidecar.edges.engine import Engine, Plan
from sidecar.edges.push.pool import Push
from sidecar.edges.push.settings import PushSettings
from sidecar.edges.push.target import parse_target
from sidecar.errors import ConfigError
from sidecar.settings.instance import instance_name
from sidecar.settings.model import Settings

LOOK_EVERY = 1.0
"""Seconds between looks at whether every thread is alive."""

_LOG = logging.getLogger("reconsume.run")


def run(settings: Settings) -> int:
    """Run the sidecar until it is told to stop; the exit code. Never returns normally: see `_exit`."""
    # Records are many and short-lived, and none of them is ever part of a cycle: collect less often.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    code = uvloop.run(_main(settings))
    _exit(code)
    return code


def _exit(code: int) -> None:
    """Leave without destroying clients: a producer that is stuck in a call would block the exit for ever."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _main(settings: Settings) -> int:
    sidecar = Sidecar(settings)
    stop = asyncio.Event()
    _on_signals(stop)
    await sidecar.start()
    code = await sidecar.watch(stop)
    await sidecar.stop()
    return code


def _on_signals(stop: asyncio.Event) -> None:
    def asked() -> None:
        if stop.is_set():
            _exit(1)  # asked twice
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked)


def policy_of(settings: Settings, instance: str) -> Policy:
    """The retry policy that the settings describe."""
    return Policy(
        names=settings.names,
        topics=settings.topic_names,
        ladder=settings.ladder,
        table=settings.retry.levels,
        delays=settings.delays,
        max_reconsume_times=settings.retry.max_reconsume_times,
        instance=instance,
    )


def plans_of(settings: Settings) -> tuple[Plan, Plan]:
    """The main lane and the retry lane."""
    names, lock = settings.names, settings.lock_timeout / 1000
    waits = {names.level(delay, topic): delay for delay in settings.delays for topic in settings.topic_names}
    waits[names.ready] = 0
    return (
        Plan("main", settings.group, settings.topic_names, {}, settings.start, lock),
        # A level's record without a committed offset is a waiting retry: it must never be passed over.
        Plan("retry", names.retry_group, tuple(waits), waits, "earliest", lock),
    )


class Sidecar:
    """Both lanes, the push client and the API, on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pace = Pace(settings.deliver.concurrency)
        self.gate = Gate(self._pace)
        self.push = push_of(settings)
        policy = policy_of(settings, instance_name(settings, os.environ))
        self.engines = [
            Engine(
                plan,
                policy,
                settings.kafka,
                self.gate,
                self.push,
                lambda label, seconds: None,
                settings.deliver.max_held,
            )
            for plan in plans_of(settings)
        ]
        self._draining: asyncio.Task[int] | None = None

    async def start(self) -> None:
        """Start both lanes side by side; returns before Kafka answers."""
        self._starting = [asyncio.ensure_future(engine.start()) for engine in self.engines]

    async def watch(self, stop: asyncio.Event) -> int:
        """Wait for a stop; 1 when a thread of ours has died instead."""
        while not stop.is_set():
            if problems := self.problems():
                _LOG.error("giving up: %s", "; ".join(problems))
                return 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_EVERY)
        return 0

    def problems(self) -> list[str]:
        """Own threads that do not make progress."""
        return [problem for engine in self.engines for problem in engine.problems()]

    def started(self) -> bool:
        """Whether both lanes consume."""
        return all(engine.started for engine in self.engines)

    async def drain(self, timeout: float) -> int:
        """Stop fetching, finish what is out, commit, leave; how many deliveries were left. Safe to call again."""
        if self._draining is None:
            self.gate.closed = True
            self._draining = asyncio.ensure_future(self._drain(timeout))
        return await asyncio.shield(self._draining)

    async def _drain(self, timeout: float) -> int:
        for start in self._starting:
            start.cancel()
        await asyncio.gather(*(engine.drain(timeout) for engine in self.engines))
        return self.gate.in_flight

    async def stop(self) -> None:
        """Drain, then close what is left."""
        left = await self.drain(self._settings.drain_timeout / 1000)
        _LOG.info("stopped, %d deliveries left to the next owner", left)
        self.push.close()


def push_of(settings: Settings) -> Push:
    """The push client that the settings describe."""
    deliver = settings.deliver
    if deliver.url is None:
        raise ConfigError(["deliver.url is missing"])
    push = PushSettings(
        group=settings.group,
        timeout_ms=deliver.timeout,
        concurrency=deliver.concurrency,
        forward_headers=deliver.forward_headers,
        envelope=deliver.envelope,
        dead_letter_statuses=frozenset(deliver.dead_letter_statuses),
    )
    return Push(parse_target(deliver.url, deliver.allow_remote), push, now)
