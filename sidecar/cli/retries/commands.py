"""`retries list`, `show`, `stats`: the group-wide view, read from Kafka in either of its forms."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.find import (
    LIMIT,
    KeyOption,
    Located,
    is_done,
    locate,
    locate_in_main,
    print_copy,
    print_found,
    retries_query,
    search,
)
from reconsume.sidecar.cli.retries.blocked import (
    NOT_DONE,
    beside_list,
    list_blocked,
    read_retried,
    refuse_with_blocked,
)
from reconsume.sidecar.cli.retries.rows import (
    CUT,
    JOURNEY,
    LIST,
    STATS,
    facts,
    for_people,
    journey,
    row_of,
    sums_row,
    tried_of,
    whole_view,
)
from reconsume.sidecar.cli.terminal.arguments import ahead, duration, record_id
from reconsume.sidecar.cli.terminal.exit_codes import DONE
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Format, Row, talk
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.cli.terminal.progress import progress_bar
from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import RecordError
from reconsume.sidecar.hints import hint, not_ours
from reconsume.sidecar.printable import printable
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import State

if TYPE_CHECKING:
    from reconsume.sidecar.settings import Settings
    from reconsume.sidecar.view.query import Filters

MOST_SCANNED = 5_000_000
ALL = "all"
LISTS: dict[str, tuple[State | None, ...]] = {ALL: (None,), NOT_DONE: (State.REDRIVEN, State.WAITING_RETRY)}
"""The states that `--state` lists one after the other, by its words that are no state."""

app = typer.Typer(cls=Group, help="What is in retry, in the whole group.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)

StateOption = Annotated[
    str,
    typer.Option(
        "--state", metavar="STATE", help=f"{', '.join(State)}, {ALL}, or {NOT_DONE}: WAITING_RETRY and REDRIVEN."
    ),
]
TopicOption = Annotated[str | None, typer.Option("--topic", help="Records of this main topic.")]
LevelOption = Annotated[str | None, typer.Option("--level", metavar="DELAY", help="Records in this level, like 10s.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Records that failed last for this reason's class.")]
MostOption = Annotated[
    int | None,
    typer.Option("--most", min=1, help="Read at most so many events, the newest, where the view is made from them."),
]
DueOption = Annotated[
    str | None,
    typer.Option("--due-before", metavar="WHEN", help="Due before this: in 10m, say, or at an RFC 3339 time."),
]


@command(app, "list")
def list_(
    options: Options,
    state: StateOption = NOT_DONE,
    topic: TopicOption = None,
    level: LevelOption = None,
    reason: ReasonOption = None,
    due_before: DueOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many; all by default.")] = None,
    most: MostOption = None,
    blocked: Annotated[
        bool, typer.Option("--blocked", help="The keys that wait in the queue topics of an ordered group.")
    ] = False,
    key: KeyOption = None,
    contains: Annotated[
        str | None, typer.Option("--contains", metavar="TEXT", help="A key, a value or a header contains this text.")
    ] = None,
) -> int:
    """List the records in retry.

    What is due first comes first; before it, records that were redriven and are not done yet. With -o jsonl each line
    is one value of the view, as it lies in the topic. Without Spark's view (view.source) it is made from the events,
    which are read once. With --blocked the queue topics are read instead: one row for each key, with its first record,
    and how many are behind that one; before them, records that are retried in place, which are in no queue. With --key
    or --contains the copies in the retry topics are searched, as by `find`, which finds undelivered records and dead
    letters, too.

    \b
    Examples:
      reconsume retries list -o table
      reconsume retries list --key customer-7
      reconsume retries list --state DLQ --reason http-500 -o jsonl
      reconsume retries list --blocked -o table
    """
    if key is not None or contains is not None:
        changed = "" if state == NOT_DONE else state
        query = retries_query(contains, key, topic, state=changed, others=(level, reason, due_before, most, blocked))
        return print_found(options, search(settings_for_kafka(options), query, limit or LIMIT))
    if blocked:
        refuse_with_blocked(state, level, reason, due_before)
        list_blocked(options, topic, limit, most)
        return DONE
    filters = filters_of(state, topic, level, reason, due_before)
    settings = settings_for_kafka(options)
    if topic is not None and topic not in settings.topic_names:
        talk(f"warning: {not_ours(topic, settings.topic_names)}")
    retried = read_retried(settings) if settings.order_by is not None else None
    with whole_view(settings, Source(settings.view.source), most) as look, look.questions() as ask:
        values = islice(chain.from_iterable(ask.every_message(one, limit) for one in filters), limit)
        rows = (for_people(row_of(value), options.output.format, retried) for value in values)
        options.output.rows(LIST, rows, CUT)
    waits = any(one.state in (None, State.WAITING_RETRY) for one in filters)
    if retried is not None and waits and (beside := beside_list(settings, retried)):
        talk(beside)
    return DONE


@command(app, "show")
def show(
    options: Options,
    record: Annotated[
        str, typer.Argument(metavar="ID", help="The record's id, like orders:3:1024.", callback=record_id)
    ],
    most: Annotated[
        int, typer.Option("--most", min=1, help="Read at most so many records of the events topic.")
    ] = MOST_SCANNED,
    with_value: Annotated[
        bool, typer.Option("--value", help="Show key and value, too: of its newest copy, or from its main topic.")
    ] = False,
) -> int:
    """Show one record and its journey.

    The view says where the record is. The journey is its events: when it failed, why, and how long it waited. They are
    read from the events topic, which keeps them for a week, so the journey of an older record is not complete; then
    that is said. A record without events is looked for in its main topic: it is done, or it is in flight or retried in
    place. With --value the newest copy of the record is searched, as by `find`; of a record that is done, the one in
    the main topic, while that still has it.

    \b
    Examples:
      reconsume retries show orders:3:1024 -o table
      reconsume retries show orders:3:1024 --value
    """
    from reconsume.sidecar.kafka.admin.cluster import Cluster
    from reconsume.sidecar.view.journey import read_journey

    settings = settings_for_kafka(options)
    most_of_view = None if most == MOST_SCANNED else most
    with whole_view(settings, Source(settings.view.source), most_of_view) as look, look.questions() as ask:
        value = ask.message(record)
    row = {} if value is None else row_of(value)
    with progress_bar("events") as progress:
        since = row.get("first_failed_at")
        scan = read_journey(Cluster(settings.kafka), settings.names, record, since, most, progress)
    has_failed = bool(row or scan.events)
    located = locate(settings, record) if with_value else Located({}, None)
    if not with_value and not has_failed and not settings.deliver.broadcast:
        located = locate_in_main(settings, record)
        if not located.where and settings.deliver.order != "none":
            located = locate(settings, record)  # a record behind another of its key is in a queue, and has no event
    where, copy = located.where, located.copy if with_value else None
    if row and settings.order_by is not None and (one := tried_of(row, read_retried(settings))) is not None:
        row["why"] = one.fails_in_queue(wall())
    if not has_failed:
        row = dict(row_without_events(settings, record, where, scan.missing, has_copy=copy is not None))
    elif not row:
        talk("warning: the view does not have it (yet, or any more); this is what the events say")
    if scan.missing:
        talk(f"warning: the journey is not complete: {scan.missing}")
    if with_value and copy is None:
        talk("warning: its value is not there any more: neither a copy of it nor its main topic has it")
    print_record(options, record, row, list(journey(scan.events)), scan.missing, copy)
    return DONE


@command(app, "stats")
def stats(
    options: Options,
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="How far back.")] = "1h",
    most: MostOption = None,
) -> None:
    """Show the sums by minute, topic, level and reason.

    They are counted from the events, also where a Spark job writes the view. The running minute is among them.

    \b
    Example:
      reconsume retries stats --since 2h -o table
    """
    span = duration(since, "--since")
    settings = settings_for_kafka(options)
    with whole_view(settings, Source(settings.view.source), most, with_sums=True) as look, look.questions() as ask:
        form = options.output.format
        options.output.rows(STATS, (for_people(sums_row(value), form) for value in ask.every_sum(wall() - span)), CUT)


def row_without_events(settings: Settings, record: str, where: Row, missing: str, *, has_copy: bool) -> Row:
    """Return the row of a record of which neither the view nor the events have a failure, and say what is known of it.

    `where`: where it is, empty if it is done or not found. `missing`: why there may be more events. `has_copy`: its
    value was found. Raises RecordError if there is no such record.
    """
    if where:
        talk(f"it is not done ({where['why']}); neither the view nor the events have a failure of it")
        return {"id": record, "state": None, **where}
    if is_done(settings, record):
        talk(done_text(settings, record, missing))
        return {"id": record, "state": None, "where": "done"}
    if has_copy:
        return {}
    more = f"; {missing}" if missing else ""
    if settings.queued and settings.order_by == "key":
        more += f"; what waits behind another of its key has no event: `{hint('find --key KEY')}`"
    raise RecordError(f"there is no record {printable(record)}: neither the view nor the events have it{more}")


def done_text(settings: Settings, record: str, missing: str) -> str:
    """Return the sentence about a record that is done and has no events. `missing`: why there may be more events."""
    if missing:
        return f"{record} is done; whether it ever failed is not known: {missing}"
    if settings.deliver.order != "none":
        return f"{record} is done, and no failure of it was recorded: retries in place have no events"
    return f"{record} is done, and never failed"


def filters_of(state: str, topic: str | None, level: str | None, reason: str | None, due: str | None) -> list[Filters]:
    """Build the filters of one list after the other from the options. Raises BadParameter if the state is unknown."""
    from reconsume.sidecar.view.query import Filters

    if state.upper() in list(State):
        wanted: tuple[State | None, ...] = (State(state.upper()),)
    elif state.lower() in LISTS:
        wanted = LISTS[state.lower()]
    else:
        raise typer.BadParameter(f"--state is {', '.join((*State, ALL))} or {NOT_DONE}")
    due_before = None if due is None else ahead(due, "--due-before")
    return [Filters(one, level, topic, reason, due_before) for one in wanted]


def print_record(
    options: Options, record: str, row: Row, events: list[Row], missing: str, copy: Row | None = None
) -> None:
    """Print the view's value and the journey: tables for people, only the journey in TSV, one object in JSON.

    `copy`: the copy whose value is shown, if it was asked for.
    """
    output = options.output
    match output.format:
        case Format.TABLE:
            output.rows(("field", "value"), facts(row))
            output.rows(JOURNEY, [for_people(event, Format.TABLE) for event in events], CUT)
            if copy is not None:
                print_copy(options, copy)
        case Format.TSV:
            output.rows(JOURNEY, events)
        case _:
            beside = {"journey": events, "journey_complete": not missing, **({} if copy is None else {"copy": copy})}
            output.rows((), [{**(row or {"id": record, "state": None}), **beside}])
