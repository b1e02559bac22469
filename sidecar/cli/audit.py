"""`audit`: check over the group's topics that nothing is lost and each attempt is counted once; list every
violation."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.audit.facts import NOTES, Finding
from reconsume.sidecar.cli.terminal.arguments import before, duration
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, clock, talk
from reconsume.sidecar.cli.terminal.progress import progress_bar
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.printable import plural

if TYPE_CHECKING:
    from reconsume.sidecar.audit.audit import Audit

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
    from reconsume.sidecar.audit.audit import Audit, AuditRequest  # the Kafka client is slow to import

    settings = settings_for_kafka(options)
    start = None if since is None else before(since, "--since")
    if (slack_ms := duration(slack, "--clock-slack")) > LONGEST_SLACK_MS:
        raise typer.BadParameter("clocks that differ by more than 10m are no clocks")
    ask = AuditRequest(start, slack_ms, not skip_main, not skip_outputs)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with (
        kept(),
        progress_bar("looking") as show,
        Audit(settings, ask, lambda what, done, total: show(done, total, what)) as run,
    ):
        options.output.rows(COLUMNS, rows_of(run, counts, most))
    if start is not None:
        talk(f"what failed before {clock(start)} was not looked at, as --since says")
    seconds = time.monotonic() - began
    found_of = f"{plural(run.judged_records, 'record')} that failed (copies and events read: {run.read})"
    also = f", and {plural(run.outputs, 'output')}" if run.outputs else ""
    talk(f"{found_of}{also}, read in {seconds:.1f} s")
    return sum_up(counts, len(run.unknown), most)


def rows_of(run: Audit, counts: Counter[str], most: int) -> Iterator[Row]:
    """Yield a row for each of the first `most` findings, then one for each unknown. All findings are read, and counted
    by their kinds."""
    for finding in run.findings():
        if counts.total() < most:
            yield row_of(finding)
        counts[finding.kind] += 1
    for unknown in run.unknown:
        yield {"found": "unknown", "kind": "unknown", "text": unknown.text, "records": list(unknown.records)}


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
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        talk(f"{plural(broken, 'violation')}: {kinds}")
        return FAILED
    talk("no violation")
    return DONE


@contextmanager
def kept() -> Iterator[None]:
    """Turn an error of the temporary database into SetupError: one sentence with the fix, because the folder is
    usually full."""
    try:
        yield
    except sqlite3.Error as error:
        raise SetupError(f"what was read cannot be kept ({error}): let TMPDIR name a folder with more room") from error
