"""Queues that are not read yet: whether each exists, how far the group has read it, and where its log ends.

A queue is opened in three steps. The group's progress on it is requested, and an open transaction holds the answer
back. Then its end is requested, as of that moment, whatever is committed. Then it is read up to that end as far as it
is committed: the last transactions of a dead owner end meanwhile, and later ones are refused by their generation.

Where a queue does not exist, nothing waits in it, and the lane goes on without it. It is looked for again, more often
while a ladder is in force. Once it is there the process restarts in place, and the start opens it (contract 5.11).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from math import inf

from reconsume.sidecar.core.partition import AssignedPartition
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.committed_offsets import committed
from reconsume.sidecar.kafka.consumer.log_checks import end_of_done
from reconsume.sidecar.kafka.named_topics import named_topics
from reconsume.sidecar.kafka.queues.log_watch import LogWatch, ReadSoFar
from reconsume.sidecar.kafka.queues.queue_clients import EDGES_WITHIN, NoEdges, QueueClients
from reconsume.sidecar.kafka.queues.queue_intake import QueueIntake, QueueListener
from reconsume.sidecar.kafka.queues.queue_reading import QueueReading, name_missing, started

IDLE = 1.0
"""Seconds between two turns while there is no queue to read; a command comes at once."""
RETRY_EVERY = 0.3
"""Seconds before a queue that cannot be opened is tried again."""
SLOW = EDGES_WITHIN / 2
"""Seconds after which a request that failed has kept the thread from reading, so that no other is sent in that look."""
LOOK_SELDOM = 2.0
"""Seconds between two looks for a queue that was missing, in a group without a ladder: redrives and instances with one
may write to it as soon as it is created."""
SURE_AFTER = 5.0
"""Seconds for which a queue must be missing, in a group with a ladder, before the lane goes on without it: a broker may
not know yet of a topic that was made a moment ago, in which a former owner may have written."""
LATE = 30.0
"""Seconds after which a queue that cannot be opened, or read up to its end, is named in the log."""

_LOG = logging.getLogger("reconsume.queues")

Missing = Callable[[frozenset[str]], frozenset[str] | None]
"""Returns which of some topics do not exist, or None if Kafka does not tell."""


class QueueOpening:
    """Opens the queues of one thread. `readings`: all that are to be read, open or not.

    `come`: called with the topic when a queue without which the lane goes on exists after all.
    """

    def __init__(
        self,
        readings: Mapping[Partition, QueueReading],
        clients: QueueClients,
        intake: QueueIntake,
        logs: LogWatch,
        listener: QueueListener,
        policy: Callable[[], Policy],
        missing: Missing,
        come: Callable[[str], object],
    ) -> None:
        self._readings, self._clients, self._intake, self._logs = readings, clients, intake, logs
        self._listener, self._policy, self._missing, self._come = listener, policy, missing, come
        self._open_at = 0.0
        self._had_ladder = False
        """Whether the group had a ladder since the start: a former owner may have written to any queue then."""

    @property
    def is_due(self) -> bool:
        """Whether queues are to be looked for, or opened, now."""
        return self._open_at <= time.monotonic()

    def soon(self) -> None:
        """Look with the next turn: a queue has come."""
        self._open_at = 0.0

    def expect_queues(self) -> None:
        """Have one answer be no proof that a queue is missing: the group has a ladder, in force or not."""
        self._had_ladder = True

    # --- which exist -------------------------------------------------------------------------------------------------

    def look_for_unknown(self) -> None:
        """Find out which queues exist, in a group without a ladder, or that had none when they were looked for."""
        unknown = {queue: one for queue, one in self._readings.items() if not one.exists and self._needs(one)}
        if not unknown:
            return
        self._open_at = time.monotonic() + RETRY_EVERY
        absent = self._missing(frozenset(queue.topic for queue in unknown))
        for queue, reading in unknown.items():
            if absent is None:
                reading.doubt()
            elif queue.topic in absent:
                self._miss(queue, reading)
            else:
                reading.doubt()
                reading.exists, self._open_at = True, 0.0

    def _needs(self, reading: QueueReading) -> bool:
        """Return whether a queue that is not open is to be looked for now.

        One that was absent is looked for without a ladder too: redrives, other instances, and copies that were refused
        before the ladder ended may be written there (5.11).
        """
        if not reading.absent:
            return True
        return time.monotonic() >= reading.looked_at + (IDLE if self._policy().queued else LOOK_SELDOM)

    def _miss(self, queue: Partition, reading: QueueReading) -> None:
        """Note that a queue does not exist; have the lane go on without it once that is sure."""
        now, is_wanted = time.monotonic(), self._policy().queued
        reading.missing_since, reading.looked_at = min(now, reading.missing_since), now
        if not is_wanted:
            reading.exists = False  # so that there is no client
        self._had_ladder = self._had_ladder or is_wanted
        if not reading.absent and (not self._had_ladder or now >= reading.missing_since + SURE_AFTER):
            reading.absent = True
            if is_wanted:
                name_missing(queue)
            self._listener.queue_absent(queue, reading.epoch)

    # --- which can be read -------------------------------------------------------------------------------------------

    def open_more(self) -> None:
        """Open the queues whose progress, and whose end, Kafka tells."""
        self._open_at = time.monotonic() + RETRY_EVERY
        waiting = {
            queue: reading
            for queue, reading in self._readings.items()
            if reading.position < 0 and reading.exists and self._needs(reading)
        }
        progress_of = committed(self._clients.following, list(waiting), patient=False) if waiting else {}
        silent, edges = False, dict[Partition, tuple[int, int]]()
        for queue, reading in sorted(waiting.items(), key=lambda item: item[1].asked_at):
            if queue not in progress_of:
                reading.doubt()
            elif not silent:  # one leader that does not answer takes seconds, in which nothing else is read
                edge, silent = self._edges_of(queue, reading)
                if edge is not None and reading.absent:
                    reading.looked_at = time.monotonic()
                    self._come(queue.topic)
                elif edge is not None:
                    edges[queue] = edge
        # Behind the question for the ends: what was empty then, and is another log, is seen to be another one now.
        of_these = self._logs.of_these_logs(self._clients.reader, {queue: progress_of[queue] for queue in edges})
        for queue in edges.keys() & of_these.keys():
            self._begin(queue, self._readings[queue], of_these[queue], edges[queue])
        missed = {queue.topic for queue, reading in waiting.items() if reading.missing_since < inf}
        for client in (self._clients.following, self._clients.reader) if missed else ():
            named_topics(client, missed, EDGES_WITHIN)  # else it would hold for minutes what was true of them before
        self._open_at = max(self._open_at, time.monotonic() + RETRY_EVERY) if silent else self._open_at
        self._name_late()

    def _name_late(self) -> None:
        for queue, reading in self._readings.items():
            late = time.monotonic() - reading.since > LATE
            if late and not (reading.caught_up or reading.named or reading.absent):
                reading.named = True
                text = "%s is not read up to its end yet, so nothing of its main partition is delivered: %s"
                why = self._clients.last_error or (
                    "a transaction is open" if reading.position >= 0 else "its offsets are unknown"
                )
                _LOG.warning(text, queue, why, extra={"event": "queue-unread", "partition": str(queue)})

    def _edges_of(self, queue: Partition, reading: QueueReading) -> tuple[tuple[int, int] | None, bool]:
        """Return where the log of a queue begins and ends, and whether the answer was waited for in vain."""
        reading.asked_at = time.monotonic()
        edges = self._clients.edges(queue)
        if edges is NoEdges.MISSING:  # the topic is missing, or narrower than the main topic
            self._miss(queue, reading)
            return None, False
        if edges is NoEdges.UNTOLD:
            reading.doubt()
            return None, time.monotonic() >= reading.asked_at + SLOW  # what is refused at once keeps no other waiting
        return edges, False

    def _begin(
        self, queue: Partition, reading: QueueReading, progress: Progress | None, edges: tuple[int, int]
    ) -> None:
        """Begin to read a queue, whose log had these edges."""
        start = started(queue, progress, *edges)
        reading.position, reading.end, reading.missing_since = start.next, edges[1], inf
        reading.last_at_ms = start.last_at_ms
        self._logs.begin(queue, ReadSoFar(end_of_done(start), start.last_at_ms or 0))
        self._clients.follow(queue, start.next)
        self._listener.queue_opened(AssignedPartition(queue, reading.epoch, start))
        self._intake.hand_over(queue, reading, [], None)
