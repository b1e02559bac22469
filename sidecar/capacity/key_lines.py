"""What waits behind failing keys, in a group with `retry.ordered_ladder`: each key is a line of its own.

A record of a key is served from its first delivery until it is done or dead, and later ones wait for it: a queue with
one server, Poisson arrivals and any times (M/G/1). The mean number that waits is Pollaczek and Khinchine's. The keys
are alike: a key that gets more than its part has a longer line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reconsume.sidecar.capacity.model import Load, waiting


class KeyLines(NamedTuple):
    """The lines of all keys, when nothing changes any more.

    `blocked`: keys whose first record waits for a retry. `behind`: records behind them; None if the lines grow without
    end. `next_s`: seconds until the record after a failing one is delivered, on average, if it comes at once.
    `busy`: the share of the time for which a key has a record under way or waiting; from 1 on its line grows.
    """

    blocked: float
    behind: float | None
    next_s: float
    busy: float


def key_lines(load: Load, keys: int) -> KeyLines:
    """Return what waits, if the records are of so many keys."""
    times = list(service_times(load))
    mean = sum(share * seconds for share, seconds in times)
    square = sum(share * seconds**2 for share, seconds in times)
    arrivals = load.rate / keys
    busy = arrivals * mean
    behind = None if busy >= 1 else keys * arrivals**2 * square / (2 * (1 - busy))
    failing = sum(share * seconds for share, seconds in times[1:])
    next_s = failing / load.fails if load.fails else 0.0
    return KeyLines(min(sum(waiting(load).values()), keys), behind, next_s, busy)


def service_times(load: Load) -> Iterator[tuple[float, float]]:
    """Yield each way of a record as its share of all, and its seconds from the first delivery to the end."""
    yield 1 - load.fails, load.attempt
    share, seconds = load.fails, load.attempt
    for retry in range(1, load.retries + 1):
        seconds += load.ladder.delay(retry) / 1_000 + load.attempt
        failing = share * load.fails_again if retry < load.retries else 0.0
        yield share - failing, seconds
        share = failing
    if load.retries == 0:
        yield share, seconds
