"""A collector of OpenTelemetry's spans on loopback: what was exported, as plain values.

with Collector() as collector:
    ...OTEL_EXPORTER_OTLP_ENDPOINT=collector.url...
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2


class Exported(NamedTuple):
    """One span. `links` are places by what they link to; a place is `<trace id>-<span id>` in hex. Times epoch ns."""

    name: str
    trace: str
    span: str
    parent: str
    links: dict[str, str]
    attributes: dict[str, Any]
    resource: dict[str, Any]
    consumer: bool
    failed: bool
    began: int
    ended: int

    @property
    def place(self) -> str:
        """The span as a `traceparent` names it, without version and flags."""
        return f"{self.trace}-{self.span}"


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self._spans: list[Exported] = []
        spans = self._spans

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                spans.extend(_read(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def url(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` is to be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def spans(self) -> tuple[Exported, ...]:
        """All so far, by the time when they began."""
        return tuple(sorted(self._spans, key=lambda span: span.began))


def _read(request: ExportTraceServiceRequest) -> list[Exported]:
    return [
        _span(span, _plain(batch.resource.attributes))
        for batch in request.resource_spans
        for scope in batch.scope_spans
        for span in scope.spans
    ]


def _span(span: trace_pb2.Span, resource: dict[str, Any]) -> Exported:
    return Exported(
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links={
            str(_plain(link.attributes)["reconsume.link"]): f"{link.trace_id.hex()}-{link.span_id.hex()}"
            for link in span.links
        },
        attributes=_plain(span.attributes),
        resource=resource,
        consumer=span.kind == trace_pb2.Span.SPAN_KIND_CONSUMER,
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
