"""Log lines about the queue topics of an ordered group."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.printable import plural

_LOG = logging.getLogger("reconsume.lane")


def log_filling(partition: Partition, waiting: int, most: int, fill: float, keys: Mapping[str, int]) -> None:
    """Log that three quarters of what may wait in the queue of a main partition do (port `Filling`).

    A key is named by the id of its first record: no key is ever logged.
    """
    largest = "the most " + ", ".join(f"{count} of the key of {first}" for first, count in keys.items())
    text = "%s: %d %% of what may wait behind its keys does, and at 100 %% it is paused: %s of %d, %s"
    extra = {
        "event": "queue-fills",
        "partition": str(partition),
        "waiting": waiting,
        "most": most,
        "fill": round(fill, 2),
        "keys": dict(keys),
    }
    _LOG.warning(text, partition, round(100 * fill), plural(waiting, "record"), most, largest, extra=extra)
