"""The sidecar's process: its memory, the signals that end it, and its exit."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys
from typing import NoReturn

PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """Write no core dump, and let no other process of the same user read this one's memory: passwords are in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only Linux has it
    if prctl is not None:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


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
