"""The sidecar's process: the signals that end it, and how it is left."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys
from typing import NoReturn

M_MMAP_THRESHOLD = -3
LARGE = 128 * 1024
"""Bytes from which on memory goes back to the system once it is free."""


def give_back_memory() -> None:
    """Have large pieces of memory given back when they are free; for a process that now and then reads large records.

    glibc begins with this, and raises the limit to up to 32 MiB as it goes: then what was read stays, a piece in the
    arena of each thread that has read. Other C libraries have no such habit.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)


PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """Leave no core dump, and let no other process of the same user read this one's memory: passwords are in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
    if prctl is not None:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def leave(code: int) -> NoReturn:
    """Leave without destroying clients: a producer that is stuck in a call would block the exit for ever."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def on_signals(stop: asyncio.Event) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; leave at the second."""

    def asked() -> None:
        if stop.is_set():
            leave(1)  # asked twice
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked)
