"""The memory of a process: kept private, and given back to the system when it is freed.

glibc keeps freed memory; other C libraries have neither of the two functions.
"""

from __future__ import annotations

import ctypes
import resource

PR_SET_DUMPABLE = 4
M_MMAP_THRESHOLD = -3
LARGE = 128 * 1024
"""Bytes. Freed memory of this size or more goes back to the system."""


def keep_memory_private() -> None:
    """Write no core dump, and let no other process of the same user read this one's memory: passwords are in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only Linux has it
    if prctl is not None:
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def give_back_memory() -> None:
    """Return large pieces of memory to the system when they are freed.

    For a process that now and then reads large records. glibc begins with this limit, and raises it to up to 32 MiB as
    it runs. Freed memory then stays: one piece in the arena of each thread that has read.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)


def trim_memory() -> None:
    """Return what was freed in small pieces as well. Takes some milliseconds, in which other threads go on.

    100 000 headers are as many pieces, and 7 MB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
