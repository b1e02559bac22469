"""What a process has: threads, descriptors, memory, and the objects that a fault could leave behind."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.deadline import NotInTimeError, until

THREADS, FILES, MIB = 40, 90, 60
"""What may be more after any number of faults than before: the threads and descriptors of a few clients, and memory
that the allocator keeps."""
OBJECTS = 20
"""The same for objects of the types that hold a client, a connection or a batch."""
KEPT = ("Producer", "Consumer", "AdminClient", "TransactionalProducer", "BlockingCalls", "Connection", "CommitBatch")
SECONDS = 30.0


class Usage(NamedTuple):
    """What the process has at a moment."""

    threads: int
    files: int
    mib: int
    objects: Counter[str]


def usage() -> Usage:
    """Return what the process has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    objects = Counter(name for thing in gc.get_objects() if (name := type(thing).__name__) in KEPT)
    return Usage(count_in("task"), count_in("fd"), pages * os.sysconf("SC_PAGESIZE") >> 20, objects)


def count_in(folder: str) -> int:
    """Return how many entries a folder of this process in /proc has."""
    return sum(1 for _ in Path(f"/proc/self/{folder}").iterdir())


def grown(before: Usage, after: Usage) -> list[str]:
    """Return what has grown by more than a constant, as text."""
    more = [
        (f"{after.threads - before.threads} threads", after.threads - before.threads > THREADS),
        (f"{after.files - before.files} descriptors", after.files - before.files > FILES),
        (f"{after.mib - before.mib} MiB", after.mib - before.mib > MIB),
        *((f"{n} {name}", n > OBJECTS) for name, n in (after.objects - before.objects).items()),
    ]
    return [text for text, too_much in more if too_much]


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector: what is part of a reference cycle stays, as in a sidecar between two collections."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def expect_freed(before: Usage) -> None:
    """Wait until nothing has grown. Clients that were given up end on threads of their own."""
    with suppress(NotInTimeError):
        until(lambda: not grown(before, usage()), SECONDS, "all is freed")
    assert grown(before, usage()) == []
