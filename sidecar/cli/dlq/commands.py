"""`dlq list`, `dlq show`, and the command group of all `dlq` commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconsume.sidecar.cli.dlq import archive as keep
from reconsume.sidecar.cli.dlq import redrive as back
from reconsume.sidecar.cli.dlq.filters import (
    SCANNED,
    Contains,
    FilterOptions,
    Headers,
    Ident,
    Ids,
    Keys,
    Reasons,
    ScanMost,
    Since,
    Topics,
    Until,
    expect_letters,
    filter_of,
    open_dlq,
    progress_line,
)
from reconsume.sidecar.cli.dlq.rows import CUT, LIST, letter_facts, letter_row, list_row
from reconsume.sidecar.cli.terminal.exit_codes import DONE
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Format, Row, clock, talk, write
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.dlq.letters import MOST_REDRIVES, OPEN, Eligibility, RedriveRequest
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural, printable

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.letters import Letter
    from reconsume.sidecar.dlq.search import SearchResult
    from reconsume.sidecar.dlq.topics import DlqTopics

MOST_EVENTS = 5_000_000

app = typer.Typer(
    cls=Group, help="Dead letters: looked at, and brought back.", no_args_is_help=True, rich_markup_mode=None
)
take_common(app)


@command(app, "list")
def list_(
    options: Options,
    ids: Ids = None,
    reasons: Reasons = None,
    topics: Topics = None,
    headers: Headers = None,
    keys: Keys = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
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
    forgotten (so old that Kafka no longer knows), copy (another dead letter with its id and attempt counts) or unfit.
    Dead letters that were redriven or dismissed (`settle --commit`), and copies, are shown with --all or --state alone.
    When not all was looked at or shown, it says so.

    \b
    Examples:
      reconsume dlq list -o table
      reconsume dlq list --reason http-500 --since 2h --state ready
      reconsume dlq list --contains '"sku": "A-99"' --key customer-7
    """
    letter_filter = filter_of(FilterOptions(ids, reasons, topics, headers, since, until, keys, contains))
    states = states_of(state, everything=everything)
    _, there, policy = open_dlq(options)
    from reconsume.sidecar.dlq.search import search

    result = search(
        there, policy, RedriveRequest(letter_filter, most_redrives), limit, scan, progress_line("matched"), states
    )
    options.output.rows(LIST, [list_row(letter, verdict) for letter, verdict in result.letters], CUT)
    sum_up(result)
    if not result.matched and result.scanned and state is None and not everything:
        talk("no open dead letter matches; --all also looks at those that were redriven or dismissed, and at copies")


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
    _, there, policy = open_dlq(options)
    from reconsume.sidecar.dlq.search import find_id

    result = find_id(there, policy, ident, scan, progress_line("found"))
    expect_letters(result, ident)
    letter_journey, missing = (
        (journey_of(there, result.letters[0][0], events)) if events else ([], "it was not asked for")
    )
    if missing:
        talk(f"the journey is not complete: {missing}")
    print_letters(options, result, letter_journey, decision_on(there, *result.letters[0]))
    return DONE


def decision_on(there: DlqTopics, letter: Letter, verdict: Eligibility) -> Row | None:
    """Return who dismissed a letter, when and why; None if nobody did. The journey forgets it with the events."""
    from reconsume.sidecar.dlq.dismissal import decision_of

    made = decision_of(letter, there.settlements()) if verdict is Eligibility.DISMISSED else None
    return None if made is None else {"who": made.who, "at": clock(made.at), "why": made.why}


def states_of(text: str | None, *, everything: bool) -> frozenset[Eligibility]:
    """Parse `--state`; None selects the open ones, and `everything` all. Raises BadParameter if a state is unknown."""
    if text is None:
        return frozenset(Eligibility) if everything else OPEN
    try:
        return frozenset(Eligibility(word.strip()) for word in text.split(","))
    except ValueError as fault:
        raise typer.BadParameter(f"--state is {', '.join(Eligibility)}") from fault


def sum_up(result: SearchResult) -> None:
    """Print how many letters were scanned, and whether the result is complete."""
    matches = "matches" if result.matched == 1 else "match"
    talk(f"looked at {plural(result.scanned, 'dead letter')}, {result.matched} {matches}")
    if result.cut:
        talk("incomplete: older dead letters were not looked at; --scan looks at more")
    if result.matched > len(result.letters):
        talk(f"incomplete: the newest {len(result.letters)} of {result.matched} are shown; --limit shows more")


def journey_of(there: DlqTopics, letter: Letter, most: int) -> tuple[list[Row], str]:
    """Return the record's events as rows, and the reason why they may be incomplete."""
    from reconsume.sidecar.cli.retries.rows import journey
    from reconsume.sidecar.view.journey import read_journey

    if letter.retry_state is None:
        return [], "the record's id is not known"
    since = letter.retry_state.first_failed_at or None
    scan = read_journey(there.kafka, there.names, letter.id, since, most, lambda _read, _of: None)
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
    for number, (letter, verdict) in enumerate(result.letters):
        decided = [{"field": f"dismissed: {name}", "value": value} for name, value in (decision or {}).items()]
        output.rows(("field", "value"), [*letter_facts(letter, verdict), *(decided if number == 0 else ())])
        value: dict[str, Any] = letter_row(letter, verdict)["value"]
        for line in value["shown"].split("\n") if value["shown"] else ():
            write(printable(line))
        if value["cut"]:
            talk(f"the value goes on; `{hint('dlq export')}` has all of it")
    output.rows(JOURNEY, [for_people(event, Format.TABLE) for event in events], OF_A_JOURNEY)


command(app, "redrive")(back.redrive)
command(app, "export")(keep.export)
command(app, "import")(keep.import_)
command(app, "purge")(keep.purge)
