"""Write the posts of relay mode: one thread, one transactional producer, many posts in a transaction.

A post has no offset to commit. So the sidecar cannot ask Kafka afterwards whether a transaction with an unknown end was
committed. The posts of such a transaction are answered as unknown. Posting again is safe: a second copy of an event
changes no view.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import NamedTuple

from sidecar.core.commit_batch import Refusal, SettledRecord
from sidecar.core.record import weight_of
from sidecar.kafka.committer.producer import ReplaceableProducer
from sidecar.kafka.committer.transaction import Aborted, OutcomeUnknown
from sidecar.kafka.credentials.registry import CredentialRegistry, Refresh
from sidecar.observability.thread_watch import StopRequest, WatchedThread

TOGETHER = 500
"""Posts in one transaction at most. At 1 MiB a post and 128 connections the API's own limits are reached first."""
MOST_WAITING = 16 * 1024 * 1024
"""Bytes of the posts that wait for the thread. While Kafka is away it takes none, and callers give up and try again."""
TRY_FOR = 10.0
"""Seconds to try a post. After them its caller is answered that it was not written."""
AGAIN_AFTER = 0.1
"""Seconds from an aborted transaction to the next try."""
ANSWER_WITHIN = TRY_FOR + 30.0
"""Seconds after which the outcome of a post under way counts as unknown. A stuck call is given up long before."""


class TooLargeError(Exception):
    """The broker does not accept a record of this size. The message is for people."""


class NotWrittenError(Exception):
    """Nothing was written, and the record may be posted again. The message is for people."""


class UnknownError(Exception):
    """It is not known whether the record was written. Posting it again is safe."""


class PendingPost(NamedTuple):
    """One post under way.

    `done` is cancelled by a caller that has waited too long. A post that fails ends with one of the errors above.
    `size`: its bytes in memory.
    """

    entry: SettledRecord
    done: Future[None]
    size: int = 0


class PostWriter(threading.Thread):
    """Commit posts in groups: all that arrived during the transaction before.

    `observe` is called on this thread with the result and the seconds of each transaction.
    """

    def __init__(
        self, config: Mapping[str, object], observe: Callable[[str, float], None], registry: CredentialRegistry
    ) -> None:
        super().__init__(name=f"poster-{config['transactional.id']}", daemon=True)
        self._observe = observe
        self._jobs: SimpleQueue[PendingPost | Refresh | None] = SimpleQueue()
        self._stopping = StopRequest()
        self._busy = False
        # Each is changed by one thread alone: the loop's, and this one.
        self._put = self._taken = 0
        credentials = registry.register(self.name, self._on_new_credentials)
        self._supply = ReplaceableProducer(config, self._stopping, credentials)

    @property
    def last_error(self) -> str:
        """The last error or warning about Kafka; empty if there was none."""
        return self._supply.last_error

    def watched(self) -> list[WatchedThread]:
        """Return this thread, which must make progress only while there is something to write."""
        return [WatchedThread("poster", self, lambda: self._stopping.turned_at if self._busy else None)]

    def _on_new_credentials(self) -> None:
        if not self._supply.take_credentials():
            self._jobs.put(Refresh.KEYS)

    async def post(self, entry: SettledRecord) -> None:
        """Write one post, and return once it is committed.

        Raises TooLargeError, NotWrittenError or UnknownError.
        """
        record = entry.record
        size = weight_of(record.key, record.value, record.headers, record.life)
        if self._put - self._taken + size > MOST_WAITING:
            raise NotWrittenError("Kafka does not answer, and too many posts wait already; nothing was written")
        job = PendingPost(entry, Future(), size)
        self._put += size
        self._jobs.put(job)
        waiting = asyncio.wrap_future(job.done)
        waiting.add_done_callback(_heard)  # reads the error, since the caller may have gone
        try:
            await asyncio.wait_for(asyncio.shield(waiting), TRY_FOR)
        except TimeoutError:
            if job.done.cancel():
                raise NotWrittenError("Kafka does not answer; nothing was written") from None
            await self._outcome(waiting)

    async def _outcome(self, waiting: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait_for(waiting, ANSWER_WITHIN - TRY_FOR)
        except TimeoutError:
            raise UnknownError("Kafka does not answer") from None

    def stop(self) -> None:
        """End after the transaction under way. Waiting posts are not written, and their callers get NotWrittenError."""
        self._stopping.set()
        self._jobs.put(None)

    # --- on its own thread -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make the producer, then commit posts until stopped."""
        self._busy = True
        self._supply.replace()
        self._busy = False
        while (job := self._jobs.get()) is not None:
            self._stopping.is_set()  # marks a turn: the wait for this job must not count as its work
            self._busy = True
            if isinstance(job, Refresh):
                self._supply.refresh()
            else:
                self._work(job)
            self._busy = False
        left = [self._jobs.get() for _ in range(self._jobs.qsize())]
        rest = [job for job in left if isinstance(job, PendingPost) and job.done.set_running_or_notify_cancel()]
        _fail(rest, NotWrittenError("the sidecar stops; nothing was written"))

    def _work(self, first: PendingPost) -> None:
        taken = (first, *self._waiting())
        self._taken += sum(job.size for job in taken)
        jobs = [job for job in taken if job.done.set_running_or_notify_cancel()]
        try:
            self._settle(jobs)
        except BaseException as fault:
            _fail(jobs, UnknownError(f"the sidecar failed: {type(fault).__name__}"))
            raise

    def _waiting(self) -> Iterator[PendingPost]:
        for _ in range(TOGETHER - 1):
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if not isinstance(job, PendingPost):
                self._jobs.put(job)
                return
            yield job

    def _settle(self, jobs: Sequence[PendingPost]) -> None:
        end = time.monotonic() + TRY_FOR
        while jobs := self._with_existing_topics(jobs):
            started = time.monotonic()
            jobs, label = self._try(jobs)
            self._observe(label, time.monotonic() - started)
            if jobs and (self._stopping.is_set() or time.monotonic() > end):
                _fail(jobs, NotWrittenError(f"nothing was written: {self.last_error or 'the sidecar stops'}"))
                return

    def _with_existing_topics(self, jobs: Sequence[PendingPost]) -> list[PendingPost]:
        """Return the posts whose topics and partitions accept records; fail the others at once."""
        # An operator must repair these first, so trying again would be in vain.
        refusals = {id(refusal.entry): refusal for refusal in self._supply.missing_targets([job.entry for job in jobs])}
        for job in jobs:
            if id(job.entry) in refusals:
                _fail([job], _error_of(refusals[id(job.entry)]))
        return [job for job in jobs if id(job.entry) not in refusals]

    def _try(self, jobs: Sequence[PendingPost]) -> tuple[Sequence[PendingPost], str]:
        """Run one transaction. Return the posts to try again, and the result for the metrics."""
        producer = self._supply.usable()
        if producer is None:  # stopped before there was one
            return jobs, "unknown"
        try:
            producer.write([job.entry for job in jobs], self._supply.partitions)
        except Aborted as aborted:
            return self._after_abort(jobs, aborted), "aborted"
        except OutcomeUnknown as unsure:
            self._supply.warn("posts-unsure", "it is not known whether %d posts were written: %s", len(jobs), unsure)
            _fail(jobs, UnknownError(str(unsure)))
            self._supply.replace()
            return (), "unknown"
        for job in jobs:
            job.done.set_result(None)
        return (), "committed"

    def _after_abort(self, jobs: Sequence[PendingPost], aborted: Aborted) -> Sequence[PendingPost]:
        if aborted.producer_unusable:
            self._supply.replace()
        text = "a transaction of %d posts was aborted: %s"
        self._supply.warn("posts-aborted", text, len(jobs), aborted, about=aborted.about)
        refused = {id(refusal.entry): refusal for refusal in aborted.refusals}
        self._supply.refused(aborted.refusals)
        for job in jobs:
            if id(job.entry) in refused:
                _fail([job], _error_of(refused[id(job.entry)]))
        if not refused:
            self._stopping.wait(AGAIN_AFTER)
        return [job for job in jobs if id(job.entry) not in refused]


def _error_of(refusal: Refusal) -> Exception:
    if refusal.about == "record":
        return TooLargeError(refusal.reason)
    return NotWrittenError(f"{refusal.reason}; nothing was written")


def _heard(waiting: asyncio.Future[None]) -> None:
    if not waiting.cancelled():
        waiting.exception()


def _fail(jobs: Sequence[PendingPost], error: Exception) -> None:
    for job in jobs:
        job.done.set_exception(error)
