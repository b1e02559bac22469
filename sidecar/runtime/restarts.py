"""Restart in place: the one way out of doubts that no call of Kafka's client removes. The start is the recovery.

The threads that read Kafka report a cause (`kafka/listeners.py`). The sidecar's watch asks once a second what is
due. Then the sidecar drains, leaves its groups, and the process becomes a new one of the same program (`os.execv`):
same pid, arguments and environment, and no memory of what was read. States of a process:

    state     | what it means                                  | leaves to, when
    ----------|------------------------------------------------|----------------
    calm      | nobody has asked                               | gathering: a queue topic was created or recreated
    calm      |                                                | due: a main topic was recreated, or a client is deaf
    gathering | the set of queue topics may still change       | due: unchanged for `UNCHANGED`, and our turn has come
    gathering |                                                | due: another reason, which waits for nobody
    due       | the process drains, then restarts or ends      | ends with `USED_UP`: `MOST` restarts within `WITHIN`

Invariants: one restart answers all that was asked so far; a reason leads to one restart for each incarnation of a topic
within `WITHIN`; what the process knows of its restarts, and which partitions it gave up before Kafka took their last
commits, travels in the environment variable `VARIABLE`, and nowhere else. Listening sockets stay open, so that callers
wait instead of being refused (`http/listeners.py`).

`ask` is called on any thread; all else on the event loop's, which is the main thread.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from itertools import islice
from typing import NoReturn

import msgspec

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.listeners import RestartCause, RestartReason

VARIABLE = "SIDECAR_RESTARTS"
"""It has not the prefix of settings, because it is not one."""
USED_UP = os.EX_TEMPFAIL
"""The exit code (75) of a process that has restarted too often: whoever supervises it begins with a delay."""
MOST, WITHIN = 5, 600.0
"""Restarts in place within so many seconds."""
UNCHANGED = 5.0
"""Seconds for which the set of queue topics must be the same: `topics apply` creates them one by one."""
LONGEST_TURN = 5.0
"""Seconds of the random wait for a restart that can wait, so that instances of a group do not all leave together."""
BROKEN_DRAIN = 4.0
"""Seconds of a drain when something of the process is broken: what is in flight then is delivered again. Five are
promised; a group that was left by its only member waits 3 s for others before it takes one again."""
UNREAD_FOR = 45.0
"""Seconds before a restart for which a deaf client may have read nothing: 30 until that is noticed, and the drain."""
MOST_UNCLEAN = 100
"""Partitions of one consumer group in the environment, whose variables have at most 128 KiB. Of others one
crash too many is counted."""
LEAVE_WITHIN = 2.0
"""Seconds to leave the group in. A member that only disappears delays the group by its session timeout."""

_LOG = logging.getLogger("reconsume.run")


class RestartedInPlace(msgspec.Struct, frozen=True):
    """One restart: when (epoch seconds), the first reason, and the topics, by reason and incarnation."""

    at: float
    reason: str
    answered: list[tuple[str, str, str]]


class RestartHistory(msgspec.Struct):
    """What travels: the restarts of the last `WITHIN` seconds, and how many there were in all, by reason.

    `unclean`: by consumer group, the partitions that were given up without the clean mark, each with its digest
    (`SuspectGate.unclean_partitions`).
    """

    recent: list[RestartedInPlace] = []
    totals: dict[str, int] = {}
    unclean: dict[str, list[tuple[str, int, int]]] = {}


class Restarts:
    """The restarts of one process, past and asked for. `environ`: the variable is taken out of it."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        text = environ.pop(VARIABLE, None)
        self._history = msgspec.json.decode(text, type=RestartHistory) if text else RestartHistory()
        self._causes: dict[tuple[str, str, str], RestartCause] = {}
        self._changed_at = 0.0
        """When a queue topic was reported last that was not before (monotonic seconds)."""
        self._turn = random.uniform(0, LONGEST_TURN)
        self._lock = threading.Lock()

    def ask(self, cause: RestartCause) -> bool:
        """Ask for a restart in place (`AskRestart`)."""
        key = (str(cause.reason), cause.topic, cause.incarnation)
        with self._lock:
            if key in self._causes:
                return True
            if any(key in restart.answered for restart in self.recent()):
                return False
            self._causes[key] = cause
            self._changed_at = time.monotonic()
        text = "restarting in place soon: %s of %s"
        extra = {"event": "restart-asked", "reason": key[0], "topic": cause.topic}
        _LOG.warning(text, cause.reason, cause.topic, extra=extra)
        return True

    def is_due(self) -> bool:
        """Return whether the process is to drain now and to restart."""
        with self._lock:
            waits = all(cause.reason is RestartReason.QUEUE_TOPIC for cause in self._causes.values())
            since = time.monotonic() - self._changed_at
            return bool(self._causes) and (not waits or since >= UNCHANGED + self._turn)

    @property
    def is_broken(self) -> bool:
        """Whether something of the process is broken, so that its drain must be short."""
        with self._lock:
            return any(cause.broken for cause in self._causes.values())

    @property
    def are_used_up(self) -> bool:
        """Whether the process must end instead of restarting once more."""
        return len(self.recent()) >= MOST

    def recent(self) -> list[RestartedInPlace]:
        """Return the restarts of the last `WITHIN` seconds, the oldest first."""
        return [restart for restart in self._history.recent if time.time() - restart.at < WITHIN]

    def unread_since_ms(self) -> int | None:
        """Return since when (epoch ms) the process before may not have read what was written; None at other starts."""
        return round((self._history.recent[-1].at - UNREAD_FOR) * 1000) if self._history.recent else None

    def unclean_of(self, group: str) -> Mapping[Partition, int]:
        """Return the partitions of a consumer group that the process before gave up without the clean mark."""
        return {Partition(topic, number): digest for topic, number, digest in self._history.unclean.get(group, ())}

    def totals(self) -> dict[str, int]:
        """Return how often this process has restarted in place, by reason, with all reasons."""
        return dict.fromkeys(map(str, RestartReason), 0) | self._history.totals

    def status(self) -> list[dict[str, object]]:
        """Return `restarted_in_place` of `/status`."""
        return [{"at": round(restart.at * 1000), "reason": restart.reason} for restart in self.recent()]

    def note_restart(self, environ: MutableMapping[str, str], unclean: Mapping[str, Mapping[Partition, int]]) -> None:
        """Log the restart that follows, and put what the next process must know into its environment.

        `unclean`: by consumer group, the partitions that were given up without the clean mark.
        """
        with self._lock:
            answered = sorted(self._causes)
            reason = str(next(iter(self._causes.values())).reason)
        topics = sorted({topic for _, topic, _ in answered})
        extra = {"event": "restart-in-place", "reason": reason, "topics": topics}
        _LOG.warning("the process restarts in place: %s of %s", reason, ", ".join(topics), extra=extra)
        recent = [*self.recent(), RestartedInPlace(time.time(), reason, answered)]
        totals = {**self.totals(), reason: self.totals()[reason] + 1}
        partitions = {
            group: [(one.topic, one.number, digest) for one, digest in islice(digests.items(), MOST_UNCLEAN)]
            for group, digests in unclean.items()
            if digests
        }
        environ[VARIABLE] = msgspec.json.encode(RestartHistory(recent, totals, partitions)).decode()


def become_new() -> NoReturn:
    """Become a new process of this program. Raises OSError if the program cannot be started.

    SIGTERM and SIGINT must be blocked in all threads (`runtime/stop_signals.py`): they wait for the new process.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)
