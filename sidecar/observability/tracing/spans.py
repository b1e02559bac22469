"""A span for each attempt, around any delivery (OpenTelemetry's conventions for messaging, kind CONSUMER).

All attempts of a record are children of the producer's span. If the producer traces nothing, each is a child of the
attempt before. Each has a link to the attempt before and to the producer. So a retry after two hours is a short span of
its own, in the trace where people look for it. A span begins when the record is handed over. In a batch that is when it
is gathered, in pull mode when it may be received. A record that never reached the service has no span.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec.structs import replace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from reconsume.sidecar.core.outcome import (
    Cancelled,
    Committed,
    Died,
    Expired,
    Failed,
    NotSent,
    Outcome,
    Rejected,
    label_of,
)
from reconsume.sidecar.core.ports import Delivery, Reply
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.observability.tracing.context import before_of, handed_on, mark, origin_of, within


class Attempts:
    """A delivery with a span for each attempt; implements `core.ports.Delivery`."""

    def __init__(self, delivery: Delivery, tracer: Tracer, group: str) -> None:
        self._delivery, self._tracer, self._group = delivery, tracer, group
        self.durations = delivery.durations

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery in a span. `reply` gets the record as it came, and its outcome, exactly once."""
        headers = [] if record.headers is None else record.headers
        span = self._begin_span(record, origin_of(headers), before_of(headers))

        def ended(_sent: Record, outcome: Outcome, now: Now) -> None:
            # These are no attempts. A span that never ends is never exported.
            if not isinstance(outcome, NotSent | Died | Cancelled):
                if not isinstance(outcome, Committed) and record.headers is not None:
                    mark(record.headers, span)
                end(span, outcome)
            reply(record, outcome, now)

        self._delivery(replace(record, headers=handed_on(headers, span)), ended)

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Take back the records that the service does not have yet."""
        self._delivery.recall(partitions, lost=lost)

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        """Give back the held records that the service does not have yet."""
        self._delivery.withdraw(is_held)

    def close(self) -> None:
        """Take no more deliveries."""
        self._delivery.close()

    def _begin_span(self, record: Record, origin: SpanContext | None, before: SpanContext | None) -> Span:
        links = [
            Link(context, {"reconsume.link": what})
            for what, context in (("attempt-before", before), ("origin", origin))
            if context is not None
        ]
        return self._tracer.start_span(
            f"process {record.source.topic}",
            within(before if origin is None else origin),
            SpanKind.CONSUMER,
            attributes_of(record, self._group),
            links,
        )


def attributes_of(record: Record, group: str) -> dict[str, AttributeValue]:
    """Return a span's attributes of its record: never key, value or headers."""
    size = {"messaging.message.body.size": len(record.value)} if record.value is not None else {}
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": record.source.topic,
        "messaging.destination.partition.id": str(record.source.number),
        "messaging.kafka.offset": record.offset,
        "messaging.kafka.message.tombstone": record.value is None,
        "messaging.consumer.group.name": group,
        "messaging.message.id": record.id,
        "reconsume.topic": record.main_topic,
        "reconsume.times": record.times,
        "reconsume.redrives": record.redrives,
        **size,
    }


def end(span: Span, outcome: Outcome) -> None:
    """Set the outcome of an attempt on its span, and end the span."""
    span.set_attribute("reconsume.outcome", label_of(outcome))
    match outcome:
        case Failed(reason=reason) | Rejected(reason=reason) | Expired(reason=reason):
            _fail(span, reason)
        case _:
            pass
    span.end()


def _fail(span: Span, reason: str) -> None:
    span.set_attribute("error.type", reason)
    span.set_status(Status(StatusCode.ERROR, reason))
