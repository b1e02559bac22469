"""Give revoked partitions up: in order, or at once where the group does not wait for that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sidecar.core.record import Partition
from sidecar.kafka.consumer.listeners import AssignmentListener

LOOK_EVERY = 0.02
"""Seconds between two checks whether the partitions may still be committed."""

_LOG = logging.getLogger("reconsume.assignment")


class DropReason(NamedTuple):
    """Why revoked partitions are dropped with deliveries still out, as the log says it."""

    event: str
    text: str


UNANSWERED = DropReason("gave-up-unanswered", "gave up %d partitions with deliveries still out: %s")
GIVEN_AWAY = DropReason("given-away", "the group has given away %d partitions before they were given up: %s")


def release(
    sources: Sequence[Partition], listener: AssignmentListener, lock_timeout: float, is_given_away: Callable[[], bool]
) -> None:
    """Wait until nothing of the partitions is under way. Drop them after `lock_timeout` seconds.

    Drop them at once if they may be another member's already: then nothing of them may be committed any more.
    """
    done = threading.Event()
    listener.release(sources, done.set)
    deadline = time.monotonic() + lock_timeout
    while not done.wait(LOOK_EVERY) and time.monotonic() < deadline:
        if is_given_away():
            drop(sources, listener, GIVEN_AWAY)
            return
    if not done.is_set():
        drop(sources, listener, UNANSWERED)


def drop(sources: Sequence[Partition], listener: AssignmentListener, why: DropReason) -> None:
    """Drop partitions, commit nothing more of them, and log why."""
    names = ", ".join(str(source) for source in sources)
    _LOG.warning(why.text, len(sources), names, extra={"event": why.event})
    listener.dropped(sources)
