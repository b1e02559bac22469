"""`view sql`: an operator's SQL, over the view and over tables that are read from Kafka only if the query names them.

`view` is a local copy of the view, read once. `events`, `waiting` and `dead_letters` have the rows, states and words of
`retries show`, `retries list` and `dlq list`, in SQLite's temporary file; each is read once, within the bounds of those
commands, and what is left out is said. Times are ISO texts in UTC, headers a JSON object, and keys and values texts
where they are UTF-8. With `view.source: spark` Spark answers, of tables with the same names and columns
(`spark/tables.py`).

The text is an operator's: it may read these tables, call SQLite's functions, and nothing else.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from reconsume.sidecar.cli.dlq.filters import SCANNED
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.cli.terminal.progress import progress_bar
from reconsume.sidecar.core.record import Record
from reconsume.sidecar.dlq.dead_letters import DeadLetters, LetterScan
from reconsume.sidecar.dlq.letters import Filter, RedriveRequest
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.find.match import RETRIES, state_of
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Span, Topic, led_partitions, unled_text
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.scan import Bounds, ScanClient, partition_of
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.view.copy import reading
from reconsume.sidecar.view.query import Filters, ViewQuery
from reconsume.sidecar.view.records import begins_of
from reconsume.topics.attempt import attempt_of
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.partition import Partition
from reconsume.topics.retry_headers import Headers, RetryState
from reconsume.topics.view_record import ViewRow

# --- the query --------------------------------------------------------------------------------------------------------

Loader: TypeAlias = Callable[[], Iterable[Mapping[str, object]]]
"""A function that reads the rows of a table, by column; what a row does not have is null."""
Loaders: TypeAlias = Mapping[str, Loader]

COLUMNS = tuple(name for name in ViewRow.__struct_fields__ if name != "v")
"""The columns of `view`, with the names of the view topic's JSON."""
TIMES = ("due", "at", "timestamp", "first_failed_at", "last_failed_at", "updated_at")
RECORD = ("id", "topic", "partition", "offset", "reason", "text", "state", "times", "redrives", "cycle")
CONTENT = ("key", "value", "headers")
TABLES = {
    "events": (*RECORD, "first_failed_at", "at"),
    "waiting": (*RECORD, "first_failed_at", "due", *CONTENT),
    "dead_letters": (*RECORD, "first_failed_at", "died_at", *CONTENT),
}
"""The columns of the tables that are read from Kafka."""
LATEST = 253_370_764_800_000
"""Epoch ms of the year 9999."""
ISO = f"CASE WHEN {{0}} BETWEEN 1 AND {LATEST} THEN strftime('%Y-%m-%dT%H:%M:%fZ', {{0}} / 1000.0, 'unixepoch') END"
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


@contextmanager
def answers(path: Path, query: str, loaders: Loaders) -> Iterator[tuple[tuple[str, ...], Iterator[dict[str, object]]]]:
    """Yield the names of the columns, and the rows as they come. `path`: the file of the copy.

    Raises ReconsumeError with SQLite's sentence, also while the rows are read, and what a loader raises.
    """
    address = f"file:{quote(str(path))}?mode=ro"
    with reading(path), closing(sqlite3.connect(address, uri=True)) as connection:
        with telling_faults():
            _define_view(connection)
            for name, columns in TABLES.items():
                connection.execute(f"CREATE TEMP TABLE {name} ({', '.join(map(_quoted, columns))})")
            wanted = _tables_in(connection, query)
        for name in sorted(wanted & loaders.keys()):
            places = ", ".join("?" * len(TABLES[name]))
            values = ([_plain(row.get(column)) for column in TABLES[name]] for row in loaders[name]())
            connection.executemany(f"INSERT INTO temp.{name} VALUES ({places})", values)
        with telling_faults():
            connection.set_authorizer(_read_only)
            cursor = connection.execute(query)
            names = distinct([column[0] for column in cursor.description or ()])
            yield names, (dict(zip(names, map(_printed, row), strict=True)) for row in cursor)


def _define_view(connection: sqlite3.Connection) -> None:
    fields = {name: f"json_extract(CAST(value AS TEXT), '$.{name}')" for name in COLUMNS}
    texts = (f"{ISO.format(field) if name in TIMES else field} AS {_quoted(name)}" for name, field in fields.items())
    connection.execute(f'CREATE TEMP VIEW "view" AS SELECT {", ".join(texts)} FROM main.message')


def _tables_in(connection: sqlite3.Connection, query: str) -> set[str]:
    """Return the tables that a query reads, which SQLite knows once it has compiled it."""
    named = set[str]()

    def note(action: int, first: str | None, *_others: str | None) -> int:
        if action == sqlite3.SQLITE_READ and first:
            named.add(first)
        return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY

    connection.set_authorizer(note)
    try:
        # Compiled, and run to its first row, of empty tables.
        connection.execute(f"SELECT 1 FROM ({query.strip().rstrip(';')}) LIMIT 0")
    except sqlite3.Error:
        connection.execute(query)  # its own error, and not that of the text around it
    finally:
        connection.set_authorizer(None)
    return named


@contextmanager
def telling_faults() -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as fault:
        raise ReconsumeError(f"the query failed: {fault}") from fault


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the column names with a number added to a repeated one, as Spark's query does."""
    counts: Counter[str] = Counter()
    distinct_names = []
    for name in names:
        counts[name] += 1
        distinct_names.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return tuple(distinct_names)


def iso(ms: int) -> str | None:
    """Return epoch ms as an ISO text in UTC; None if it is no time that a person can read."""
    if not 1 <= ms <= LATEST:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def headers_json(headers: Headers | None) -> str | None:
    """Return headers as a JSON object: of a name the last; what is not UTF-8 in hexadecimal digits."""
    if headers is None:
        return None
    values = {name: None if value is None else _text(value) for name, value in headers}
    return json.dumps({name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()})


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _plain(value: object) -> object:
    """Return a value as it is put into a table."""
    if isinstance(value, bytes):
        return _text(value)
    return str(value) if isinstance(value, State) else value


def _printed(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _quoted(name: str) -> str:
    return f'"{name}"'


def _read_only(action: int, *_names: str | None) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


# --- the tables -------------------------------------------------------------------------------------------------------

CLIENT = "reconsume-sql"
MOST_EVENTS = 2_000_000
"""Events that are read at most, the newest; as many as the view reads for a command."""
MOST_COPIES = 1_000_000
"""Records of the retry topics that are read at most, the newest."""

_ROW = msgspec.json.Decoder(ViewRow)


class SqlTables:
    """Reads the tables of one group. `ask`: queries of the view, which says what waits."""

    def __init__(self, settings: Settings, ask: ViewQuery) -> None:
        self._settings, self._ask = settings, ask
        self._cluster = Cluster(settings.kafka, CLIENT)

    def events(self) -> Iterator[Mapping[str, object]]:
        """Yield the group's events. Raises BrokerError."""
        topics = self._cluster.existing([self._settings.names.events])
        for record in self._records(topics, MOST_EVENTS, "events"):
            event = decode_event(record.value)
            if isinstance(event, Event) and event.group == self._settings.group:
                yield {**_fields(event), "at": iso(event.at)}

    def waiting(self) -> Iterator[Mapping[str, object]]:
        """Yield the records that wait, with what the copy of their present attempt has. Raises BrokerError."""
        rows: dict[str, ViewRow] = {}
        for state in (State.WAITING_RETRY, State.REDRIVEN):
            rows |= {row.id: row for row in map(_ROW.decode, self._ask.every_message(Filters(state=state)))}
        names, mains = self._settings.names, self._settings.topic_names
        roles = {name: names.role(name, mains) for name in self._cluster.topic_names()}
        retried = [name for name, role in roles.items() if role is not None and role.kind in RETRIES]
        topics, _ = self._cluster.topics(retried)
        contents: dict[str, Mapping[str, object]] = {}
        for record in self._records(topics, MOST_COPIES, "copies") if rows else ():
            copy = state_of(record)
            if copy is not None and copy.id in rows and attempt_of(copy) == attempt_of(rows[copy.id]):
                contents[copy.id] = _content(record)
        words = {State.REDRIVEN: "redriven", State.WAITING_RETRY: "waiting"}
        for ident, row in rows.items():
            word = "parked" if row.state is State.WAITING_RETRY and not row.due else words[row.state]
            yield {**_fields(row), "state": word, "due": iso(row.due), **contents.get(ident, {})}

    def dead_letters(self) -> Iterator[Mapping[str, object]]:
        """Yield the dead letters. Raises BrokerError and ContractError."""
        letters = DeadLetters(self._cluster, build_policy(self._settings, CLIENT), talk)
        with progress_bar("dead letters") as report:
            with LetterScan(letters, RedriveRequest(Filter()), report, most=SCANNED) as scan:
                for letter, verdict in scan:
                    text = letter.text or letter.fault or None
                    said = {"id": letter.id, "reason": letter.reason or None, "text": text, "state": str(verdict)}
                    died = {"died_at": iso(letter.record.timestamp)}
                    yield {**_fields_of_copy(letter.retry_state), **said, **died, **_content(letter.record)}
            if scan.cut:
                talk(f"incomplete: dead_letters has the newest {SCANNED}")

    def _records(self, topics: Mapping[str, Topic], most: int, what: str) -> Iterator[Record]:
        """Yield the newest records of topics. Say what is left out."""
        there = self._cluster.spans(led_partitions(topics.values()))
        begins = begins_of(there, most)
        spans = {partition: Span(begins[partition], span.end) for partition, span in there.items()}
        settings = self._settings
        with progress_bar(what) as report, ScanClient(settings.kafka, settings.names.retry_group, CLIENT) as client:
            for message in client.scan(spans, Bounds(ANSWER_SECONDS), expected=f"the {what}", report=report):
                yield to_record(message, Partition(*partition_of(message)), 0, None)
        if any(begin > there[partition].begin for partition, begin in begins.items()):
            talk(f"incomplete: of the {what} only the newest {most} were read")
        if unled := unled_text(topics.values()):
            talk(f"incomplete: {unled}")


def _fields(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "reason": event.reason or None,
        "text": event.text or None,
        "state": event.state,
        "times": event.times,
        "redrives": event.redrives,
        "cycle": event.cycle,
        "first_failed_at": iso(event.first_failed_at),
    }


def _fields_of_copy(state: RetryState | None) -> dict[str, Any]:
    """Return what the headers of a copy say; nothing if they cannot be read."""
    if state is None:
        return {}
    topic, partition, offset = state.id.rsplit(":", 2)
    first = {"topic": topic, "partition": int(partition), "offset": int(offset)}
    counts = {"times": state.times, "redrives": state.redrives, "cycle": state.cycle}
    return {**first, **counts, "first_failed_at": iso(state.first_failed_at)}


def _content(record: Record) -> dict[str, object]:
    return {"key": record.key, "value": record.value, "headers": headers_json(record.headers)}
