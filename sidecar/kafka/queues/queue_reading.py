"""One queue that is read: how far, where it begins, what the log says of it, and how its records are read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.log_checks import end_of_done, untouched
from reconsume.sidecar.kafka.messages import Reading, reading_of
from reconsume.sidecar.kafka.queues.log_watch import ReadSoFar
from reconsume.topics.retry_headers import Headers, RetryState

_LOG = logging.getLogger("reconsume.queues")


@dataclass
class QueueReading:
    """One queue: under which epoch it is read, from where, and up to where it must be read first.

    `position`, `end`: −1 while they are not known. `known_to`: the lane knows what lies below it. `known_end`: the end
    of the log that was handed over last. `exists`: nothing says that it does not. `missing_since`: when it was missing
    first; infinite if it never was. `absent`: the lane goes on without it. `looked_at`: when it was missing last.
    `asked_at`: when its log was asked for last. All are monotonic seconds.
    """

    epoch: int
    since: float
    position: int = -1
    end: int = -1
    exists: bool = True
    known_to: int = -1
    known_end: int = -1
    caught_up: bool = False
    named: bool = False
    missing_since: float = inf
    absent: bool = False
    looked_at: float = 0.0
    asked_at: float = -inf
    last_at_ms: int | None = None
    """The greatest timestamp (epoch ms) of what was read; None: nothing says it."""
    known_at_ms: int = 0
    """The greatest time (epoch ms) of what the lane knows without having read it."""
    awaited: bool = False
    """Whether the lane waits for what lies behind what it knows, so that the queue must not rest."""
    rests_until: float = 0.0
    """Until when it is not followed, as the lane itself writes what comes there (monotonic seconds); 0: it is."""
    waited_to: int = 0
    """The offset below which what the lane does not know is read: it had time to hear of it."""
    told_at_ms: int | None = None
    """The time up to which the log is known to be the same, as the lane was told; None: it was not."""

    @property
    def read(self) -> ReadSoFar:
        """How far it was read."""
        return ReadSoFar(self.position, self.last_at_ms or 0)

    def pass_by(self, offset: int, at_ms: int) -> None:
        """Go on behind what was read at an offset. `at_ms`: its timestamp (epoch ms)."""
        self.position, self.last_at_ms = offset + 1, max(self.last_at_ms or 0, at_ms)

    def hear(self, end: int, at_ms: int, *, awaited: bool) -> None:
        """Take in up to where the lane knows the queue (`QueueReads.known`)."""
        self.known_to, self.known_at_ms, self.awaited = end, max(at_ms, self.known_at_ms), awaited

    def pass_known(self) -> None:
        """Go on behind what the lane knows."""
        if self.known_to > self.position:
            self.position, self.last_at_ms = self.known_to, max(self.last_at_ms or 0, self.known_at_ms)

    def doubt(self) -> None:
        """Note a look that did not say that the queue is missing: the next such answer begins anew."""
        if not self.absent:
            self.missing_since = inf


def started(queue: Partition, progress: Progress | None, low: int, high: int) -> Progress:
    """Return where the reading of a queue begins whose log is from `low` to `high`.

    What is lost, or may be repeated, is named in the log.
    """
    extra = {"event": "queue-start", "partition": str(queue)}
    if progress is None:
        if high > low:
            text = "%s: the group has no progress here, so all of it is read, and what was done may be delivered again"
            _LOG.warning(text, queue, extra=extra)
        return untouched(low)
    if max(end_of_done(progress), -1 if progress.mark is None else progress.mark + 1) > high:
        text = "%s ends at %d, before the group's progress: it was recreated, and is read from its beginning"
        _LOG.warning(text, queue, high, extra=extra)
        return untouched(low)
    if progress.next < low:
        name_cut(queue, progress.next, low)
        done = frozenset(offset for offset in progress.done if offset >= low)
        return Progress(low, done, last_at_ms=progress.last_at_ms)
    return progress


def name_cut(queue: Partition, wanted: int, low: int) -> None:
    """Log that a queue was cut before what waited in it was read."""
    if wanted < low:
        text = "%s begins at %d now: what waited from %d on, and was not done, is lost"
        extra = {"event": "queue-lost", "partition": str(queue), "offset": wanted}
        _LOG.error(text, queue, low, wanted, extra=extra)


def name_missing(queue: Partition) -> None:
    """Log that a queue does not exist, in a group with a ladder."""
    text = (
        "%s is missing, or not for this user to see: its main partition goes on, and what fails there waits in memory, "
        "with its key"
    )
    _LOG.error(text, queue, extra={"event": "queue-missing", "partition": str(queue)})


def queue_reading_of(policy: Callable[[], Policy]) -> Reading:
    """Return the function that reads our headers in a queue: those that belong elsewhere are refused."""

    by: tuple[Policy | None, Reading] = None, reading_of(policy())

    def read(headers: Headers, source: Partition, offset: int, timestamp: int) -> tuple[RetryState | None, str]:
        nonlocal by
        rules = policy()
        if by[0] is not rules:
            by = rules, reading_of(rules)
        state, fault = by[1](headers, source, offset, timestamp)
        if state is not None and (why := rules.queue_fault(source, state)):
            return None, f"bad-header: {why}"
        return state, fault

    return read
