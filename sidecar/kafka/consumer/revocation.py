"""Give revoked partitions up: in order, or at once where the group does not wait for that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.listeners import AssignmentListener
from reconsume.sidecar.printable import plural

LOOK_EVERY = 0.02
"""Seconds between two checks whether the partitions may still be committed."""

_LOG = logging.getLogger("reconsume.assignment")


def release(
    sources: Sequence[Partition], listener: AssignmentListener, lock_timeout: float, is_given_away: Callable[[], bool]
) -> bool:
    """Wait until nothing of the partitions is under way. Drop them after `lock_timeout` seconds.

    Drop them at once if they may be another member's already: then nothing of them may be committed any more. Return
    whether that was so.
    """
    done = threading.Event()
    listener.release(sources, done.set)
    deadline = time.monotonic() + lock_timeout
    while not done.wait(LOOK_EVERY) and time.monotonic() < deadline:
        if is_given_away():
            drop_given_away(sources, listener)
            return True
    if not done.is_set():
        text = "gave up %s with deliveries still out: %s"
        extra = {"event": "gave-up-unanswered", "about": list(map(str, sources))}
        _LOG.warning(text, plural(len(sources), "partition"), _names(sources), extra=extra)
        listener.dropped(sources)
    return False


def drop_given_away(sources: Sequence[Partition], listener: AssignmentListener) -> None:
    """Drop partitions that may be another member's already; commit nothing more of them."""
    text = "the group gave %s away before this instance had released it: %s"
    extra = {"event": "given-away", "about": list(map(str, sources))}
    _LOG.warning(text, plural(len(sources), "partition"), _names(sources), extra=extra)
    listener.dropped(sources)


def _names(sources: Sequence[Partition]) -> str:
    return ", ".join(str(source) for source in sources)
