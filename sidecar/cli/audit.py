"""`audit`: check over the group's topics that nothing is lost and each attempt is counted once; list every
violation."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.audit.facts import NOTES, Finding
from reconsume.sidecar.cli.terminal.arguments import before
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, clock, talk
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.printable import plural
from reconsume.topics.durations import parse_duration

if TYPE_CHECKING:
    from reconsume.sidecar.audit.unknowns import Unknown

COLUMNS = ("found", "kind", "id", "redrives", "times", "text", "records")
LONGEST_SLACK_MS = 600_000


def audit(
    options: Options,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="From then on: a duration back (1h), or RFC 3339. Else all."),
    ] = None,
    slack: Annotated[
        str,
        typer.Option("--clock-slack", metavar="DURATION", help="How far the clocks of pods and brokers may differ."),
    ] = "500ms",
    skip_main: Annotated[
        bool, typer.Option("--skip-main", help="Do not read the main topics: copies are compared with each other.")
    ] = False,
    skip_outputs: Annotated[
        bool, typer.Option("--skip-outputs", help="Do not read the topics of deliver.outputs.")
    ] = False,
    most: Annotated[int, typer.Option("--max", min=1, help="Findings to print; all are counted.")] = 1000,
) -> int:
    """Check that nothing was lost and each attempt was counted once.

    Reads the group's topics, those of deliver.outputs and the committed progress, and prints each violation with its
    records (topic:partition:offset), and what cannot be known because it is deleted. The group may run meanwhile;
    nothing is changed. Memory stays bounded; what is read is kept in a temporary folder (TMPDIR).

    Ends with 1 when there is a violation.

    \b
    Examples:
      reconsume audit -o table
      reconsume audit --since 1h
    """
    from reconsume.sidecar.audit.audit import Audit, AuditRequest, tallied

    settings = settings_for_kafka(options)
    start = None if since is None else before(since, "--since")
    ask = AuditRequest(start, duration(slack), not skip_main, not skip_outputs)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with kept(), telling() as tell, Audit(settings, ask, tell) as run:
        findings = tallied(run.findings(), counts)
        options.output.rows(COLUMNS, rows_of(findings, most, lambda: run.unknown))
        if ask.since is not None:
            talk(f"what failed before {clock(ask.since)} was not looked at, as --since says")
        seconds = time.monotonic() - began
        found_of = f"{plural(run.judged_records, 'record')} that failed (copies and events read: {run.read})"
        also = f", and {plural(run.outputs, 'output')}" if run.outputs else ""
        talk(f"{found_of}{also}, read in {seconds:.1f} s")
        return sum_up(counts, len(run.unknown), most)


def rows_of(findings: Iterable[Finding], most: int, unknown: Callable[[], Iterable[Unknown]]) -> Iterator[Row]:
    """Yield a row for each of the first `most` findings, then one for each unknown. All findings are read, so that
    all are counted."""
    for number, finding in enumerate(findings):
        if number < most:
            yield row_of(finding)
    for one in unknown():
        yield {"found": "unknown", "kind": "unknown", "text": one.text, "records": list(one.records)}


def row_of(finding: Finding) -> Row:
    """Return a finding as a row."""
    return {
        "found": "note" if finding.kind in NOTES else "violation",
        "kind": str(finding.kind),
        "id": finding.id,
        "redrives": finding.redrives,
        "times": finding.times,
        "text": finding.text,
        "records": list(finding.records),
    }


def sum_up(counts: Counter[str], unknown: int, most: int) -> int:
    """Return the exit code; print the counts in one line."""
    broken = sum(count for kind, count in counts.items() if kind not in NOTES)
    if sum(counts.values()) > most:
        talk(f"the first {plural(most, 'finding')} of all")
    if unknown:
        talk(f"incomplete: {plural(unknown, 'thing')} cannot be known, see the rows `unknown`")
    if broken:
        talk(
            f"{plural(broken, 'violation')}: " + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        )
        return FAILED
    talk("no violation")
    return DONE


def duration(text: str) -> int:
    """Parse the clock slack, in ms. Raises BadParameter if it is not a duration, or longer than LONGEST_SLACK_MS."""
    try:
        ms = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if ms > LONGEST_SLACK_MS:
        raise typer.BadParameter("clocks that differ by more than 10m are no clocks")
    return ms


@contextmanager
def kept() -> Iterator[None]:
    """Turn an error of the temporary database into SetupError: one sentence with the fix, because the folder is
    usually full."""
    try:
        yield
    except sqlite3.Error as error:
        raise SetupError(f"what was read cannot be kept ({error}): let TMPDIR name a folder with more room") from error


@contextmanager
def telling() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows the progress: a bar on a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console  # slow to import, and only for people
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("looking", total=None)
        yield lambda what, done, total: bars.update(task, description=what, completed=done, total=total or None)
