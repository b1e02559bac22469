"""A service that books a record once, on a database of the test's choice; as a process of its own it can be killed.

`booked` has no unique key: a second effect is a second row, and nothing but the helper can prevent it.
"""

from __future__ import annotations

import random
import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

from reconsume.once import DeliveryKey, ProducerKey, create_table, once

GROUP = "billing"
BOOKED = "CREATE TABLE booked (record_id VARCHAR(280) NOT NULL, redrives INTEGER NOT NULL)"
STOPS = ("before-effect", "before-commit", "after-commit")
TURNS = ("answers", "fails after the effect", "loses the answer")


Key: TypeAlias = DeliveryKey | ProducerKey


class BrokenError(Exception):
    """The service's own failure in the middle of its work."""


def connect(target: str) -> Any:
    """A new connection to a SQLite file (`sqlite:PATH`), MariaDB (`mysql:SOCKET:DATABASE`) or PostgreSQL (a connection
    string)."""
    kind, _, path = target.partition(":")
    if kind == "sqlite":
        return sqlite3.connect(path, timeout=20)
    if kind == "mysql":
        import pymysql

        socket, _, database = path.partition(":")
        return pymysql.connect(unix_socket=socket, user="root", database=database, connect_timeout=20)
    import psycopg

    return psycopg.connect(target, connect_timeout=20)


def prepare(target: str) -> None:
    """Make both tables."""
    with closing(connect(target)) as connection:
        create_table(connection)
        executed(connection, BOOKED)
        connection.commit()


def executed(connection: Any, sql: str, values: tuple[object, ...] = ()) -> Any:
    """The cursor of a statement: not every driver has it on its connections."""
    cursor = connection.cursor()
    cursor.execute(sql, values)
    return cursor


def book(connection: Any, key: Key) -> None:
    """The effect."""
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    _, record, _, redrives = key.row
    executed(connection, f"INSERT INTO booked VALUES ({mark}, {mark})", (record, redrives))


def deliver(target: str, key: Key) -> bool:
    """One whole delivery on a connection of its own; whether it made the effect."""
    with closing(connect(target)) as connection:
        with once(connection, key) as first:
            if first:
                book(connection, key)
        return first


def booked(target: str) -> list[tuple[str, int]]:
    """What has happened, in order of the keys."""
    return rows(target, "SELECT record_id, redrives FROM booked ORDER BY 1, 2")


def claimed(target: str) -> list[tuple[str, int]]:
    """What is recorded as having happened."""
    return rows(target, "SELECT record_id, redrives FROM reconsume_once ORDER BY 1, 2")


def rows(target: str, sql: str) -> list[tuple[str, int]]:
    """The answer to a query."""
    with closing(connect(target)) as connection:
        return [tuple(row) for row in executed(connection, sql).fetchall()]


def crowd(target: str, keys: Sequence[Key], threads: int) -> None:
    """Deliver all keys from each thread, in different orders, again and again until each was answered there."""

    def work(seed: int) -> None:
        dice = random.Random(seed)
        waiting = dice.sample(list(keys), len(keys))
        with closing(connect(target)) as connection:
            while waiting:
                key, turn = waiting.pop(0), dice.choice(TURNS)
                if not attempt(connection, key, turn):
                    waiting.append(key)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def attempt(connection: Any, key: Key, turn: str) -> bool:
    """One delivery that goes as `turn` says; whether it is answered."""
    try:
        with once(connection, key) as first:
            if first:
                book(connection, key)
                if turn == "fails after the effect":
                    raise BrokenError
    except BrokenError:
        return False
    except Exception as error:
        if error.args[:1] == (1213,):  # InnoDB ends one of several duplicates that wait: the record comes again
            return False
        raise
    return turn == "answers"


@contextmanager
def stopped_at(target: str, key: DeliveryKey, stop: str) -> Iterator[subprocess.Popen[str]]:
    """A service process that stands still at `stop` of a delivery; killed with SIGKILL at the end, if not before."""
    command = [sys.executable, "-m", "tests.support.service.once_service", target, key.id, stop]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], 30)
            assert readable, f"the service did not reach {stop} in 30 s"
            assert process.stdout.readline().strip() == stop
            yield process
        finally:
            process.kill()
            process.wait(60)


def main(target: str, identity: str, stop: str) -> None:
    """Deliver up to `stop`, say so, and stand still until killed."""
    key = DeliveryKey(GROUP, identity)
    connection = connect(target)
    with once(connection, key) as first:
        assert first
        stand("before-effect", stop)
        book(connection, key)
        stand("before-commit", stop)
    stand("after-commit", stop)


def stand(here: str, stop: str) -> None:
    """Say so and wait, where this is the place."""
    if here == stop:
        sys.stdout.write(f"{here}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
