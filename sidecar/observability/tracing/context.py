"""Trace contexts in a record's headers: the producer's, the previous attempt's, and this attempt's. Pure.

Any client that may produce can set headers. So a value that is not in W3C's form is no context, and a link is never
more than a hint.
"""

from __future__ import annotations

import logging

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from reconsume.topics.render_headers import RETRY_TRACEPARENT, attempt_before
from reconsume.topics.retry_headers import Headers

PARENT, STATE = "traceparent", "tracestate"
_W3C = TraceContextTextMapPropagator()
# Its warnings quote what a producer has put into a record's headers, one for each record.
logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)


def origin_of(headers: Headers) -> SpanContext | None:
    """Return the context that the record's producer gave it; None if there is no valid one."""
    return _read({name.lower(): _text(value) for name, value in headers if name.lower() in (PARENT, STATE)})


def before_of(headers: Headers) -> SpanContext | None:
    """Return the context of the previous attempt, from our own header; None for a first attempt."""
    before = attempt_before(headers)
    return None if before is None else _read({PARENT: _text(before)})


def within(parent: SpanContext | None) -> Context:
    """Return a context with `parent` as its current span, or with none; never the one that is current here."""
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def handed_on(headers: Headers, span: Span) -> Headers:
    """Return the headers for the service: the attempt's context replaces the producer's, the rest is in order."""
    rest = [header for header in headers if header[0].lower() not in (PARENT, STATE)]
    return [*((name, value.encode("latin-1")) for name, value in _written(span).items()), *rest]


def mark(headers: Headers, span: Span) -> None:
    """Note the attempt in the record's list of headers, for its copy or its next delivery.

    It replaces the note of an earlier attempt. The list is changed in place, because the pace recognises probes by the
    record's identity. The list belongs to this record alone.
    """
    # In place, into the record's own list: the pace recognises a probe by the identity of its record.
    headers[:] = [header for header in headers if header[0] != RETRY_TRACEPARENT]
    headers.append((RETRY_TRACEPARENT, _written(span)[PARENT].encode("latin-1")))


def _written(span: Span) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span, Context()))
    return carrier


def _read(carrier: dict[str, str]) -> SpanContext | None:
    context = get_current_span(_W3C.extract(carrier, Context())).get_span_context()
    return context if context.is_valid else None


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1")
