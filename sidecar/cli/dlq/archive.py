"""`dlq export`, `dlq import` and `dlq purge`: dead letters in a file, put back or edited, and deleted for good."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
    Who,
    filter_of,
    in_words,
    open_actions,
    open_dlq,
    progress_line,
)
from reconsume.sidecar.cli.terminal.arguments import author
from reconsume.sidecar.cli.terminal.confirm import Yes, ask, stop_signal
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED, PARTLY
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format, Row, talk, write
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.letters import Eligibility, Filter, Letter
from reconsume.sidecar.dlq.redrive_target import planned_target
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
THERE, BEFORE, REFUSED = "there already", "redriven before", "refused"
IMPORT = ("id", "redrives", "topic", "result")
PURGE = ("partition", "delete", "never_redriven", "stays_behind", "older", "error")


class ImportWords(NamedTuple):
    """The results of letters that an import takes."""

    imported: str
    redriven: str


PLANNED = ImportWords("would be imported", "would be redriven")
DONE_WORDS = ImportWords("imported", "redriven")

Most = Annotated[int | None, typer.Option("--max", min=1, help="At most so many.")]
Before = Annotated[
    str, typer.Option("--until", metavar="WHEN", help="Delete what died before: 30d ago, or at an RFC 3339 time.")
]
ConfirmToo = Annotated[bool, typer.Option("--yes", help="Accepted as elsewhere, and needs --confirm.")]
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

    One line a letter, with key, value and headers byte for byte as base64; a copy of a dead letter that counts has
    `"copy": true`. `dlq import` takes such a file. Ends with 3 when some headers could not be read: such a letter
    cannot be imported.

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
    from reconsume.sidecar.dlq.copies import with_copies
    from reconsume.sidecar.dlq.letters import read_letter
    from reconsume.sidecar.dlq.scan import Scan

    count = unreadable = 0
    tell = progress_line("exported")
    layout = there.layout()
    pasts = with_copies(there, policy, layout, there.pasts(layout, only_shown=True, dismissals=False), tell)
    with Scan(there, there.since(layout, letter_filter.since)) as scan:
        for record in scan:
            letter = read_letter(record, policy)
            tell(scan, count)
            if letter_filter.selects(letter):
                write(line_of(letter, is_copy=record.offset in pasts[record.source].copies))
                count, unreadable = count + 1, unreadable + (record.headers is None)
            if count == most:
                break
        looked = f"looked at {plural(scan.read, 'dead letter')}{'' if scan.complete else '; incomplete: --max'}"
        talk(f"{count} exported, {looked}")
    return unreadable


def import_(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `dlq export` has written.")],
    who: Annotated[str | None, typer.Option("--who", help="Who edited the values; user@host by default.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Import exported dead letters, and redrive edited ones.

    Puts them back into the DLQ. Skips each dead letter that is in the DLQ already, by its id and its number of
    redrives. If its line has another value, redrives it with that value, once, and with the header RETRY_EDITED, which
    says who changed the value, when, and the SHA-256 of both values. The dead letter itself stays as it is. Importing a
    file twice is harmless.

    A file with a bad line is refused as a whole. An imported letter's time in the DLQ is that of the import. Ends with
    3 when some letters were refused.

    \b
    Examples:
      reconsume dlq import dead.jsonl
      reconsume dlq import edited.jsonl --who ann --dry-run
    """
    _, there, policy = open_dlq(options, who)
    count = sum(1 for _ in read_letters(file, policy))  # all lines are looked at before the first letter is written
    if not dry_run and not yes:
        target = planned_target(policy)
        ask(
            f"Import up to {plural(count, 'dead letter')} into {', '.join(there.topics)}, and redrive the edited ones "
            f"to {target}?"
        )
    words = PLANNED if dry_run else DONE_WORDS
    counts = Counter[str]()
    noted = nullcontext(None) if dry_run else open_actions(there).noted("import", author(who), file.name)
    with noted as tally, stop_signal() as stop:
        try:
            rows = import_rows(there, policy, file, None if dry_run else stop, author(who), counts)
            options.output.rows(IMPORT, rows)
        finally:
            if tally is not None:
                tally.records = counts[words.imported] + counts[words.redriven]
    if stop.is_set():
        raise KeyboardInterrupt
    done = [words.imported, words.redriven, THERE, BEFORE]
    talk(
        ", ".join(
            f"{counts[result]} {result}" for result in done if counts[result] or result in (words.imported, THERE)
        )
    )
    if not counts[REFUSED]:
        return DONE
    talk(f"{counts[REFUSED]} were refused; import the file again to try them again")
    return PARTLY if counts[words.imported] or counts[words.redriven] else FAILED


def import_rows(
    there: DlqTopics, policy: Policy, file: Path, stop: threading.Event | None, who: str, counts: Counter[str]
) -> Iterator[Row]:
    """Import the letters of a file, a part that fits into memory at a time, and yield a row for each.

    `stop`: ends the redrive of edited letters; None: nothing is written. `who`: the author of the edits. `counts`: the
    numbers of letters by result.
    """
    from reconsume.sidecar.dlq.archive import Importer, life_of, parts_of, redrive_edited

    words = PLANNED if stop is None else DONE_WORDS
    known = set[tuple[str, str]]()
    """What earlier parts would have written."""
    for piece in parts_of(read_letters(file, policy)):
        with Importer(there, policy, piece, progress_line(THERE), fence=stop is not None) as importer:
            missing = {life_of(letter) for letter in importer.missing} - known
            if stop is not None:
                importer.write()
            else:
                known |= missing
        results = dict.fromkeys(missing, words.imported) | {
            letter_key: f"{REFUSED}: {why}" for letter_key, why in importer.refused.items()
        }
        if importer.edited:
            edits = redrive_edited(there, policy, importer.edited, who, stop, progress_line(words.redriven))
            results |= {letter_key: edit_result(*outcome, words) for letter_key, outcome in edits.outcomes.items()}
        counts.update(result.partition(":")[0] for result in results.values())
        counts[THERE] += len(piece) - len(results)
        yield from (import_row(letter, results.get(life_of(letter), THERE)) for letter in piece)
        if stop is not None and stop.is_set():
            return


def edit_result(verdict: str, why: str, words: ImportWords) -> str:
    """Return the result of an edited letter, as a row shows it."""
    match verdict:
        case Eligibility.READY:
            return words.redriven
        case Eligibility.REDRIVEN | Eligibility.COPY:  # the newest of its letters is a copy once one was redriven
            return BEFORE
        case _:
            return f"{REFUSED}: {why or verdict}"


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
    yes: ConfirmToo = False,
    who: Who = None,
    dry_run: DryRun = False,
) -> int:
    """Delete dead letters for good.

    Kafka deletes only from a partition's beginning: what lies behind a dead letter that stays, stays too, and the plan
    says how many those are, and how many that go were never redriven. Asks for the group's name. --yes is not enough:
    in a script, name the group by --confirm.

    \b
    Examples:
      reconsume dlq purge --until 30d --dry-run
      reconsume dlq purge --until 2026-10-01T00:00:00Z
    """
    letter_filter = filter_of(FilterOptions(since=since, until=until))
    settings, there, policy = open_dlq(options, who)
    if confirm not in (None, settings.group):
        raise typer.BadParameter(f"--confirm must be the group's name, {settings.group}")
    if yes and confirm is None and not dry_run:
        raise typer.BadParameter(f"dead letters are deleted for good, so --yes needs --confirm {settings.group}, too")
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
    with open_actions(there).noted("purge", author(who), in_words(letter_filter)) as tally, stop_signal():
        planned.carry_out()
        tally.records = sum(one.deleted for one in planned.deletions.values() if not one.error)
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
