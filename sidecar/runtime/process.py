"""The sidecar's process: the signals that end it, and its exit."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """Exit without destroying clients: a producer that is stuck in a call would block the exit for ever."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def on_signals(stop: asyncio.Event) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; exit at the second."""

    def asked() -> None:
        if stop.is_set():
            leave(1)  # the second signal
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked)
