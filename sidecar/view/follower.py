"""Copy the view and the sums from Kafka into the local file, in a thread that survives every failure.

Records never wait for this thread. A failure of Kafka, of the file or of the code is logged, and the work is tried
again. Other threads see only `seen`, one immutable value.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException

from sidecar.errors import ReconsumeError
from sidecar.kafka.credentials.registry import ClientCredentials, unchanging
from sidecar.observability.thread_watch import FOLLOWER_LIMIT, StopRequest, WatchedThread
from sidecar.view.reader import BEING_READ, CHECK_EVERY, ViewReader
from sidecar.view.store import ViewStore
from sidecar.view.store_file import open_store
from topics.names import Kind, Names

POLL = 0.2
AGAIN = 1.0
"""Seconds to wait after an error."""
LONGEST_REST = 0.1

_LOG = logging.getLogger("reconsume.view")


class CopyStatus(NamedTuple):
    """The state of the local copy.

    `as_of`: epoch ms up to which it is complete. None if nothing is known; `problem` then says why. `path`: the file;
    None while there is none. `bad`: records skipped so far.
    """

    path: Path | None
    as_of: int | None
    problem: str
    bad: Mapping[Kind, int]


class ViewFollower(threading.Thread):
    """The thread that follows the view until it is stopped.

    `folder`: where the file is kept; None for a temporary folder. `check_every`: seconds between two checks of the ends
    of the topics.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        names: Names,
        folder: Path | None,
        client: str,
        check_every: float = CHECK_EVERY,
        credentials: ClientCredentials | None = None,
    ) -> None:
        super().__init__(name="view", daemon=True)
        self.seen = CopyStatus(None, None, "the view has not been read yet", {})
        self._kafka, self._names, self._folder, self._client = dict(kafka), names, folder, client
        self._check_every = check_every
        self._credentials = unchanging() if credentials is None else credentials
        self._stopping = StopRequest()
        self._said = ""
        self._bad: dict[Kind, int] = {Kind.VIEW: 0, Kind.STATS: 0}

    def stop(self) -> None:
        """Stop within a few seconds. The call returns at once."""
        self._stopping.set()

    def watched(self) -> list[WatchedThread]:
        return [WatchedThread("view", self, lambda: self._stopping.turned_at, FOLLOWER_LIMIT)]

    def run(self) -> None:
        """Follow the view until stopped. After a failure, open the file and the clients again."""
        while not self._stopping.is_set():
            try:
                self._keep()
            except (sqlite3.Error, OSError) as fault:
                where = "a temporary folder, because view.folder names none" if self._folder is None else self._folder
                self._say(f"the local copy of the view cannot be kept in {where}: {fault}")
            except Exception:  # noqa: BLE001 - the view must never stop the records, not even by a fault of its own
                _LOG.exception("the view cannot be followed", extra={"event": "view-fault"})
            self.seen = self.seen._replace(path=None)
            self._stopping.wait(AGAIN)

    def _keep(self) -> None:
        """Use one file until it is lost or broken. A broken file is recognized when it is opened again."""
        store = open_store(self._folder, self._names.group)
        try:
            while not self._stopping.is_set() and store.intact():
                self._follow(store)
        finally:
            store.close()

    def _follow(self, store: ViewStore) -> None:
        """Use one consumer until it fails."""
        reading: ViewReader | None = None
        self._show(store, None)
        try:
            reading = ViewReader(
                self._credentials.adopt(self._kafka), self._names, store, self._client, self._check_every
            )
            while not self._stopping.is_set() and store.intact() and not self._credentials.due:
                self._turn(store, reading)
        except (KafkaException, ReconsumeError) as failure:
            self._say(f"the view cannot be followed: {failure}")
            self._stopping.wait(AGAIN)
        finally:
            if reading is not None:
                for kind, count in reading.bad.items():
                    self._bad[kind] += count
                reading.close()

    def _turn(self, store: ViewStore, reading: ViewReader) -> None:
        items = reading.turn(POLL)
        self._show(store, reading)
        if not reading.problem:
            self._said = ""
        if items:
            # The thread shares the interpreter with the records' event loop. While it catches up, it uses half of the
            # time at most.
            self._stopping.wait(min(reading.took, LONGEST_REST))

    def _show(self, store: ViewStore, reading: ViewReader | None) -> None:
        if reading is None:
            self.seen = self.seen._replace(path=store.path, as_of=store.facts().as_of)
            return
        bad = {kind: count + reading.bad[kind] for kind, count in self._bad.items()}
        self.seen = CopyStatus(store.path, reading.facts.as_of, reading.problem, bad)
        if reading.problem and reading.problem != BEING_READ:
            self._say(reading.problem)

    def _say(self, text: str) -> None:
        """Log and show a problem, once until it changes or is over."""
        self.seen = self.seen._replace(problem=text)
        if text != self._said:
            self._said = text
            _LOG.warning(text, extra={"event": "view"})
