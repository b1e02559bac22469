"""What is asked of processes, any of which may end while it is asked."""

from __future__ import annotations

import psutil


def lives(process: psutil.Process) -> bool:
    """Whether the process runs; one that has ended and that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing when it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(process: psutil.Process) -> None:
    """SIGKILL, if it still lives."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
