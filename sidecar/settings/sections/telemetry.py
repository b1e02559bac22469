"""The sections `tracing` and `log`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reconsume.sidecar.settings.values import Section


class Tracing(Section):
    """`tracing`: each attempt as an OpenTelemetry span."""

    enabled: bool = Field(
        default=False,
        description=(
            "Export each attempt as a span, linked to the attempt before, and hand its `traceparent` to the service. "
            "Needs `pip install '.[otel]'` in a clone of the repository; where to, how often and under which name is "
            "said by the variables of OpenTelemetry, "
            "such as `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`."
        ),
    )


class Log(Section):
    """`log`: what is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="The least important line that is still written. `info` writes nothing a record.",
    )
    format: Literal["json", "text"] = Field(
        default="json",
        description="One JSON object a line for machines, or text for people.",
    )
