"""What is measured, counted and logged of responses: their times, odd verdicts, and one line for each delivery.

The line is written with `log.level: debug`, to find a record of Kafka in the log of a service, and back: when the
response has come, or was given up. Event loop alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.pace.refusals import Sent
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.delivery.push.batch_verdicts import Verdicts
from reconsume.sidecar.delivery.push.odd_verdicts import OddVerdicts
from reconsume.sidecar.delivery.push.response_reader import Judged

if TYPE_CHECKING:
    from reconsume.sidecar.delivery.push.connection import Connection

DURATION_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 900.0)
"""Seconds. The last bound is the usual `consume_timeout`."""

_LOG = logging.getLogger("reconsume.deliveries")
"""Its lines are never summed up (`observability/repeats.py`)."""


class ResponseMeter(Protocol):
    """Measures responses where the number in flight follows the service (`Dispatcher`)."""

    @property
    def auto(self) -> object | None:
        """What follows the service; None while the number is fixed."""

    def responded(self, kind: Hashable, sent_ms: float, now_ms: float, in_flight: int, outcome: object) -> None:
        """Note a response: the kind of its request, when that was sent and answered (ms of the loop's clock), how many
        were in flight, and what it means."""

    def answer_round(self, tell: Callable[[], None], now: Callable[[], Now]) -> None:
        """Have `tell` pass on responses that came together; the next deliveries start after the last one."""


class NoMemory(dict[bytes, Judged]):
    """Responses that are not remembered, so that the status of each is read."""

    def __setitem__(self, response: bytes, judged: Judged) -> None:
        """Forget it."""


class Responses:
    """What is known of the responses of one pool. `sent`: returns what a request with a record is, for people."""

    def __init__(self, sent: Callable[[Record], Sent]) -> None:
        self.durations = Histogram(DURATION_BOUNDS)
        """Seconds from the call to the answer, for deliveries that were sent."""
        self.odd_verdicts = OddVerdicts()
        self.meter: ResponseMeter | None = None
        """Told of each response, before its outcome is passed on; None where records are not pushed by a dispatcher."""
        self.logs_each = _LOG.isEnabledFor(logging.DEBUG)
        """Whether a line is written for each delivery."""
        self.sent = sent

    @property
    def are_told(self) -> bool:
        """Whether anybody is told of each response (`tell`)."""
        return self.logs_each or ((meter := self.meter) is not None and meter.auto is not None)

    def tell(
        self, connection: Connection, what: Any, kind: Callable[[Any], Hashable], judged: Judged, now: float, busy: int
    ) -> None:
        """Tell the meter and the log how long a response took. `busy`: the connections with a request; `now`: loop time
        (seconds)."""
        if self.meter is not None and self.meter.auto is not None:
            outcome = COMMITTED if isinstance(judged, Verdicts) else judged
            self.meter.responded(kind(what), connection.began * 1000, now * 1000, busy, outcome)
        if self.logs_each:
            records = [what] if isinstance(what, Record) else what.records
            log_deliveries(records, self.sent(records[0]).path, connection.status, (now - connection.began) * 1000)


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
