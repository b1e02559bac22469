"""What a fault leaves behind in this process: memory, threads and descriptors, with the collector of cycles off.

with nothing_left(mib=40):
    ...make the fault a hundred times...
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.deadline import until

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024
SECONDS = 30.0
"""A client's threads end some time after it was given up."""


class Held(NamedTuple):
    """What this process holds."""

    bytes: int
    threads: int
    descriptors: int


def held() -> Held:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    threads, descriptors = (sum(1 for _ in Path("/proc/self", name).iterdir()) for name in ("task", "fd"))
    return Held(pages * PAGE, threads, descriptors)


@contextmanager
def nothing_left(mib: int, threads: int = 10, descriptors: int = 20) -> Iterator[None]:
    """Fail if the block leaves more than so much, although no cycle is collected meanwhile."""
    gc.collect()
    gc.disable()
    try:
        before = held()
        yield

        def over() -> str:
            now = held()
            grown = Held(*(after - first for after, first in zip(now, before, strict=True)))
            most = Held(mib * MIB, threads, descriptors)
            return ", ".join(f"{name} {grown[n]}" for n, name in enumerate(Held._fields) if grown[n] > most[n])

        try:
            until(lambda: not over(), SECONDS / 4, "nothing is left")
        except AssertionError:
            raise AssertionError(f"left behind: {over()}") from None
    finally:
        gc.enable()
        gc.collect()
