"""What the threads of a process have used, as the kernel counts it: to the nanosecond, by the names of the threads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

GROUPS = {
    "loop": "loop",
    "consumer": "consumers",
    "committer": "committers",
    "guard": "committers",
    "policy": "followers",
    "credentials": "followers",
    "rdk:": "librdkafka",
}
"""By the beginning of a thread's name: the column of the table."""


class ThreadUsage(NamedTuple):
    """CPU seconds of the threads that live at one moment, by group."""

    at: float
    cpu: Mapping[str, float]

    def since(self, before: ThreadUsage) -> dict[str, float]:
        """Return the CPU of each group since an earlier moment, in percent of a core."""
        share = 100 / (self.at - before.at)
        return {group: (used - before.cpu.get(group, 0)) * share for group, used in self.cpu.items()}


def usage_of(pid: int) -> ThreadUsage:
    """Return what the threads of a process have used. `schedstat` is exact, where `stat` counts in 10 ms."""
    found = Counter[str]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            used = int((task / "schedstat").read_text().split()[0])
            name = (task / "comm").read_text().strip()
        except FileNotFoundError:  # the thread has just ended
            continue
        found[next((group for start, group in GROUPS.items() if name.startswith(start)), "other")] += used / 1e9
    return ThreadUsage(time.perf_counter(), found)
