"""Signals while the program starts: half a second in which it imports its modules, and has nothing to clean up.

Linux discards a SIGTERM for which process 1 of a container has no handler. Without one the sidecar would start, join
its group and run until SIGKILL, with deliveries out.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def end_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    """End the process, as a handler. No exception: one that is raised while a module is imported can be swallowed."""
    os._exit(128 + number)


def is_unhandled(number: int) -> bool:
    """Return whether a signal still ends the process at once: no command has a handler of its own yet.

    False if the signal is ignored, as SIGHUP is under nohup.
    """
    return signal.getsignal(number) in (signal.SIG_DFL, end_at_once)


def end_on_signals() -> None:
    """From now on, let SIGTERM and SIGHUP end the process, even as process 1."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if is_unhandled(number):
            signal.signal(number, end_at_once)
