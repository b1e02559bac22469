"""`python -m tests.fuzz [--minutes 5] [--only NAME]`: mutations; what breaks a parser is kept in the corpus."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from random import Random

from tests.fuzz.corpus_files import inputs_of, keep
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, Target

SLOW = 2.0
"""Seconds of the processor that one input may take."""


def main() -> int:
    """Fuzz each target for an equal part of the time; 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    given = parser.parse_args()
    targets = {given.only: TARGETS[given.only]} if given.only else TARGETS
    print(f"seed {given.seed}")  # noqa: T201
    found = [fuzzed(name, target, given.minutes * 60 / len(targets), given.seed) for name, target in targets.items()]
    return int(any(found))


def fuzzed(name: str, target: Target, seconds: float, seed: int) -> int:
    """How many inputs broke a target; it is left at the tenth."""
    random, end = Random(f"{name}{seed}"), time.monotonic() + seconds
    seeds, tried, broken = (*target.seeds, *inputs_of(name)), 0, 0
    while time.monotonic() < end and broken < 10:
        data = mutated(seeds, random)
        tried += 1
        try:
            if (took := cost(target, data)) > SLOW and (took := min(took, cost(target, data))) > SLOW:
                raise TimeoutError(f"{len(data)} bytes took {took:.1f} s")
        except Exception:  # noqa: BLE001 - whatever it is, it is what we look for
            broken += 1
            print(f"{name}: {keep(name, data)}\n{traceback.format_exc(limit=-3)}", flush=True)  # noqa: T201
    print(f"{name}: {tried} inputs, {broken} broke it", flush=True)  # noqa: T201
    return broken


def cost(target: Target, data: bytes) -> float:
    """What feeding a target takes of the processor; on a busy machine the same may take three times as long."""
    begun = time.process_time()
    target.feed(data)
    return time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
