"""One line for each delivery, with `log.level: debug`: to find a record of Kafka in the log of a service, and back.

The push client writes it when the response has come, or was given up, on the event loop. Without the level nothing here
is called.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from reconsume.sidecar.core.record import Record
from reconsume.sidecar.delivery.push.response_reader import Judged

_LOG = logging.getLogger("reconsume.deliveries")
"""Its lines are never summed up (`observability/repeats.py`)."""


class NoMemory(dict[bytes, Judged]):
    """Responses that are not remembered, so that the status of each is read."""

    def __setitem__(self, response: bytes, judged: Judged) -> None:
        """Forget it."""


def logs_deliveries() -> bool:
    """Return whether a line is written for each delivery."""
    return _LOG.isEnabledFor(logging.DEBUG)


def log_deliveries(records: Sequence[Record], path: str, status: int, ms: float) -> None:
    """Write a line for each record of a request. `status`: 0 if no response came."""
    for record in records:
        _LOG.debug(
            "delivered %s to %s: %s in %d ms",
            record.id,
            path,
            status or "no response",
            round(ms),
            extra={
                "event": "delivery",
                "id": record.id,
                "times": record.times,
                "path": path,
                "status": status or None,
                "ms": round(ms),
            },
        )
