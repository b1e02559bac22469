"""The table of effects that have happened, written in the transaction of the effect: SQLite, PostgreSQL and MySQL.

The primary key ensures that each effect happens once. If two transactions insert the same key, the second waits until
the first ends. After a commit the second finds the row. After a rollback or a crash it inserts its own.

MySQL and MariaDB have no ON CONFLICT, so there the INSERT is plain, and the error of a duplicate key says that the row
is there. INSERT IGNORE would pass over other errors too.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Protocol

from .key import DeliveryKey, ProducerKey

DDL = (
    "CREATE TABLE IF NOT EXISTS reconsume_once (consumer_group VARCHAR(249) NOT NULL, record_id VARCHAR(280) NOT NULL,"
    " cycle INTEGER NOT NULL, redrives INTEGER NOT NULL, done_at BIGINT NOT NULL,"
    " PRIMARY KEY (consumer_group, record_id, cycle, redrives))",
    "CREATE INDEX IF NOT EXISTS reconsume_once_done_at ON reconsume_once (done_at)",
)
"""Statements for the service's migrations. `done_at` is in epoch ms."""

MYSQL_DDL = (
    "CREATE TABLE IF NOT EXISTS reconsume_once ("
    "consumer_group VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,"
    " record_id VARCHAR(280) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,"
    " cycle INTEGER NOT NULL, redrives INTEGER NOT NULL, done_at BIGINT NOT NULL,"
    " PRIMARY KEY (consumer_group, record_id, cycle, redrives), INDEX (done_at)) ENGINE = InnoDB",
)
"""The same for MySQL and MariaDB: usual collations would take two keys for one; other engines have no transactions."""
MYSQL_DRIVERS = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb"})
"""The packages whose connections are to MySQL or MariaDB."""
DUPLICATE_KEY = 1062
IN_TRANSACTION = 1
"""The bit of MySQL's server status that says so."""

INSERT = "INSERT INTO reconsume_once (consumer_group, record_id, cycle, redrives, done_at) VALUES (%s, %s, %s, %s, %s)"
IDLE, IN_ERROR = 0, 3  # libpq's transaction status


class Connection(Protocol):
    """The part of a DB-API 2.0 connection that is used."""

    def cursor(self) -> Any: ...
    def commit(self) -> object: ...
    def rollback(self) -> object: ...


@contextmanager
def once(connection: Connection, key: DeliveryKey | ProducerKey) -> Iterator[bool]:
    """Yield True if the effect must still be made. Commit at the end, and roll back on any exception.

    Raises RuntimeError in autocommit mode, or if the transaction cannot be committed; otherwise the database's
    exceptions. After an exception do not answer 2xx: the record must be delivered again.
    """
    # The `commit` of some drivers does nothing in this mode, even if a transaction was begun by hand.
    if not begins(connection):
        raise RuntimeError("the connection is in autocommit mode: take another, or `claim` in a transaction")
    try:
        yield claim(connection, key)
        # Here PostgreSQL runs ROLLBACK for COMMIT, without an error. The record would be answered, and its effect lost.
        if status(connection) == IN_ERROR:
            raise RuntimeError("a statement of this transaction has failed, so it cannot be committed")
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def claim(connection: Connection, key: DeliveryKey | ProducerKey) -> bool:
    """Record the key in the caller's own transaction, before the effect. Return False if the effect has happened.

    It waits while another transaction makes the same effect. Raises RuntimeError if every statement commits itself, or
    if the driver does not report one inserted row or none.
    """
    if not begins(connection) and not is_open(connection):
        raise RuntimeError("the connection is in autocommit mode and no transaction is open: begin one first")
    values = (*key.row, time.time_ns() // 1_000_000)
    if is_mysql(connection):
        try:
            rows = execute(connection, INSERT, values)
        except Exception as error:
            if error_number(error) != DUPLICATE_KEY:
                raise
            rows = 0  # the statement alone has failed: the transaction goes on
    else:
        rows = execute(connection, f"{INSERT} ON CONFLICT DO NOTHING", values)
    if rows not in (0, 1):
        raise RuntimeError(f"the driver says that {rows} rows were inserted, so nobody knows whether one was")
    return rows == 1


def create_table(connection: Connection) -> None:
    """Create the table if it is missing, and commit."""
    for statement in MYSQL_DDL if is_mysql(connection) else DDL:
        execute(connection, statement)
    connection.commit()


def forget(connection: Connection, older_than: timedelta) -> int:
    """Delete the keys of effects that happened longer ago, and commit. Return their number.

    If a key is deleted too early, its effect can happen again.
    """
    limit = time.time_ns() // 1_000_000 - older_than // timedelta(milliseconds=1)
    rows = execute(connection, "DELETE FROM reconsume_once WHERE done_at < %s", (limit,))
    connection.commit()
    return rows


def execute(connection: Connection, sql: str, values: tuple[object, ...] = ()) -> int:
    """Run one statement. Return the number of rows that it changed."""
    if isinstance(connection, sqlite3.Connection):
        sql = sql.replace("%s", "?")
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def begins(connection: Connection) -> bool:
    """Whether the driver opens a transaction by itself, as DB-API 2.0 requires."""
    # SQLite's connections have `autocommit` since Python 3.12; where it is True, `isolation_level` says nothing.
    if getattr(connection, "autocommit", False) is True:
        return False
    if callable(get_autocommit := getattr(connection, "get_autocommit", None)) and get_autocommit():
        return False  # PyMySQL and mysqlclient, whose `autocommit` is a method
    return not isinstance(connection, sqlite3.Connection) or connection.isolation_level is not None


def is_open(connection: Connection) -> bool:
    """Whether a transaction is open, as far as the driver reports it."""
    if bool(getattr(connection, "in_transaction", False)) or status(connection) != IDLE:
        return True
    return bool(getattr(connection, "server_status", 0) & IN_TRANSACTION)  # PyMySQL


def is_mysql(connection: Connection) -> bool:
    """Whether the driver is one of MySQL or MariaDB."""
    return any(base.__module__.partition(".")[0] in MYSQL_DRIVERS for base in type(connection).__mro__)


def error_number(error: Exception) -> object:
    """Return MySQL's number of an error; None if it has none."""
    number = getattr(error, "errno", None)
    return error.args[0] if number is None and error.args else number


def status(connection: Connection) -> int:
    """Return the transaction status that psycopg reports. IDLE for drivers without it."""
    return int(getattr(getattr(connection, "info", None), "transaction_status", IDLE))
