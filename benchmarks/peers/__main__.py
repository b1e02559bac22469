"""`python -m benchmarks.peers`: ours beside what a user would pick instead, in one run, one after another in rounds.

Each peer calls the same HTTP service for each record. A peer that cannot be had is left out by name. Nothing is
asserted; read benchmarks/README.md for what each is configured to do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console

from benchmarks.peers import tables
from benchmarks.peers.catalogue import PEERS, YARDSTICK
from benchmarks.peers.job import Job
from benchmarks.peers.load import fill
from benchmarks.peers.running import PeerError
from benchmarks.peers.runs import (
    LONG_DELAY,
    Speed,
    Started,
    at_an_everyday_load,
    at_full_speed,
    killed_in_the_middle,
)
from benchmarks.service import Nginx
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.errors import ReconsumeError

LOADS = ("ok", "fail", "everyday", "kill")
talk = Console(stderr=True)
T = TypeVar("T")


def main(words: Sequence[str] | None = None) -> None:
    """Fetch the peers, measure each under each load, and print a table for each load."""
    asked = parsed(words)
    peers = list(prepared(asked.peers))
    nginx = Nginx()
    try:
        with EmbeddedKafka.start() as kafka:
            bench = Bench(kafka.bootstrap, nginx, asked)
            for load in asked.loads:
                bench.measure(load, peers)
    finally:
        nginx.close()


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--records", type=int, default=600_000, help="that are there at full speed")
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured at full speed")
    parser.add_argument("--everyday", type=float, default=20.0, help="seconds of the everyday load, and of the kill")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--peers", nargs="+", default=[""], help="only those with one of these words in their names")
    return parser.parse_args(words)


def prepared(wanted: Sequence[str]) -> Iterator[Started]:
    """The wanted peers, each with what it needs; one that cannot be had is named and left out."""
    for peer in PEERS:
        if not any(word.lower() in peer.name.lower() for word in wanted):
            continue
        talk.print(f"preparing {peer.name}")
        try:
            yield Started(peer, peer.prepare())
        except ReconsumeError as error:
            talk.print(f"left out: {peer.name}: {error}")


class Bench:
    """One broker and one nginx, with numbers for fresh names."""

    def __init__(self, bootstrap: str, nginx: Nginx, asked: argparse.Namespace) -> None:
        self._bootstrap, self._nginx, self._asked = bootstrap, nginx, asked
        self._numbers = iter(range(1_000_000))

    def measure(self, load: str, peers: Sequence[Started]) -> None:
        """Measure every peer in rounds under a load, and show the table."""
        if load in ("ok", "fail"):
            title = "full speed, all good" if load == "ok" else "full speed, all fail"
            tables.show_speeds(title, self._rounds(peers, self._at_full_speed(load)), YARDSTICK)
        elif load == "everyday":
            tables.show_everyday(self._rounds(peers, self._paced(at_an_everyday_load)), YARDSTICK)
        else:
            tables.show_killed(self._rounds(peers, self._paced(killed_in_the_middle)))

    def _rounds(self, peers: Sequence[Started], run: Callable[[Started], T]) -> dict[str, list[T]]:
        found: dict[str, list[T]] = {ready.peer.name: [] for ready in peers}
        for number in range(self._asked.rounds):
            for ready in peers:
                try:
                    found[ready.peer.name].append(run(ready))
                except PeerError as error:
                    talk.print(f"round {number + 1}, {ready.peer.name}: {error}")
                else:
                    talk.print(f"round {number + 1}, {ready.peer.name}: {found[ready.peer.name][-1]}"[:200])
        return {name: results for name, results in found.items() if results}

    def _at_full_speed(self, path: str) -> Callable[[Started], Speed]:
        topic = f"peers-{next(self._numbers)}"
        fill(self._bootstrap, topic, self._asked.records)

        def run(ready: Started) -> Speed:
            job = Job(self._bootstrap, topic, f"g-{next(self._numbers)}", self._nginx.url(path), LONG_DELAY)
            return at_full_speed(ready, self._nginx, job, self._asked.records, self._asked.seconds)

        return run

    def _paced(self, measure: Callable[[Started, str, str, float], T]) -> Callable[[Started], T]:
        def run(ready: Started) -> T:
            return measure(ready, self._bootstrap, f"peers-{next(self._numbers)}", self._asked.everyday)

        return run


if __name__ == "__main__":
    main()
