"""`python -m tests.soak`: a soak from the command line. Exit code 0: all is well; 1: something is not."""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console

from tests.soak.report import EVIDENCE, journeys, judge, kept
from tests.soak.run import Outcome, soak
from tests.soak.schedule import KINDS, Schedule, plan

SHOWN = 25
"""Violations that are printed; all of them are in the journal."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one soak; the exit code."""
    asked = _parser().parse_args(words)
    console = Console()
    if asked.check:
        return _check_again(console, Path(asked.check))
    seed = asked.seed if asked.seed is not None else random.randrange(1_000_000)
    only = [kind for kind in (asked.only or "").split(",") if kind]
    try:
        schedule = plan(seed, asked.minutes * 60, only, asked.rate, asked.apart)
    except ValueError as wrong:
        console.print(str(wrong), style="red")
        return 2
    folder = Path(asked.folder or tempfile.mkdtemp(prefix=f"soak-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    _tell(console, schedule, folder)
    if asked.dry_run:
        return 0
    outcome = soak(schedule, folder, console, dict(asked.set))
    _report(console, outcome, seed, folder)
    if outcome.clean and not asked.keep and not asked.folder:
        shutil.rmtree(folder)
    return 0 if outcome.clean else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make soak", description="A group of sidecars under a schedule of faults.")
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 30), help="how long")
    parser.add_argument("--seed", type=int, default=_number(os.environ.get("SEED")), help="repeats a run's schedule")
    parser.add_argument("--only", help=f"kinds of faults, by commas: {', '.join(KINDS)}")
    parser.add_argument("--rate", type=int, default=500, help="records a second in a wave (500)")
    parser.add_argument("--apart", type=float, default=1, help="gaps between faults, so many times as long (1)")
    parser.add_argument(
        "--set", type=_setting, action="append", default=[], help="of each pod's configuration, as KEY=VALUE"
    )
    parser.add_argument("--folder", help="where journal, ledger and logs are kept; else they go when all is well")
    parser.add_argument("--keep", action="store_true", help="keep them in any case")
    parser.add_argument("--check", metavar="FOLDER", help="judge again what a run that failed has left in FOLDER")
    parser.add_argument("--dry-run", action="store_true", help="print the schedule and end")
    return parser


def _setting(text: str) -> tuple[str, object]:
    key, _, value = text.partition("=")
    return key, yaml.safe_load(value)


def _check_again(console: Console, folder: Path) -> int:
    found = kept(folder / EVIDENCE)
    verdict = judge(found.evidence, found)
    for line in (*verdict.found[:SHOWN], *journeys(found.evidence, verdict.found)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(verdict.found)} violations; {verdict.report}", highlight=False, soft_wrap=True)
    return 1 if verdict.found else 0


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _tell(console: Console, schedule: Schedule, folder: Path) -> None:
    console.print(f"seed {schedule.seed}, {schedule.seconds:g} s, {len(schedule.steps)} faults; kept in {folder}")
    for step in schedule.steps:
        console.print(f"  {step}", highlight=False)


def _report(console: Console, outcome: Outcome, seed: int, folder: Path) -> None:
    for title, lines in (
        ("findings of pods", outcome.findings),
        ("faults that did not do what they say", outcome.broken),
        ("violations", outcome.violations),
    ):
        if lines:
            console.print(f"{len(lines)} {title}:", style="bold")
            for line in lines[:SHOWN]:
                console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    for line in (*outcome.journeys, *outcome.growth):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for line in outcome.ordered:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"seed {seed}: {outcome.figures}; {memory:.0f} MiB at most", highlight=False, soft_wrap=True)
    if not outcome.clean:
        console.print(f"journal, ledger and logs are in {folder}", style="red", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
