"""The table of what has happened, written in the same transaction as the effect: SQLite and PostgreSQL.

The primary key does the work. Of two transactions that insert the same key, the second waits for the end of the
first: it is told of the row when that was a commit, and inserts its own when that was a rollback or a death.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Protocol

from once.key import DeliveryKey

DDL = (
    "CREATE TABLE IF NOT EXISTS reconsume_once (consumer_group VARCHAR(249) NOT NULL, record_id VARCHAR(280) NOT NULL,"
    " redrives INTEGER NOT NULL, done_at BIGINT NOT NULL, PRIMARY KEY (consumer_group, record_id, redrives))",
    "CREATE INDEX IF NOT EXISTS reconsume_once_done_at ON reconsume_once (done_at)",
)
"""For the service's migrations; `done_at` is in epoch ms."""

INSERT = "INSERT INTO reconsume_once (consumer_group, record_id, redrives, done_at) VALUES (%s, %s, %s, %s)"
IDLE, IN_ERROR = 0, 3  # libpq's transaction status


class Connection(Protocol):
    """What is used of a DB-API 2.0 connection."""

    def cursor(self) -> Any: ...
    def commit(self) -> object: ...
    def rollback(self) -> object: ...


@contextmanager
def once(connection: Connection, key: DeliveryKey) -> Iterator[bool]:
    """True inside when the effect is still to be made; commits at the end, rolls back on any exception.

    RuntimeError in autocommit mode or when the transaction cannot be committed; else what the database raises. After
    an exception do not answer 2xx: the record is to come again.
    """
    # Some drivers' `commit` does nothing in this mode, even where a transaction was begun by hand.
    if not begins(connection):
        raise RuntimeError("the connection is in autocommit mode: take another, or `claim` in a transaction")
    try:
        yield claim(connection, key)
        # PostgreSQL takes COMMIT here for ROLLBACK, without an error: the record would be answered for, and lost.
        if status(connection) == IN_ERROR:
            raise RuntimeError("a statement of this transaction has failed, so it cannot be committed")
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def claim(connection: Connection, key: DeliveryKey) -> bool:
    """Record the key in the caller's own transaction, before the effect; False when the effect has happened.

    Waits while another transaction makes the same effect. RuntimeError when every statement commits itself.
    """
    if not begins(connection) and not is_open(connection):
        raise RuntimeError("the connection is in autocommit mode and no transaction is open: begin one first")
    values = (key.group, key.id, key.redrives, time.time_ns() // 1_000_000)
    rows = execute(connection, f"{INSERT} ON CONFLICT DO NOTHING", values)
    if rows not in (0, 1):
        raise RuntimeError(f"the driver says that {rows} rows were inserted, so nobody knows whether one was")
    return rows == 1


def create_table(connection: Connection) -> None:
    """Make the table where it is missing, and commit."""
    for statement in DDL:
        execute(connection, statement)
    connection.commit()


def forget(connection: Connection, older_than: timedelta) -> int:
    """Delete what happened longer ago, and commit; how many. A record forgotten too early can happen again."""
    limit = time.time_ns() // 1_000_000 - older_than // timedelta(milliseconds=1)
    rows = execute(connection, "DELETE FROM reconsume_once WHERE done_at < %s", (limit,))
    connection.commit()
    return rows


def execute(connection: Connection, sql: str, values: tuple[object, ...] = ()) -> int:
    """Run one statement; the rows it changed."""
    if isinstance(connection, sqlite3.Connection):
        sql = sql.replace("%s", "?")
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def begins(connection: Connection) -> bool:
    """Whether the driver opens a transaction by itself, which is what DB-API 2.0 asks for."""
    # SQLite's connections have `autocommit` since Python 3.12; where it is True, `isolation_level` says nothing.
    if getattr(connection, "autocommit", False) is True:
        return False
    return not isinstance(connection, sqlite3.Connection) or connection.isolation_level is not None


def is_open(connection: Connection) -> bool:
    """Whether a transaction is open, as far as the driver tells."""
    return bool(getattr(connection, "in_transaction", False)) or status(connection) != IDLE


def status(connection: Connection) -> int:
    """The transaction status as psycopg tells it; IDLE for drivers that do not."""
    return int(getattr(getattr(connection, "info", None), "transaction_status", IDLE))
