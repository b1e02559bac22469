"""How many files (and so connections) this process may have open, and how close it is to that.

What runs out here is ours, and says nothing about the service. So no connection to it is opened from the last of them:
a reserve is kept for Kafka, probes, metrics and calls of the API.
"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

RESERVE = 128
"""Files that deliveries leave for all else. A quarter of the limit at most."""
OTHERS = 128
"""Files that a sidecar has open beside its connections to the service: Kafka's connections above all."""
MACOS_LIMIT = 10_240
"""What macOS allows each process."""
USED_UP = "files-used-up"
"""Why no connection was made: a word of ours beside those for the service."""


def raise_limit() -> None:
    """Raise the soft limit to the hard one. The usual soft one, 1 024, is for programs that use select()."""
    present, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
    except (ValueError, OSError):  # macOS: its hard limit, "unlimited", is none that it allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(present, MACOS_LIMIT), highest))


def limit() -> int:
    """Return how many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def highest_limit() -> int:
    """Return what `raise_limit` raises the limit to."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def needed_for(connections: int) -> int:
    """Return how many files a sidecar needs that has so many connections to its service."""
    return connections + OTHERS + RESERVE


def reserve_of(most: int) -> int:
    """Return how many files of a limit deliveries leave for all else."""
    return min(RESERVE, most // 4)


def is_short() -> bool:
    """Return whether only the reserve is left. The system gives the lowest number that is free, so one open tells."""
    try:
        file = os.dup(2)
    except OSError as fault:
        if is_used_up(fault):
            return True
        raise
    os.close(file)
    most = limit()
    return file >= most - reserve_of(most)


def is_used_up(fault: BaseException) -> bool:
    """Return whether an error says that this process, or the whole machine, has no file left."""
    return isinstance(fault, OSError) and fault.errno in (errno.EMFILE, errno.ENFILE)


def open_files() -> dict[str, int | bool]:
    """Return for `/status` how many files are open, how many may be, and whether only the reserve is left."""
    short = is_short()
    try:
        count = sum(1 for _ in Path("/dev/fd").iterdir()) - 1  # the folder itself is open while it is read
    except OSError:  # none left to read it with
        count = limit()
    return {"open": count, "limit": limit(), "used_up": short}
