"""`dlq export`, `dlq import` and `dlq purge`: dead letters written to a file, put back, and deleted for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.dlq.filters import (
    Contains,
    DryRun,
    FilterOptions,
    Headers,
    Ids,
    Keys,
    Reasons,
    Since,
    Topics,
    Until,
    Yes,
    filter_of,
    open_dlq,
    progress_line,
)
from reconsume.sidecar.cli.terminal.confirm import ask, stop_signal
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED, PARTLY
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format, Row, talk, write
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.letters import Filter, Letter
from reconsume.sidecar.errors import BrokerError, ConfigError
from reconsume.sidecar.files import open_plain
from reconsume.sidecar.printable import plural

if TYPE_CHECKING:
    from reconsume.sidecar.core.record import Partition
    from reconsume.sidecar.dlq.purge import Deletion, Purge
    from reconsume.sidecar.dlq.topics import DlqTopics

LONGEST_LINE = 160 * 1024 * 1024
"""Bytes. A broker takes requests of at most 100 MiB unless that is changed, too; base64 adds a third."""
MOST_PROBLEMS = 20
IMPORTED, THERE, REFUSED = "imported", "there already", "refused"
IMPORT = ("id", "redrives", "topic", "result")
PURGE = ("partition", "delete", "never_redriven", "stays_behind", "older", "error")


Most = Annotated[int | None, typer.Option("--max", min=1, help="At most so many.")]
Before = Annotated[
    str, typer.Option("--until", metavar="WHEN", help="Delete what died before: 30d ago, or at an RFC 3339 time.")
]
Confirm = Annotated[
    str | None, typer.Option("--confirm", metavar="GROUP", help="The group's name, instead of typing it.")
]


def export(
    options: Options,
    ids: Ids = None,
    reasons: Reasons = None,
    topics: Topics = None,
    headers: Headers = None,
    keys: Keys = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    most: Most = None,
) -> int:
    """Write dead letters as JSON lines.

    One line a letter, with key, value and headers byte for byte as base64. `dlq import` takes such a file. Ends with 3
    when some headers could not be read: such a letter cannot be imported.

    \b
    Examples:
      reconsume dlq export > dead.jsonl
      reconsume dlq export --topic orders --since 2026-11-01T00:00:00Z > orders.jsonl
    """
    if options.format not in (None, Format.JSONL):
        raise typer.BadParameter("an export is JSON lines: -o jsonl, or nothing")
    letter_filter = FilterOptions(ids, reasons, topics, headers, since, until, keys, contains)
    unreadable = write_letters(options, filter_of(letter_filter), most)
    if unreadable:
        talk(f"the headers of {unreadable} could not be read and are missing")
    return PARTLY if unreadable else DONE


def write_letters(options: Options, letter_filter: Filter, most: int | None) -> int:
    """Write a line for each letter. Return how many of them have headers that could not be read."""
    _, there, policy = open_dlq(options)
    from reconsume.sidecar.dlq.archive import line_of
    from reconsume.sidecar.dlq.letters import read_letter
    from reconsume.sidecar.dlq.scan import Scan

    count = unreadable = 0
    tell = progress_line("exported")
    with Scan(there, there.since(there.layout(), letter_filter.since)) as scan:
        for record in scan:
            letter = read_letter(record, policy)
            tell(scan, count)
            if letter_filter.selects(letter):
                write(line_of(letter))
                count, unreadable = count + 1, unreadable + (record.headers is None)
            if count == most:
                break
        looked = f"looked at {plural(scan.read, 'dead letter')}{'' if scan.complete else '; incomplete: --max'}"
        talk(f"{count} exported, {looked}")
    return unreadable


def import_(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `dlq export` has written.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Put exported dead letters back into the DLQ.

    What is there already, by its id and its number of redrives, is passed over: to import a file twice is harmless. A
    file with a bad line is refused as a whole. In the DLQ a letter gets the time of its import, from which on it is
    kept; all else is as it was exported. Ends with 3 when Kafka refused some.

    \b
    Example:
      reconsume dlq import dead.jsonl
    """
    _, there, policy = open_dlq(options)
    count = sum(1 for _ in read_letters(file, policy))  # all lines are looked at before the first letter is written
    if not dry_run and not yes:
        ask(f"Import up to {plural(count, 'dead letter')} into {', '.join(there.topics)}?")
    result = "would be imported" if dry_run else IMPORTED
    counts = Counter[str]()
    options.output.rows(IMPORT, import_rows(there, policy, file, result, counts))
    talk(f"{counts[result]} {result}, {counts[THERE]} {THERE}")
    if not counts[REFUSED]:
        return DONE
    talk(f"{counts[REFUSED]} were refused by Kafka; import the file again to try them again")
    return PARTLY if counts[result] else FAILED


def import_rows(there: DlqTopics, policy: Policy, file: Path, result: str, counts: Counter[str]) -> Iterator[Row]:
    """Import the letters of a file, a part that fits into memory at a time, and yield a row for each.

    `result`: what to say of a letter that the DLQ does not have. If it is not IMPORTED, nothing is written. `counts`:
    the numbers of letters by result.
    """
    from reconsume.sidecar.dlq.archive import Importer, life_of, parts_of

    known = set[tuple[str, int]]()
    """What earlier parts would have written."""
    for piece in parts_of(read_letters(file, policy)):
        fence = result == IMPORTED
        with Importer(there, policy, piece, progress_line(THERE), fence=fence) as importer:
            missing = {life_of(letter) for letter in importer.missing} - known
            if fence:
                importer.write()
            else:
                known |= missing
        counts[result] += len(missing) - len(importer.refused)
        counts[THERE] += len(piece) - len(missing)
        counts[REFUSED] += len(importer.refused)
        results = dict.fromkeys(missing, result) | {
            letter_key: f"refused: {why}" for letter_key, why in importer.refused.items()
        }
        yield from (import_row(letter, results.get(life_of(letter), THERE)) for letter in piece)


def read_letters(file: Path, policy: Policy) -> Iterator[Letter]:
    """Yield the letters of a file. Raises ConfigError at its end, with the first lines that are not letters."""
    from reconsume.sidecar.dlq.archive import ImportedError, import_line

    problems = list[str]()
    try:
        with open_plain(file) as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    raise ConfigError([*problems, f"{file}, line {number}: has more than {LONGEST_LINE} bytes"])
                try:
                    letter = import_line(line, policy) if line.strip() else None
                except ImportedError as fault:
                    problems.append(f"{file}, line {number}: {fault}")
                    if len(problems) == MOST_PROBLEMS:
                        break
                else:
                    if letter is not None:
                        yield letter
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    if problems:
        raise ConfigError(problems)


def import_row(letter: Letter, result: str) -> Row:
    """Return the outcome of one letter as a row."""
    return {"id": letter.id, "redrives": letter.redrives, "topic": letter.record.source.topic, "result": result}


def purge(
    options: Options,
    until: Before,
    since: Since = None,
    confirm: Confirm = None,
    dry_run: DryRun = False,
) -> int:
    """Delete dead letters for good.

    Kafka deletes only from a partition's beginning: what lies behind a dead letter that stays, stays too, and the plan
    says how many those are, and how many that go were never redriven. Asks for the group's name.

    \b
    Examples:
      reconsume dlq purge --until 30d --dry-run
      reconsume dlq purge --until 2026-10-01T00:00:00Z
    """
    letter_filter = filter_of(FilterOptions(since=since, until=until))
    settings, there, policy = open_dlq(options)
    if confirm not in (None, settings.group):
        raise typer.BadParameter(f"--confirm must be the group's name, {settings.group}")
    from reconsume.sidecar.dlq.purge import Purge

    planned = Purge(there, policy, letter_filter.since, letter_filter.until, progress_line("to delete"))
    explain(planned)
    if dry_run or not planned.total:
        options.output.rows(PURGE, rows_of(planned))
        return DONE
    plan = list(rows_of(planned))
    options.output.talk_rows(PURGE, plan)
    if confirm is None:
        ask(f"Type {settings.group} to delete {plural(planned.total, 'dead letter')} for good", settings.group)
    with stop_signal():
        planned.carry_out()
        forget_settled(there)
    options.output.rows_after(plan, PURGE, rows_of(planned))
    return code_of(planned)


def forget_settled(there: DlqTopics) -> None:
    """Delete the settlements of letters that are gone, so that others can be dismissed."""
    from reconsume.sidecar.dlq.settlements import SettlementWriter, gone_of

    try:
        if gone := gone_of(there.settlements(), there.layout()):
            with SettlementWriter(there.kafka, there.names) as writer:
                writer.forget(gone)
    except BrokerError as fault:  # the letters are deleted all the same, and the next purge or settlement tries again
        talk(f"warning: {fault}")


def code_of(planned: Purge) -> int:
    """Return the exit code: 3 if Kafka refused to delete from some partitions, 1 if from all."""
    deletions = planned.deletions.values()
    if not any(deletion.error for deletion in deletions):
        return DONE
    return FAILED if all(deletion.error for deletion in deletions if deletion.deleted) else PARTLY


def explain(planned: Purge) -> None:
    """Print how many letters are deleted, how many of them were never redriven, and how many cannot be deleted."""
    deletions = planned.deletions.values()
    verb = "goes" if planned.total == 1 else "go"
    fresh = sum(deletion.open for deletion in deletions)
    talk(f"{plural(planned.total, 'dead letter')} {verb}, {fresh} of them never redriven")
    if behind := sum(deletion.behind for deletion in deletions):
        talk(
            f"{behind} that are meant cannot go: they lie behind {sum(deletion.older for deletion in deletions)} older "
            "ones or newer ones that stay, and Kafka deletes only from the beginning"
        )


def rows_of(planned: Purge) -> Iterator[Row]:
    """Yield a row for each partition that is not empty."""
    for partition, deletion in sorted(planned.deletions.items()):
        yield row_of(partition, deletion)


def row_of(partition: Partition, deletion: Deletion) -> Row:
    """Return one partition's part of the plan as a row."""
    return {
        "partition": str(partition),
        "delete": deletion.deleted,
        "never_redriven": deletion.open,
        "stays_behind": deletion.behind,
        "older": deletion.older,
        "error": deletion.error,
    }
