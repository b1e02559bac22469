"""Export spans to an OTLP collector by HTTP, as OpenTelemetry's variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`)."""

from __future__ import annotations

import asyncio
import threading
import time
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from reconsume.sidecar.core.ports import Delivery
from reconsume.sidecar.observability.tracing.spans import Attempts

FLUSH_WITHIN = 1.0
"""Seconds that a stop waits for the collector. Spans are worth less than a pod that ends in time."""
UNNAMED = "unknown_service"


class Exported:
    """Tracing that exports on a thread of its own; implements `setup.Tracing`."""

    def __init__(self, group: str, instance: str) -> None:
        # No shutdown at exit: an exporter without a collector would delay the end of the process by half a minute.
        self._provider = TracerProvider(resource=resource(instance), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("reconsume", version("reconsume"))
        self._group = group

    def around(self, delivery: Delivery) -> Delivery:
        """Return the delivery with a span for each attempt."""
        return Attempts(delivery, self._tracer, self._group)

    async def close(self) -> None:
        """Export the remaining spans within a second. Those that the collector does not take by then are lost."""
        flushing = threading.Thread(target=self._provider.force_flush, name="span-flush", daemon=True)
        flushing.start()
        deadline = time.monotonic() + FLUSH_WITHIN
        while flushing.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)


def resource(instance: str) -> Resource:
    """Return the identity of this process: OpenTelemetry's variables first, our names where they give none."""
    ours = Resource({SERVICE_NAME: "reconsume", SERVICE_INSTANCE_ID: instance, SERVICE_VERSION: version("reconsume")})
    theirs = Resource.create()
    named = not str(theirs.attributes.get(SERVICE_NAME, UNNAMED)).startswith(UNNAMED)
    return ours.merge(theirs) if named else theirs.merge(ours)
