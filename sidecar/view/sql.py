"""An operator's SQL over the local copy of the view."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.view.copy import reading
from reconsume.topics.view_record import ViewRow

COLUMNS = tuple(name for name in ViewRow.__struct_fields__ if name != "v")
"""The columns of the table, with the names and values of the view topic's JSON."""
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


@contextmanager
def answers(path: Path, query: str) -> Iterator[tuple[tuple[str, ...], Iterator[dict[str, object]]]]:
    """Yield the names of the columns, and the rows as they come.

    Raises ReconsumeError with SQLite's sentence, also while the rows are read.
    """
    address = f"file:{quote(str(path))}?mode=ro"
    with reading(path), closing(sqlite3.connect(address, uri=True)) as connection, telling_faults():
        fields = ", ".join(f"json_extract(CAST(value AS TEXT), '$.{name}') AS \"{name}\"" for name in COLUMNS)
        connection.execute(f'CREATE TEMP VIEW "view" AS SELECT {fields} FROM main.message')
        connection.set_authorizer(_read_only)
        cursor = connection.execute(query)
        names = distinct([column[0] for column in cursor.description or ()])
        yield names, (dict(zip(names, map(_plain, row), strict=True)) for row in cursor)


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


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _read_only(action: int, *_names: str | None) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY
