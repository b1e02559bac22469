"""The three runs of a peer: at full speed, at an everyday load, and killed in the middle of one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks import cluster
from benchmarks.peers.job import Command, Job, Peer
from benchmarks.peers.judge import Account, Judge, account
from benchmarks.peers.load import Pacer
from benchmarks.peers.running import PeerError, Running
from benchmarks.service import Nginx

START = 90.0
"""Seconds within which a peer must have delivered its first record."""
WARM_UP = 5.0
"""Seconds in which nothing is measured: Java compiles what runs often."""
POLL = 0.1
DELAY = 2
"""Seconds from a failure to its retry, where retries are measured."""
LONG_DELAY = 60
"""The same where all fail: no retry comes back while the failures are measured."""
RATE = 100
FAILING = 50
"""Every so many-th record fails once in the run with a kill: peers that wait in place still get through."""
PATIENCE = 240.0
"""Seconds within which all must be accepted after the load has ended."""
SETTLE = DELAY + 3.0
"""Seconds in which repetitions may still come when all is accepted."""


class Started(NamedTuple):
    """A peer that is ready to be run: how, and its topics are made for each job."""

    peer: Peer
    command: Command

    @contextmanager
    def run(self, job: Job) -> Iterator[Running]:
        """Make its topics, start it, and end it at the end of the block."""
        cluster.make(job.bootstrap, self.peer.topics(job))
        running = Running(self.command(job))
        try:
            yield running
        finally:
            running.close()


class Speed(NamedTuple):
    """Requests a second, CPU µs a request (None without one), and peak memory in bytes."""

    rate: float
    cpu_us: float | None
    peak: int


class Everyday(NamedTuple):
    """CPU in percent of a core, age of a record at its delivery in ms, peak memory in bytes."""

    cpu: float
    p50: float
    p99: float
    peak: int


class Killed(NamedTuple):
    """The account of a run with a kill, and the seconds from the new start to its first delivery."""

    account: Account
    back: float


def at_full_speed(ready: Started, nginx: Nginx, job: Job, records: int, seconds: float) -> Speed:
    """Let it take a topic full of records; the request that asks nginx for its count is taken off."""
    begun = nginx.count()
    with ready.run(job) as running:
        polls = wait(running, START, lambda polls: nginx.count() - begun > polls)
        time.sleep(WARM_UP)
        before, first = running.used(), nginx.count()
        ends = time.perf_counter() + seconds
        last, polls = first, 0
        while time.perf_counter() < ends and last - begun < records:
            time.sleep(POLL)
            last, polls = nginx.count(), polls + 1
        after, made = running.used(), last - first - polls
        cpu = (after.cpu - before.cpu) / made * 1e6 if made else None
        return Speed(made / (after.at - before.at), cpu, running.peak())


def at_an_everyday_load(
    ready: Started, bootstrap: str, name: str, seconds: float, warm_up: float = WARM_UP
) -> Everyday:
    """Let it take so many records a second, all of which succeed."""
    judge = Judge()
    job = new_job(bootstrap, name, judge)
    with ready.run(job) as running:
        pacer = Pacer(bootstrap, job.topic, RATE)
        pacer.run(1.0)
        wait(running, START, lambda _: judge.newest > 0)
        pacer.run(warm_up)
        before, known = running.used(), pacer.sent
        pacer.run(seconds)
        after = running.used()
        wait(running, START, lambda _: judge.accepted() == pacer.sent)
        ages = sorted(judge.requests[number][0].age for number in range(known, pacer.sent))
        cpu = (after.cpu - before.cpu) / (after.at - before.at) * 100
        return Everyday(cpu, statistics.median(ages), quantile(ages, 0.99), running.peak())


def killed_in_the_middle(ready: Started, bootstrap: str, name: str, seconds: float) -> Killed:
    """Kill it in the middle of a load, start it anew at once, and wait until all records are accepted."""
    judge = Judge(FAILING)
    job = new_job(bootstrap, name, judge)
    pacer = Pacer(bootstrap, job.topic, RATE)
    with ready.run(job) as running:
        pacer.run(1.0)
        wait(running, START, lambda _: judge.newest > 0)
        started = pacer.sent
        pacer.run(seconds / 2)
        running.kill()
        killed = time.time() * 1000
    again = Running(ready.command(job))
    try:
        pacer.run(seconds / 2)
        wait(again, START, lambda _: judge.newest > killed)
        back = min(one.at for come in list(judge.requests.values()) for one in come if one.at > killed) - killed
        wait(again, PATIENCE, lambda _: judge.accepted() == pacer.sent, must=False)
        time.sleep(SETTLE)
    finally:
        again.close()
    return Killed(account(judge.requests, pacer.sent, DELAY * 1000, killed, started), back / 1000)


def new_job(bootstrap: str, name: str, judge: Judge) -> Job:
    """A fresh topic and a group of the same name."""
    cluster.create(bootstrap, name)
    return Job(bootstrap, name, f"{name}-group", judge.url, DELAY)


def wait(running: Running, seconds: float, done: Callable[[int], bool], *, must: bool = True) -> int:
    """Ask until it is done; `done` is given how often it was asked. The process must run on."""
    deadline, polls = time.monotonic() + seconds, 0
    while not done(polls := polls + 1):
        running.used()
        if time.monotonic() > deadline:
            if must:
                raise PeerError(f"this took longer than {seconds:.0f} s")
            break
        time.sleep(POLL)
    return polls


def quantile(values: Sequence[float], share: float) -> float:
    """A quantile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * share))]
