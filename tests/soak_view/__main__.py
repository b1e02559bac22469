"""`python -m tests.soak_view`: a soak of the view from the command line. Exit code 0: all is well; 1: it is not."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak_view.run import ViewSoak
from tests.soak_view.schedule import KINDS, rounds
from tests.soak_view.world import PROPERTIES, STANDALONE


def main(words: Sequence[str] | None = None) -> int:
    """Run one soak; the exit code."""
    asked, console = parser().parse_args(words), Console()
    seed = asked.seed if asked.seed is not None else random.randrange(1_000_000)
    plan = rounds(seed, [kind for kind in asked.only.split(",") if kind])
    folder = Path(tempfile.mkdtemp(prefix=f"soak-view-{seed}-"))
    began = time.monotonic()
    console.print(f"seed {seed}, {asked.minutes:g} minutes; kept in {folder}", highlight=False)

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - began:6.0f} s {line}", highlight=False, markup=False, soft_wrap=True)

    with (
        EmbeddedKafka.start(properties=PROPERTIES) as kafka,
        ViewSoak(kafka, folder, seed, asked.master, say) as soak,
    ):
        verdict = soak.run(plan, asked.minutes * 60)
    console.print(f"seed {seed}: {verdict}", highlight=False, soft_wrap=True)
    for line in verdict.violations[:25]:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    if not verdict.violations:
        shutil.rmtree(folder)
    return 1 if verdict.violations else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="make soak-view", description="The view's job under a schedule of faults.")
    found.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 20), help="how long (20)")
    seed = os.environ.get("SEED")
    found.add_argument("--seed", type=int, default=int(seed) if seed else None, help="repeats a run's faults")
    masters = f"Spark's master, such as local[2]; {STANDALONE}, a cluster of two workers, where not given"
    found.add_argument("--master", default=STANDALONE, help=masters)
    found.add_argument("--only", default="", help=f"kinds of faults, by commas: {', '.join(KINDS)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
