"""`python -m tests.soak.ordered`: the course of 2 000 keys, without failures and with them; exit code 1: a breach."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak.faults_nodes import NODES
from tests.soak.ordered.course import Course, Result, run

SHOWN = 25


def main() -> int:
    """Run both, print their figures; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.ordered", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of each of the two runs (600)")
    parser.add_argument("--fails-for", type=float, default=300, help="seconds for which a key fails at most (300)")
    asked = parser.parse_args()
    console = Console()
    found = []
    with EmbeddedKafka.start(NODES) as kafka:
        for fails_for in (0.0, asked.fails_for):
            folder = Path(tempfile.mkdtemp(prefix="soak-keys-"))
            result = run(Course(asked.seconds, fails_for), kafka, folder)
            found += result.violations
            for line in told(result, folder):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 1 if found else 0


def told(result: Result, folder: Path) -> list[str]:
    """A run in lines."""
    late = f"other keys late p50 {result.late_ms[0]} ms, p99 {result.late_ms[1]} ms"
    lines = [f"{result.figures}; {late}; at rest after {result.rest_s:.0f} s"]
    return [*lines, *result.violations[:SHOWN], *([f"kept in {folder}"] if result.violations else [])]


if __name__ == "__main__":
    sys.exit(main())
