"""Copy the view from Kafka into the local file, in a thread that survives every failure.

Records never wait for this thread. A failure of Kafka, of the file or of the code is logged, and the work is tried
again. Other threads see only `status`, one immutable value.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.kafka.clients import ClientCredentials, unchanging
from reconsume.sidecar.observability.thread_watch import FOLLOWER_LIMIT, StopRequest, WatchedThread
from reconsume.sidecar.printable import without_error_objects
from reconsume.sidecar.view.copy import Facts, ViewCopy, open_copy
from reconsume.sidecar.view.reader import BEING_READ, CHECK_EVERY, ViewReader
from reconsume.sidecar.view.source import Source
from reconsume.topics.names import Kind, Names

POLL = 0.2
RETRY_AFTER = 1.0
"""Seconds to wait after an error."""
LONGEST_REST_S = 0.1
REST = {Source.SPARK: 1.0, Source.EVENTS: 0.5}
"""Seconds of rest for each second of work while it catches up. The thread shares the interpreter with the records'
event loop. To fold an event costs twice as much as to copy a row, and 100 000 should take less than 10 s."""

_LOG = logging.getLogger("reconsume.view")


class CopyStatus(NamedTuple):
    """The state of the local copy.

    `as_of`: epoch ms up to which it is complete. None if nothing is known; `problem` then says why. `path`: the file;
    None while there is none. `bad`: records skipped so far. `source`: what it is made from. `since`, `sums_since`:
    epoch ms from which on its rows and its sums have every event; 0 if none is lacking. `shortfall`: a sentence about
    what was left out.
    """

    path: Path | None
    as_of: int | None
    problem: str
    bad: Mapping[Kind, int]
    source: Source = Source.SPARK
    since: int = 0
    sums_since: int = 0
    shortfall: str = ""


class ViewFollower(ContextThread):
    """The thread that follows the view until it is stopped.

    `folder`: where the file is kept; None for a temporary folder. `check_every`: seconds between two checks of the ends
    of the topics. `source`: what to follow.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        names: Names,
        folder: Path | None,
        client: str,
        check_every: float = CHECK_EVERY,
        credentials: ClientCredentials | None = None,
        *,
        source: Source,
    ) -> None:
        super().__init__("view")
        self.status = CopyStatus(None, None, "the view has not been read yet", {})
        self._kafka, self._names, self._folder, self._client = dict(kafka), names, folder, client
        self._check_every, self._source = check_every, source
        self._credentials = unchanging() if credentials is None else credentials
        self._stopping = StopRequest()
        self._said, self._short = "", False
        self._bad: Counter[Kind] = Counter()

    def stop(self) -> None:
        """Stop within a few seconds. The call returns at once."""
        self._stopping.set()

    def watched(self) -> list[WatchedThread]:
        return [WatchedThread("view", self, lambda: self._stopping.turned_at, FOLLOWER_LIMIT)]

    def do_work(self) -> None:
        """Follow the view until stopped. After a failure, open the file and the clients again."""
        while not self._stopping.is_set():
            try:
                self._keep()
            except (sqlite3.Error, OSError) as fault:
                where = "a temporary folder, because view.folder names none" if self._folder is None else self._folder
                self._say(f"the local copy of the view cannot be kept in {where}: {fault}")
            except Exception:  # noqa: BLE001 - the view must never stop the records, not even by a fault of its own
                _LOG.exception("the view cannot be followed", extra={"event": "fault"})
            self.status = self.status._replace(path=None)
            self._stopping.wait(RETRY_AFTER)

    def _keep(self) -> None:
        """Use one file until it is lost or broken. A broken file is recognized when it is opened again."""
        copy = open_copy(self._folder, self._names.group, self._source)
        try:
            while not self._stopping.is_set() and copy.intact():
                self._follow(copy)
        finally:
            copy.close()

    def _follow(self, copy: ViewCopy) -> None:
        """Use one set of clients until it fails, or the credentials change. The file can be queried all the same."""
        reader = None
        facts = copy.facts()
        since = copy.rows_since(facts), copy.sums_since(facts)
        self.status = CopyStatus(copy.path, facts.as_of, self.status.problem, self.status.bad, self._source, *since)
        try:
            kafka = self._credentials.adopt(self._kafka)
            reader = ViewReader(kafka, self._names, copy, self._client, check_every=self._check_every)
            while not self._stopping.is_set() and copy.intact() and not self._credentials.due:
                began = time.thread_time()
                has_read = reader.read_turn(POLL)
                self._show(copy, reader.facts, reader.problem, dict(self._bad + reader.decoder.bad), reader.shortfall)
                if has_read:
                    took = time.thread_time() - began
                    self._stopping.wait(min(took * REST[self._source], LONGEST_REST_S))
        except (KafkaException, ReconsumeError) as failure:
            self._say(f"the view cannot be followed: {without_error_objects(str(failure))}")
            self._stopping.wait(RETRY_AFTER)
        finally:
            if reader is not None:
                self._bad.update(reader.decoder.bad)
                reader.close()

    # --- what others see ---------------------------------------------------------------------------------------------

    def _show(self, copy: ViewCopy, facts: Facts, problem: str, bad: Mapping[Kind, int], shortfall: str) -> None:
        since = copy.rows_since(facts), copy.sums_since(facts)
        self.status = CopyStatus(copy.path, facts.as_of, problem, bad, self._source, *since, shortfall)
        if not problem:
            self._said = ""
        elif problem != BEING_READ:
            self._say(problem)
        if self.status.shortfall and not self._short:
            _LOG.warning(self.status.shortfall, extra={"event": "view-bound"})
        self._short = bool(self.status.shortfall)

    def _say(self, text: str) -> None:
        """Log and show a problem, once until it changes or is over."""
        self.status = self.status._replace(problem=text)
        if text != self._said:
            self._said = text
            _LOG.warning(text, extra={"event": "view"})
