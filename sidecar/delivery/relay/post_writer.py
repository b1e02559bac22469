"""Write the posts of relay mode: one thread, one transactional producer, many posts in a transaction.

A post has no offset to commit. So the sidecar cannot ask Kafka afterwards whether a transaction with an unknown end was
committed. The posts of such a transaction are answered as unknown. Posting again is safe: a second copy of an event
changes no view.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import NamedTuple

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.core.record import weight_of
from reconsume.sidecar.kafka.clients import CredentialRegistry, Refresh
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown, outcome_of
from reconsume.sidecar.kafka.committer.write_apart import Refusals, by_number, write_apart
from reconsume.sidecar.observability.thread_watch import StopRequest, WatchedThread
from reconsume.sidecar.printable import plural

TOGETHER = 500
"""Posts in one transaction at most. At 1 MiB a post and 128 connections the API's own limits are reached first."""
MOST_WAITING = 16 * 1024 * 1024
"""Bytes of the posts that wait for the thread. While Kafka is away it takes none, and callers give up and try again."""
TRY_FOR = 10.0
"""Seconds to try a post. After them its caller is answered that it was not written."""
AGAIN_AFTER = 0.1
"""Seconds from an aborted transaction to the next try."""
UNNAMED = 3
"""Aborts in a row that name no post. After so many, smaller transactions must find the post that is the cause."""
ANSWER_WITHIN = TRY_FOR + 30.0
"""Seconds after which the outcome of a post under way counts as unknown. A stuck call is given up long before."""


class TooLargeError(Exception):
    """The broker does not accept a record of this size. The message is for people."""


class RefusedError(Exception):
    """The broker does not accept this record, for another reason than its size. The message is for people."""


class NotWrittenError(Exception):
    """Nothing was written, and the record may be posted again. The message is for people."""


class UnknownError(Exception):
    """It is not known whether the record was written. Posting it again is safe."""


class Failure(NamedTuple):
    """How a post failed: one of the errors above, and its message.

    It is a value and no exception: a future that holds an exception lives as long as the frames that the exception has
    passed, and one of these holds the future and the post.
    """

    kind: type[Exception]
    text: str


class PendingPost(NamedTuple):
    """One post under way.

    `done` is cancelled by a caller that has waited too long. It ends with None once the post is committed. `size`: the
    post's bytes in memory.
    """

    entry: SettledRecord
    done: Future[Failure | None]
    size: int = 0


class PostWriter(ContextThread):
    """Commit posts in groups: all that arrived during the transaction before.

    `observe` is called on this thread with the result and the seconds of each transaction.
    """

    def __init__(
        self, config: Mapping[str, object], observe: Callable[[str, float], None], registry: CredentialRegistry
    ) -> None:
        super().__init__(f"poster-{config['transactional.id']}")
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

        Raises TooLargeError, RefusedError, NotWrittenError or UnknownError.
        """
        record = entry.record
        size = weight_of(record.key, record.value, record.headers, record.retry_state)
        queued = self._put - self._taken
        if queued and queued + size > MOST_WAITING:  # a larger post goes alone
            raise NotWrittenError("Kafka does not answer, and too many posts wait already; nothing was written")
        job = PendingPost(entry, Future(), size)
        self._put += size
        self._jobs.put(job)
        waiting = asyncio.wrap_future(job.done)
        try:
            failure = await asyncio.wait_for(asyncio.shield(waiting), TRY_FOR)
        except TimeoutError:
            if job.done.cancel():
                raise NotWrittenError("Kafka does not answer; nothing was written") from None
            failure = await self._outcome(waiting)
        if failure is not None:
            raise failure.kind(failure.text)

    async def _outcome(self, waiting: asyncio.Future[Failure | None]) -> Failure | None:
        try:
            return await asyncio.wait_for(waiting, ANSWER_WITHIN - TRY_FOR)
        except TimeoutError:
            return Failure(UnknownError, "Kafka does not answer")

    def stop(self) -> None:
        """End after the transaction under way. Waiting posts are not written, and their callers get NotWrittenError."""
        self._stopping.set()
        self._jobs.put(None)

    # --- on its own thread -------------------------------------------------------------------------------------------

    def do_work(self) -> None:
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
        _fail(rest, Failure(NotWrittenError, "the sidecar stops; nothing was written"))

    def _work(self, first: PendingPost) -> None:
        taken = (first, *self._waiting())
        self._taken += sum(job.size for job in taken)
        jobs = [job for job in taken if job.done.set_running_or_notify_cancel()]
        try:
            self._settle(jobs)
        except BaseException as fault:
            undecided = [job for job in jobs if not job.done.done()]
            _fail(undecided, Failure(UnknownError, f"the sidecar failed: {type(fault).__name__}"))
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
        """Write posts within TRY_FOR, in one transaction unless Kafka refuses some of them: these fail alone."""
        end = time.monotonic() + TRY_FOR
        write_apart(jobs, lambda some, _left: self._write_posts(some, end), self._refuse_posts)

    def _refuse_posts(self, job: PendingPost, refusal: Refusal) -> None:
        kind = TooLargeError if refusal.too_large else RefusedError
        if refusal.about == "record":
            _fail([job], Failure(kind, refusal.reason))
        else:
            _fail([job], Failure(NotWrittenError, f"{refusal.reason}; nothing was written"))

    def _write_posts(self, jobs: Sequence[PendingPost], end: float) -> Refusals | None:
        """Run transactions until these posts are written or have failed, or Kafka refuses some of them."""
        entries, unnamed = [job.entry for job in jobs], 0
        while jobs:
            if self._supply.targets.look_up_unlisted(entries):
                if time.monotonic() < end and not self._stopping.wait(AGAIN_AFTER):
                    continue
                _fail(jobs, Failure(NotWrittenError, "nothing was written: Kafka does not tell of the group's topics"))
                return None
            # An operator must repair these first, so trying again would be in vain.
            if missing := self._supply.targets.missing_targets(entries):
                return by_number(entries, missing)
            started = time.monotonic()
            refused, label = self._try(jobs, entries)
            self._observe(label, time.monotonic() - started)
            if refused is None or refused:
                return refused
            if self._stopping.is_set() or time.monotonic() > end:
                text = f"nothing was written: {self.last_error or 'the sidecar stops'}"
                _fail(jobs, Failure(NotWrittenError, text))
                return None
            unnamed += label == "aborted"
            if unnamed >= UNNAMED and len(jobs) > 1 and self._supply.answers():
                return {}
        return None

    def _try(self, jobs: Sequence[PendingPost], entries: Sequence[SettledRecord]) -> tuple[Refusals | None, str]:
        """Run one transaction. Return the posts that Kafka refuses, none if all are to be tried again, or None if all
        have their answer; and the result for the metrics."""
        producer = self._supply.usable()
        if producer is None:  # stopped before there was one
            return {}, "unknown"
        outcome = outcome_of(lambda: producer.write(entries, self._supply.targets.partitions))
        if isinstance(outcome, Aborted):
            return self._after_abort(entries, outcome), "aborted"
        if isinstance(outcome, OutcomeUnknown):
            text = "it is not known whether %s reached Kafka: %s"
            self._supply.warn("transaction-unsure", text, plural(len(jobs), "post"), outcome)
            _fail(jobs, Failure(UnknownError, str(outcome)))
            self._supply.replace()
            return None, "unknown"
        for job in jobs:
            job.done.set_result(None)
        return None, "committed"

    def _after_abort(self, entries: Sequence[SettledRecord], aborted: Aborted) -> Refusals:
        adapted = self._supply.adapt(aborted)
        if aborted.producer_unusable or adapted:
            self._supply.replace()
        if adapted:
            return {}
        text = "a transaction of %s was aborted: %s"
        self._supply.warn("transaction-aborted", text, plural(len(entries), "post"), aborted, about=aborted.about)
        self._supply.targets.refused(aborted.refusals)
        if not aborted.refusals:
            self._stopping.wait(AGAIN_AFTER)
        return by_number(entries, aborted.refusals)


def _fail(jobs: Sequence[PendingPost], failure: Failure) -> None:
    for job in jobs:
        job.done.set_result(failure)
