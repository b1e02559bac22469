"""Memory, threads and file descriptors of each pod's process, as the system counts them: they must not grow.

How it is judged. Of each process the first half minute is left out: it fills its pools and opens its connections. Then
the *lowest* looks of the next 20 s and of the last 20 s are compared. What is held for a moment (a wave's buffers, an
outage's requests, a producer that is being replaced) is in neither; what is never let go is in the last one. A process
that did not live for long enough is not judged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from tests.soak.pod import Pod
from tests.soak.pods import Pods

LOOK = 2.0
"""Seconds between two looks at all pods."""
WARM_UP, WINDOW = 30.0, 20.0
MIB = 1 << 20
SHOWN = 6
"""Processes in the report, the longest lives first."""


class Vitals(NamedTuple):
    """What a process has; `memory` is its resident set in MiB."""

    memory: float
    threads: int
    descriptors: int


class Look(NamedTuple):
    """A process so many seconds after it had started."""

    age: float
    vitals: Vitals


MOST = Vitals(60, 40, 90)
"""What a process may have more in the end. A producer that is never freed has 7 threads and 10 descriptors, so a few
faults show."""


def compared(looks: Sequence[Look]) -> tuple[Vitals, Vitals] | None:
    """The least that a process had after its warm-up, and in the end; None if it did not live for so long."""
    first = [look.vitals for look in looks if WARM_UP <= look.age < WARM_UP + WINDOW]
    last = [look.vitals for look in looks if look.age >= max(looks[-1].age - WINDOW, WARM_UP + WINDOW)]
    if not first or not last or looks[-1].age < WARM_UP + 2 * WINDOW:
        return None
    return Vitals(*map(min, zip(*first, strict=True))), Vitals(*map(min, zip(*last, strict=True)))


def grown(name: str, looks: Sequence[Look]) -> list[str]:
    """What of a process has grown by more than it may."""
    found = compared(looks)
    if found is None:
        return []
    return [
        f"growth: {name} has {after:.0f} {what} after {looks[-1].age:.0f} s, {before:.0f} when it was warm"
        for what, before, after, most in zip(("MiB", "threads", "descriptors"), *found, MOST, strict=True)
        if after > before + most
    ]


def told(name: str, looks: Sequence[Look]) -> str:
    """A life in a line."""
    most = Vitals(*map(max, zip(*(look.vitals for look in looks), strict=True)))
    before, after = compared(looks) or (looks[0].vitals, looks[-1].vitals)
    parts = (
        f"{what} {a:.0f} to {b:.0f} (at most {c:.0f})"
        for what, a, b, c in zip(("MiB", "threads", "descriptors"), before, after, most, strict=True)
    )
    return f"{name} for {looks[-1].age:.0f} s: {', '.join(parts)}"


class Growth(threading.Thread):
    """Looks at the processes of all pods until it is ended."""

    def __init__(self, pods: Pods) -> None:
        super().__init__(name="growth", daemon=True)
        self._pods = pods
        self._begun: dict[tuple[str, int], float] = {}
        self._looks: dict[tuple[str, int], list[Look]] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Look, again and again."""
        while not self._ended.wait(LOOK):
            for pod in self._pods.all():
                if pod.process.running:
                    with suppress(psutil.NoSuchProcess):  # it has just ended
                        self._look(pod)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()

    def _look(self, pod: Pod) -> None:
        life, now = (pod.name, pod.process.pid), time.monotonic()
        if life not in self._begun and not pod.begun:
            return  # where the machine is busy its start alone may take longer than the warm-up
        process = psutil.Process(pod.process.pid)
        vitals = Vitals(process.memory_info().rss / MIB, process.num_threads(), process.num_fds())
        age = now - self._begun.setdefault(life, now)
        self._looks.setdefault(life, []).append(Look(age, vitals))

    @property
    def violations(self) -> list[str]:
        """Each process that has grown."""
        return [line for (name, _), looks in self._looks.items() for line in grown(name, looks)]

    @property
    def report(self) -> list[str]:
        """A line for each of the longest lives."""
        lives = sorted(self._looks.items(), key=lambda life: -life[1][-1].age)
        judged = sum(compared(looks) is not None for _, looks in lives)
        lines = [told(name, looks) for (name, _), looks in lives[:SHOWN]]
        return [*lines, f"{judged} of {len(lives)} processes lived long enough to be judged"]
