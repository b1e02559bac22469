"""Copy the view and the sums from Kafka into the local file, in a thread that survives every failure.

Records never wait for this thread. A failure of Kafka, of the file or of the code is logged, and the work is tried
again. Other threads see only `seen`, one immutable value.

With `view.source: auto` the other source is read into a file of its own beside the one that is served, and takes its
place when it is read to its end.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException

from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.kafka.credentials.registry import ClientCredentials, unchanging
from reconsume.sidecar.observability.thread_watch import FOLLOWER_LIMIT, StopRequest, WatchedThread
from reconsume.sidecar.view.job_watch import JobWatch, source_now
from reconsume.sidecar.view.local_copy import LocalCopy
from reconsume.sidecar.view.reader import BEING_READ, CHECK_EVERY
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store_file import kept_source
from reconsume.topics.names import Kind, Names

POLL = 0.2
RETRY_AFTER = 1.0
"""Seconds to wait after an error."""
LONGEST_REST_S = 0.1
REST = {Source.SPARK: 1.0, Source.EVENTS: 0.5}
"""Seconds of rest for each second of work while it catches up. The thread shares the interpreter with the records'
event loop. To fold an event costs twice as much as to copy a row, and 100 000 should take less than 10 s."""
WATCH_EVERY = 15.0
"""Seconds between two questions whether the Spark job keeps up."""
WHY = {
    Source.SPARK: "the Spark job keeps up with the events",
    Source.EVENTS: "the Spark job is 10 minutes behind the events, or gone",
}

_LOG = logging.getLogger("reconsume.view")


class CopyStatus(NamedTuple):
    """The state of the local copy.

    `as_of`: epoch ms up to which it is complete. None if nothing is known; `problem` then says why. `path`: the file;
    None while there is none. `bad`: records skipped so far. `source`: what it is made from. `since`: epoch ms from
    which on a copy of events has every event; 0 if none is lacking. `shortfall`: a sentence about what was left out.
    """

    path: Path | None
    as_of: int | None
    problem: str
    bad: Mapping[Kind, int]
    source: Source = Source.SPARK
    since: int = 0
    shortfall: str = ""


class ViewFollower(threading.Thread):
    """The thread that follows the view until it is stopped.

    `folder`: where the file is kept; None for a temporary folder. `check_every`: seconds between two checks of the ends
    of the topics. `source`: what to follow; AUTO decides by the Spark job, each `watch_every` seconds.
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
        watch_every: float = WATCH_EVERY,
    ) -> None:
        super().__init__(name="view", daemon=True)
        self.status = CopyStatus(None, None, "the view has not been read yet", {})
        self._kafka, self._names, self._folder, self._client = dict(kafka), names, folder, client
        self._check_every, self._configured, self._watch_every = check_every, source, watch_every
        self._credentials = unchanging() if credentials is None else credentials
        self._stopping = StopRequest()
        self._said, self._short = "", False
        self._bad: Counter[Kind] = Counter()
        self._next: LocalCopy | None = None
        """The copy that replaces the served one when it is complete."""

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
                _LOG.exception("the view cannot be followed", extra={"event": "fault"})
            self.status = self.status._replace(path=None)
            self._stopping.wait(RETRY_AFTER)

    def _keep(self) -> None:
        """Use one file until it is lost or broken. A broken file is recognized when it is opened again."""
        copy = LocalCopy(self._folder, self._names, self._first_source())
        try:
            while not self._stopping.is_set() and copy.store.intact():
                copy = self._follow(copy)
        finally:
            self._close(copy)

    def _first_source(self) -> Source:
        """Return what to begin with. A file that an earlier start left is served at once, without Kafka."""
        if self._configured is not Source.AUTO:
            return self._configured
        if (kept := kept_source(self._folder, self._names.group)) is not None:
            return kept
        try:
            return source_now(self._configured, self._credentials.adopt(self._kafka), self._names, self._client)
        except (KafkaException, ReconsumeError):
            return Source.EVENTS  # what follows says what is wrong

    def _follow(self, copy: LocalCopy) -> LocalCopy:
        """Use one set of clients until it fails, or another copy replaces this one. Return the copy to go on
        with."""
        job: JobWatch | None = None
        current = copy
        self._show(copy)
        try:
            kafka = self._credentials.adopt(self._kafka)
            if copy.reader is None:
                copy.connect(kafka, self._client, self._check_every)
            job = JobWatch(kafka, self._names, self._client) if self._configured is Source.AUTO else None
            watch_at = time.monotonic() + self._watch_every
            while not self._stopping.is_set() and copy.store.intact() and not self._credentials.due:
                self._turn(copy)
                if job is not None and time.monotonic() >= watch_at:
                    self._prepare(job.wanted(copy.source), copy, kafka)
                    watch_at = time.monotonic() + self._watch_every
                if self._next_is_complete():
                    copy, former = self._take_next(), copy
                    self._close(former, for_good=True)
        except (KafkaException, ReconsumeError) as failure:
            self._say(f"the view cannot be followed: {failure}")
            self._stopping.wait(RETRY_AFTER)
        except BaseException:
            if copy is not current:  # the caller closes what it gave, and knows of no other
                self._close(copy)
            raise
        finally:
            copy.disconnect()
            self._drop_next()
            if job is not None:
                job.close()
        return copy

    def _turn(self, copy: LocalCopy) -> None:
        assert copy.reader is not None
        items = copy.reader.turn(POLL)
        self._show(copy)
        if not copy.reader.problem:
            self._said = ""
        if items:
            self._rest(copy)

    def _rest(self, copy: LocalCopy) -> None:
        assert copy.reader is not None
        self._stopping.wait(min(copy.reader.took * REST[copy.source], LONGEST_REST_S))

    # --- from one source to the other --------------------------------------------------------------------------------

    def _prepare(self, wanted: Source, copy: LocalCopy, kafka: Mapping[str, str]) -> None:
        """Begin to read the other source, or stop that if it is not wanted any more."""
        if wanted is copy.source:
            self._drop_next(for_good=True)
        # Each source has a file of its own, read beside the one that is served: in one file a change would be minutes
        # without an answer.
        elif self._next is None:
            try:
                self._next = LocalCopy(self._folder, self._names, wanted)
                self._next.connect(kafka, self._client, self._check_every)
            except (sqlite3.Error, OSError, KafkaException, ReconsumeError) as failure:
                self._give_up_next(failure)

    def _next_is_complete(self) -> bool:
        """Read on in the other source. A failure there changes nothing for what is served."""
        if self._next is None or self._next.reader is None:
            return False
        try:
            if self._next.reader.turn(0):
                self._rest(self._next)
            return self._next.complete
        except (sqlite3.Error, OSError, KafkaException, ReconsumeError) as failure:
            self._give_up_next(failure)
            return False

    def _take_next(self) -> LocalCopy:
        """Serve the other copy from now on, and return it."""
        assert self._next is not None
        taken, self._next = self._next, None
        self._show(taken)
        _LOG.warning("the view is that of %s now: %s", taken.source, WHY[taken.source], extra={"event": "view-source"})
        return taken

    def _give_up_next(self, failure: Exception) -> None:
        _LOG.warning("the other source of the view cannot be read: %s", failure, extra={"event": "view-source"})
        self._drop_next(for_good=True)

    def _drop_next(self, *, for_good: bool = False) -> None:
        if self._next is not None:
            dropped, self._next = self._next, None
            self._close(dropped, for_good=for_good)

    def _close(self, copy: LocalCopy, *, for_good: bool = False) -> None:
        self._bad.update(copy.bad)
        copy.close(for_good=for_good)

    # --- what others see ---------------------------------------------------------------------------------------------

    def _show(self, copy: LocalCopy) -> None:
        reader, source = copy.reader, copy.source
        if reader is None:
            facts = copy.store.facts()
            self.status = self.status._replace(
                path=copy.store.path, as_of=facts.as_of, source=source, since=facts.since
            )
            return
        bad, facts = self._bad + Counter(copy.bad), reader.facts
        path, problem = copy.store.path, reader.problem
        self.status = CopyStatus(path, facts.as_of, problem, dict(bad), source, facts.since, reader.shortfall)
        if problem and problem != BEING_READ:
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
