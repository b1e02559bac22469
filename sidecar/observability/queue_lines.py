"""Log lines about the queue topics of an ordered group."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sidecar.core.record import Partition

_LOG = logging.getLogger("reconsume.lane")


def log_filling(partition: Partition, waiting: int, most: int, keys: Mapping[str, int]) -> None:
    """Log that three quarters of what may wait in the queue of a main partition do (port `Filling`).

    A key is named by the id of its first record: no key is ever logged.
    """
    largest = ", ".join(f"{count} of the key of {first}" for first, count in keys.items())
    text = "%s: %d of %d records that may wait behind their keys do; then it is paused. The largest keys: %s"
    extra = {"event": "queue-fills", "partition": str(partition), "waiting": waiting, "most": most, "keys": dict(keys)}
    _LOG.warning(text, partition, waiting, most, largest, extra=extra)
