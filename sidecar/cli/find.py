"""`find`, and the searches of `retries list --key` and `retries show --value`: what is not done, by its content."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reconsume.sidecar.cli.dlq.rows import print_value, summary_of
from reconsume.sidecar.cli.terminal.arguments import before, optional_record_id
from reconsume.sidecar.cli.terminal.exit_codes import DONE, PARTLY
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format, Row, clock, talk, write
from reconsume.sidecar.cli.terminal.progress import progress_bar
from reconsume.sidecar.dlq.letters import MOST_REDRIVES, Eligibility, fault_of_text
from reconsume.sidecar.dlq.preview import preview, snippet
from reconsume.sidecar.find.match import EVERY_FIELD, RETRIES, Field, Match, Query, Where, origin_in
from reconsume.sidecar.hints import hint, not_ours
from reconsume.sidecar.printable import plural, printable
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.names import Kind

if TYPE_CHECKING:
    from reconsume.sidecar.find.finder import FindResult, SearchBounds

CLIENT = "reconsume-find"
LONGEST = 1_800.0
"""Seconds that one search may take."""
LIMIT = 100
MOST_BYTES = 1024 * 1024 * 1024
SNIPPET = 120
"""Characters that are shown of a key or a value."""
COLUMNS = ("id", "where", "why", "due", "reason", "key", "value", "times", "topic", "at", "position")
CUT = ("reason", "key", "value")
"""Columns of long texts, which a narrow table cuts."""

KeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="The record's whole key, as text.")]


def find(
    options: Options,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT", help="What a key, a value or a header contains; may be left out with another condition."
        ),
    ] = None,
    key: KeyOption = None,
    ident: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="The record's whole id, like orders:3:1024.", callback=optional_record_id
        ),
    ] = None,
    fields: Annotated[
        list[Field] | None, typer.Option("--in", help="Search TEXT in this part alone; may be repeated.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Records of this main topic.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Written since: 1h ago, say, or at an RFC 3339 time."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many, the newest.")] = LIMIT,
    most_bytes: Annotated[
        int, typer.Option("--max-bytes", min=1, metavar="N", help="Read at most so many bytes, the newest records.")
    ] = MOST_BYTES,
) -> int:
    """Find a record that is not done, wherever it is.

    Searches what the group has not delivered of its main topics, and all that waits: levels, queues, the ready topic
    and dead letters that were neither redriven nor dismissed. The newest records come first. Each match says where it
    is, why it waits, when it is due, and which command acts on it.

    TEXT is compared byte by byte, as UTF-8; Reconsume's own headers are not searched. --key and --id are whole and
    exact. A record must meet all that is given. TEXT may be left out with --key, --id or --topic: `find --topic orders`
    lists what is not done of that topic.

    Ends with 0 whether or not something is found, and with 3 if something was left out: because of --limit or
    --max-bytes, or a topic that cannot be read, which is said.

    \b
    Examples:
      reconsume find customer-7 -o table
      reconsume find '"sku": "A-99"' --in value --since 2h
      reconsume find --key customer-7 --topic orders
      reconsume find --topic orders -o table
    """
    query = query_of(text, key, ident, fields, topic, None if since is None else before(since, "--since"))
    result = search(settings_for_kafka(options), query, limit, most_bytes)
    return print_found(options, result)


def query_of(
    text: str | None,
    key: str | None,
    ident: str | None = None,
    fields: Sequence[Field] | None = None,
    topic: str | None = None,
    since: int | None = None,
) -> Query:
    """Return the conditions of a search. Raises BadParameter if one is invalid, or there is none."""
    if text is None and key is None and ident is None and topic is None:
        raise typer.BadParameter("give a TEXT, --key, --id or --topic: what is to be found?")
    if fields and text is None:
        raise typer.BadParameter("--in says where TEXT is searched, and there is no TEXT")
    for condition in (text, key):
        if condition is not None and (fault := fault_of_text(condition)):
            raise typer.BadParameter(fault)
    return Query(
        None if text is None else text.encode(),
        None if key is None else key.encode(),
        ident,
        frozenset(fields or EVERY_FIELD),
        topic,
        since,
    )


def search(
    settings: Settings, query: Query, limit: int = LIMIT, most_bytes: int = MOST_BYTES, *, whole: bool = False
) -> FindResult:
    """Search, with a progress bar. Raises BadParameter if the group does not have the topic, BrokerError and
    ContractError."""
    from reconsume.sidecar.find.finder import (  # the Kafka client is slow to import, and --help needs none
        SearchBounds,
        find,
    )

    if query.topic is not None and query.topic not in settings.topic_names:
        raise typer.BadParameter(not_ours(query.topic, settings.topic_names))
    bounds: SearchBounds = SearchBounds(limit, most_bytes, time.monotonic() + LONGEST)
    with progress_bar("offsets searched") as tell:
        return find(settings, build_policy(settings, CLIENT), query, bounds, tell, values=True, whole=whole)


def retries_query(
    text: str | None, key: str | None, topic: str | None, *, state: str, others: Sequence[object]
) -> Query:
    """Return the search of `retries list --key` and `--contains`: it is about what waits for a retry. Raises
    BadParameter."""
    if state or any(others):
        raise typer.BadParameter(
            "--key and --contains go with --topic and --limit alone: they search what waits in the retry topics"
        )
    return query_of(text, key, topic=topic)._replace(kinds=RETRIES)


def print_found(options: Options, result: FindResult) -> int:
    """Print the matches and what was left out; return the exit code."""
    rows = [row_of(match) for match in result.matches]
    is_table = options.output.format is Format.TABLE
    options.output.rows(COLUMNS if is_table else (*COLUMNS, "command"), rows, CUT)
    for row in rows if is_table else ():
        write(printable(row["command"]))  # below the table, where no column folds it: it is copied to a shell
    count = plural(len(rows), "record") if rows else "nothing"
    talk(f"{count} found; {plural(result.records, 'record')} read, {result.size} bytes")
    if not rows:
        talk("records that are done are not searched")
    for sentence in result.left_out:
        talk(f"incomplete: {sentence}")
    return PARTLY if result.left_out else DONE


def row_of(match: Match) -> dict[str, Any]:
    """Return a match as a row."""
    return {
        "id": match.id,
        "where": str(match.where),
        "due": clock(match.due) if match.due else None,
        "reason": match.reason,
        "key": None if match.key is None else snippet(match.key, SNIPPET),
        "command": command_of(match),
        "value": None if match.value is None else snippet(match.value, SNIPPET),
        "why": match.why,
        # Retries in place are counted in the memory of the instance, whose heartbeat names only the oldest records.
        "times": None if match.where is Where.UNDELIVERED and not match.times else match.times,
        "redrives": match.redrives,
        "topic": match.topic,
        "at": clock(match.at) if match.at else None,
        "position": match.position,
    }


def command_of(match: Match) -> str:
    """Return the command that acts on a record; one that shows it where none does."""
    return hint(shlex.join(_words(match)))


def _words(match: Match) -> list[str]:
    redrive = ["dlq", "redrive", "--id", match.id]
    match match.where, match.verdict:
        case Where.DEAD, Eligibility.READY:
            return redrive
        case Where.DEAD, Eligibility.QUARANTINED:
            return [*redrive, "--max-redrives", str(max(match.redrives, MOST_REDRIVES) + 1)]
        case Where.DEAD, Eligibility.FORGOTTEN:
            return [*redrive, "--forgotten"]
        case Where.DEAD, _:
            return ["dlq", "show", match.position]
        case Where.PARKED, _:
            return ["settle", match.id, "--retry-now", "--why", "..."]
        case _:
            return ["retries", "show", match.id, "--value"]


class Located(NamedTuple):
    """Where a record that is not done is, as fields of a row; empty if it is done, or nobody has it.

    `copy`: the key and the value of its newest copy; of a record that is done, those in its main topic.
    """

    where: Row
    copy: Row | None


def locate(settings: Settings, ident: str) -> Located:
    """Search every topic for the newest copy of a record. Raises BrokerError and ContractError."""
    copy_found = located_in(settings, Query(id=ident))
    if copy_found.copy is not None:
        return copy_found
    done = located_in(settings, Query(id=ident, kinds=frozenset({Kind.MAIN}), done=True))
    return done._replace(where={})


def locate_in_main(settings: Settings, ident: str) -> Located:
    """Look for a record that is not done in its main topic alone, of which one record is read. Raises as `locate`."""
    return located_in(settings, Query(id=ident, kinds=frozenset({Kind.MAIN})))


def is_done(settings: Settings, ident: str) -> bool:
    """Return whether a record of a main topic is done by the group's progress. Raises BrokerError."""
    from reconsume.sidecar.kafka.admin.cluster import Cluster  # imports the Kafka client, as in `search`

    topic, number, offset = origin_in(ident) or ("", 0, 0)
    if topic not in settings.topic_names or settings.deliver.broadcast:
        return False
    progress = Cluster(settings.kafka, CLIENT).progress(settings.group, [(topic, number)])
    return any(one.covers(offset) for one in progress.values())


def located_in(settings: Settings, query: Query) -> Located:
    """Return the newest record that a search finds, and warn of what it left out. Raises as `locate`."""
    result = search(settings, query, 1, whole=True)
    for sentence in result.left_out:
        talk(f"warning: {sentence}")
    if not result.matches:
        return Located({}, None)
    [newest] = result.matches
    where = {"where": str(newest.where), "why": newest.why, "position": newest.position}
    return Located(where, copy_row(newest.position, newest.key, newest.value))


def copy_row(position: str, key: bytes | None, value: bytes | None) -> Row:
    """Return the key and the value of a copy as a row."""
    return {"position": position, "key": None if key is None else snippet(key, SNIPPET), "value": preview(value)}


def print_copy(options: Options, copy: Row) -> None:
    """Print a copy for people: where it is, its key, and its value as JSON, text or hexadecimal digits."""
    value: Any = copy["value"]
    facts = {"copy": copy["position"], "key": copy["key"], "value": summary_of(value)}
    options.output.rows(("field", "value"), [{"field": name, "value": text} for name, text in facts.items()])
    print_value(value, "only the beginning of the value is shown")
