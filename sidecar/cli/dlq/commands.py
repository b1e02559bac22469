"""The `dlq` commands: dead letters listed, shown, redriven, exported, imported and deleted.

Each command parses its options and prints; what is done is in `sidecar/dlq/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconsume.sidecar.cli.dlq.filters import (
    SCANNED,
    DryRun,
    Ident,
    ScanMost,
    Since,
    Who,
    expect_letters,
    open_dlq,
    parsed_filter,
    takes_filter,
)
from reconsume.sidecar.cli.dlq.rows import CUT, LIST, letter_facts, letter_row, list_row, print_value
from reconsume.sidecar.cli.terminal.arguments import before
from reconsume.sidecar.cli.terminal.confirm import Yes
from reconsume.sidecar.cli.terminal.exit_codes import DONE, PARTLY
from reconsume.sidecar.cli.terminal.operation import carry_out, progress_line
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Format, Row, clock, talk, write
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.dlq.letters import (
    MOST_REDRIVES,
    OPEN,
    Eligibility,
    Filter,
    Letter,
    RedriveRequest,
)
from reconsume.sidecar.hints import hint
from reconsume.sidecar.operation import no_report
from reconsume.sidecar.printable import plural
from reconsume.topics.foreign_letters import ForeignSystem

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.dead_letters import DeadLetters, SearchResult

MOST_EVENTS = 5_000_000

app = typer.Typer(
    cls=Group, help="Dead letters: looked at, and brought back.", no_args_is_help=True, rich_markup_mode=None
)
take_common(app)


@command(app, "list")
@takes_filter
def list_(
    options: Options,
    wanted: Filter,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help=f"Only {', '.join(Eligibility)}, joined by commas."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")] = 50,
    scan: ScanMost = SCANNED,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that are redriven or dismissed, and copies.")
    ] = False,
    most_redrives: Annotated[
        int, typer.Option("--max-redrives", min=1, help="What came back so often is quarantined.")
    ] = MOST_REDRIVES,
) -> None:
    """List the dead letters, the newest first.

    The state says what a redrive would do: ready, redriven (it was already), quarantined (it came back too often),
    forgotten (so old that Kafka no longer knows), copy (another dead letter with its id and attempt counts), unfit, or
    superseded (`reset` has had the record delivered again). Dead letters that were redriven, dismissed
    (`settle --commit`) or superseded, and copies, are shown with --all or --state alone.
    When not all was looked at or shown, it says so.

    \b
    Examples:
      reconsume dlq list -o table
      reconsume dlq list --reason http-500 --since 2h --state ready
      reconsume dlq list --contains '"sku": "A-99"' --key customer-7
    """
    states = states_of(state, everything=everything)
    letters = open_dlq(options, topics=wanted.topics).letters
    from reconsume.sidecar.dlq.dead_letters import search_letters

    request = RedriveRequest(wanted, most_redrives)
    result = search_letters(letters, request, limit, scan, progress_line(), states)
    options.output.rows(LIST, [list_row(letter, verdict) for letter, verdict in result.letters], CUT)
    matches = "matches" if result.matched == 1 else "match"
    talk(f"looked at {plural(result.scanned, 'dead letter')}, {result.matched} {matches}")
    if result.cut:
        talk("incomplete: older dead letters were not looked at; --scan looks at more")
    if result.matched > len(result.letters):
        talk(f"incomplete: the newest {len(result.letters)} of {result.matched} are shown; --limit shows more")
    if not result.matched and result.scanned and state is None and not everything:
        talk("no open dead letter matches; --all also looks at those that were redriven or dismissed, and at copies")


def states_of(text: str | None, *, everything: bool) -> frozenset[Eligibility]:
    """Parse `--state`; None selects the open ones, and `everything` all. Raises BadParameter if a state is unknown."""
    if text is None:
        return frozenset(Eligibility) if everything else OPEN
    try:
        return frozenset(Eligibility(word.strip()) for word in text.split(","))
    except ValueError as fault:
        raise typer.BadParameter(f"--state is {', '.join(Eligibility)}") from fault


@command(app, "show")
def show(
    options: Options,
    ident: Ident,
    scan: ScanMost = SCANNED,
    events: Annotated[
        int, typer.Option("--events", min=0, metavar="N", help="Read at most N events for the journey; 0: none.")
    ] = MOST_EVENTS,
) -> int:
    """Show a dead letter: headers, value, journey.

    A record that died more than once is shown once for each time, the newest first. The value is shown as JSON, text
    or hexadecimal digits, and never changes the terminal; `dlq export` has it byte for byte.

    \b
    Examples:
      reconsume dlq show orders:3:1024 -o table
      reconsume dlq show billing-DLQ:0:17
    """
    letters = open_dlq(options).letters
    from reconsume.sidecar.dlq.dead_letters import find_letters
    from reconsume.sidecar.dlq.dismissals import dismissal_of

    result = find_letters(letters, ident, scan, progress_line())
    expect_letters(result, ident)
    newest, verdict = result.letters[0]
    journey, missing = journey_of(letters, newest, events)
    if missing:
        talk(f"the journey is not complete: {missing}")
    made = dismissal_of(newest, letters.settlements()) if verdict is Eligibility.DISMISSED else None
    print_letters(
        options, result, journey, None if made is None else {"who": made.who, "at": clock(made.at), "why": made.why}
    )
    return DONE


def journey_of(letters: DeadLetters, letter: Letter, most: int) -> tuple[list[Row], str]:
    """Return the record's events as rows, and the reason why they may be incomplete."""
    from reconsume.sidecar.cli.retries.rows import journey
    from reconsume.sidecar.view.journey import read_journey

    if not most:
        return [], "it was not asked for"
    if letter.retry_state is None:
        return [], "the record's id is not known"
    since = letter.retry_state.first_failed_at or None
    scan = read_journey(letters.cluster, letters.names, letter.id, since, most, no_report)
    return list(journey(scan.events)), scan.missing


def print_letters(options: Options, result: SearchResult, events: list[Row], decision: Row | None) -> None:
    """Print each letter, then the record's journey. `decision`: that on the newest one."""
    from reconsume.sidecar.cli.retries.rows import CUT as OF_A_JOURNEY
    from reconsume.sidecar.cli.retries.rows import JOURNEY, for_people

    output = options.output
    if output.format is not Format.TABLE:
        rows: list[dict[str, Any]] = [
            letter_row(letter, verdict) | {"dismissed": None, "journey": events} for letter, verdict in result.letters
        ]
        rows[0]["dismissed"] = decision
        output.rows(LIST, rows)
        return
    decided = [{"field": f"dismissed: {name}", "value": value} for name, value in (decision or {}).items()]
    for letter, verdict in result.letters:
        output.rows(("field", "value"), [*letter_facts(letter, verdict), *decided])
        decided = []
        value = letter_row(letter, verdict)["value"]
        print_value(value, f"the value goes on; `{hint('dlq export')}` has all of it")
    output.rows(JOURNEY, [for_people(event, Format.TABLE) for event in events], OF_A_JOURNEY)


@command(app, "redrive")
@takes_filter
def redrive(
    options: Options,
    wanted: Filter,
    most: Annotated[int | None, typer.Option("--max", min=1, help="At most so many in this run.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.01, help="At most so many a second; as fast as it goes by default.")
    ] = None,
    most_redrives: Annotated[
        int, typer.Option("--max-redrives", min=1, help="Leave what came back so often: it is quarantined.")
    ] = MOST_REDRIVES,
    forgotten: Annotated[
        bool,
        typer.Option("--forgotten", help="Also those so old that Kafka no longer knows whether they were redriven."),
    ] = False,
    who: Who = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Bring dead letters back.

    Each goes to the ready topic, where it is due at once, with RECONSUMETIMES 0 and one more in RETRY_REDRIVES: its
    retries begin anew. Copy, event and progress are one transaction, so that a redrive that was killed goes on when it
    is run again, and each dead letter is redriven once, whatever filters it is met by. A plan is shown first.

    One at a time: a second redrive of the group ends the first, between two transactions. What dies meanwhile waits
    for the next run. Ends with 3 when Kafka refused some, and with 1 if no dead letter has the --id.

    \b
    Examples:
      reconsume dlq redrive --reason http-503 --since 6h --dry-run
      reconsume dlq redrive --topic orders --rate 50 --yes
      reconsume dlq redrive --id orders:3:1024
      reconsume dlq redrive --contains '"sku": "A-99"'
    """
    group = open_dlq(options, who, wanted.topics)
    from reconsume.sidecar.dlq.operations import Redrive  # the Kafka client is slow to import, and --help needs none

    operation = Redrive(group.letters, RedriveRequest(wanted, most_redrives, forgotten), most, rate)
    return carry_out(options, operation, group.who, group.actions, yes=yes, dry_run=dry_run)


@command(app, "export")
@takes_filter
def export(
    options: Options,
    wanted: Filter,
    most: Annotated[int | None, typer.Option("--max", min=1, help="At most so many.")] = None,
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
    letters = open_dlq(options, topics=wanted.topics).letters
    from reconsume.sidecar.dlq.archive import export_lines
    from reconsume.sidecar.dlq.dead_letters import LetterScan

    count = unreadable = 0
    with LetterScan(letters, RedriveRequest(wanted), progress_line(), only_shown=True) as scan:
        for letter, line in export_lines(scan):
            write(line)
            count, unreadable = count + 1, unreadable + (letter.record.headers is None)
            if count == most:
                break
        cut = "" if scan.records.complete else "; incomplete: --max"
        talk(f"{count} exported, looked at {plural(scan.records.read, 'dead letter')}{cut}")
    if unreadable:
        talk(f"the headers of {unreadable} could not be read and are missing")
    return PARTLY if unreadable else DONE


@command(app, "import")
def import_(
    options: Options,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="What `dlq export` has written.")] = None,
    system: Annotated[
        ForeignSystem | None, typer.Option("--from", help="Take over dead letters of this system from --topic.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="With --from: the topic that has them.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="With --from: written there since 1h ago, or an RFC 3339 time."),
    ] = None,
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", metavar="CLASS", help="With --from: only of this class; may be repeated."),
    ] = None,
    who: Annotated[str | None, typer.Option("--who", help="Who edited the values; user@host by default.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Import exported dead letters, or those of another system.

    Puts exported dead letters back into the DLQ. Skips each one that is in the DLQ already, by its id and its number of
    redrives. If its line has another value, redrives it with that value, once, and with the header RETRY_EDITED, which
    says who changed the value, when, and the SHA-256 of both values. The dead letter itself stays as it is. Importing a
    file twice is harmless.

    With --from, reads a topic of Spring, Kafka Connect or RocketMQ instead of a file. The id of a dead letter is the
    topic, partition and offset that the headers there name; with rocketmq it is the record's own position in --topic.
    A record is left, and shown with the reason, if that is no record of the group's topics. Skips each id that is in
    the DLQ already. The reason is the class of the innermost exception that the headers name, in kebab case; the dry
    run lists the classes.

    A plan is shown first. A file with a bad line is refused as a whole; it has at most 1 GiB and 500 000 lines, of at
    most 32 MiB each, and --from takes at most 500 000 records. An imported letter's time in the DLQ is that of the
    import. Ends with 3 when some letters were refused.

    \b
    Examples:
      reconsume dlq import dead.jsonl
      reconsume dlq import edited.jsonl --who ann --dry-run
      reconsume dlq import --from spring --topic orders-dlt --dry-run
    """
    if (file is None) == (system is None):
        raise typer.BadParameter("name a file, or a system with --from, and not both")
    if (topic is None) != (system is None) or (system is None and (since or reason)):
        raise typer.BadParameter("--from needs --topic; --topic, --since and --reason need --from")
    start = None if since is None else before(since, "--since")
    group = open_dlq(options, who)
    from reconsume.sidecar.dlq.archive import ImportLetters, LetterFile, LetterSource

    source: LetterSource
    if system is not None and topic is not None:
        from reconsume.sidecar.dlq.foreign_topic import ForeignTopic

        source = ForeignTopic(group.letters, system, topic, start, reason or ())
    else:
        assert file is not None
        source = LetterFile(file, group.letters.policy)
    operation = ImportLetters(group.letters, source, group.who)
    return carry_out(options, operation, group.who, group.actions, yes=yes, dry_run=dry_run)


@command(app, "purge")
def purge(
    options: Options,
    until: Annotated[
        str, typer.Option("--until", metavar="WHEN", help="Delete what died before: 30d ago, or at an RFC 3339 time.")
    ],
    since: Since = None,
    confirm: Annotated[
        str | None, typer.Option("--confirm", metavar="GROUP", help="The group's name, instead of typing it.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accepted as elsewhere, and needs --confirm.")] = False,
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
    wanted, group = parsed_filter({}, since, until), open_dlq(options, who)
    name = group.settings.group
    if confirm not in (None, name):
        raise typer.BadParameter(f"--confirm must be the group's name, {name}")
    if yes and confirm is None and not dry_run:
        raise typer.BadParameter(f"dead letters are deleted for good, so --yes needs --confirm {name}, too")
    from reconsume.sidecar.dlq.operations import PurgeLetters

    operation = PurgeLetters(group.letters, wanted, talk)
    return carry_out(options, operation, group.who, group.actions, yes=confirm is not None, dry_run=dry_run)
