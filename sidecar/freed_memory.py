"""Give freed memory back to the system. glibc keeps it; other C libraries have neither of the two functions."""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD = -3
LARGE = 128 * 1024
"""Bytes. Freed memory of this size or more goes back to the system."""


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
