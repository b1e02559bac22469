"""Trace contexts in a record's headers: the producer's, the attempt's before, and this attempt's. Pure.

Headers come from whoever may produce: what is not in W3C's form is no context, and a link never more than a hint.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from topics.headers import RETRY_TRACEPARENT, Headers, attempt_before

PARENT, STATE = "traceparent", "tracestate"
_W3C = TraceContextTextMapPropagator()


def origin_of(headers: Headers) -> SpanContext | None:
    """The context that the record's producer gave it; None where there is none that is valid."""
    return _read({name.lower(): _text(value) for name, value in headers if name.lower() in (PARENT, STATE)})


def before_of(headers: Headers) -> SpanContext | None:
    """The context of the attempt before, as our own header tells it; None for a first attempt."""
    before = attempt_before(headers)
    return None if before is None else _read({PARENT: _text(before)})


def within(parent: SpanContext | None) -> Context:
    """A context whose current span is `parent`, or none at all: never what happens to be current here."""
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def handed_on(headers: Headers, span: Span) -> Headers:
    """The headers that the service gets: the attempt's context in place of the producer's, the rest in order."""
    rest = [header for header in headers if header[0].lower() not in (PARENT, STATE)]
    return [*((name, value.encode("latin-1")) for name, value in _written(span).items()), *rest]


def mark(headers: Headers, span: Span) -> None:
    """Note the attempt in the record's list of headers, for its copy or its next delivery, in place of one before.

    In place, because the pace tells probes by the record's identity; the list is the record's alone.
    """
    headers[:] = [header for header in headers if header[0] != RETRY_TRACEPARENT]
    headers.append((RETRY_TRACEPARENT, _written(span)[PARENT].encode("latin-1")))


def _written(span: Span) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span, Context()))
    return carrier


def _read(carrier: dict[str, str]) -> SpanContext | None:
    found = get_current_span(_W3C.extract(carrier, Context())).get_span_context()
    return found if found.is_valid else None


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1")
