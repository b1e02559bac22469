"""A sidecar with a fault: at SIGUSR1 a callback of its loop raises, at SIGHUP its retry consumer's thread ends.

Run as `python -m tests.flow.faults.breaking_sidecar run -c FILE`, as the sidecar itself is.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from pathlib import Path

import uvloop

from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread
from reconsume.sidecar.observability.logs import configure
from reconsume.sidecar.observability.thread_watch import log_ends
from reconsume.sidecar.runtime.run import _main
from reconsume.sidecar.runtime.stop_signals import block_stops
from reconsume.sidecar.settings.load import load


def break_callback() -> None:
    """What a fault in a lane looks like to the loop."""
    raise RuntimeError("a fault that was put here")


def end_consumer() -> None:
    """End the thread of the retry lane's consumer, by what a command of it raises."""

    def command() -> None:
        raise SystemExit

    for thread in threading.enumerate():
        if isinstance(thread, ConsumerThread) and thread.name.endswith("-RETRY"):
            thread._demands.commands.put(command)


async def run(file: str) -> None:
    """Run the sidecar with its faults."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, break_callback)
    loop.add_signal_handler(signal.SIGHUP, end_consumer)
    await _main([load(Path(file))])


if __name__ == "__main__":
    block_stops()
    configure("info", "text")
    log_ends()
    uvloop.run(run(sys.argv[-1]))
