"""Whether attempts are traced. Without tracing a delivery is handed on as it is, so that no record pays for it."""

from __future__ import annotations

from typing import Protocol

from sidecar.core.ports import Delivery
from sidecar.errors import ConfigError
from sidecar.settings.model import Settings

MISSING = "tracing.enabled: needs OpenTelemetry, which is not installed: pip install 'reconsume[otel]'"


class Tracing(Protocol):
    """What the sidecar asks of it, on the event loop."""

    def around(self, delivery: Delivery) -> Delivery:
        """The delivery that the lanes are to use."""

    async def close(self) -> None:
        """Hand over what is known so far, within a second."""


class Untraced:
    """No tracing."""

    def around(self, delivery: Delivery) -> Delivery:
        """The delivery itself."""
        return delivery

    async def close(self) -> None:
        """There is nothing to hand over."""


def build_tracing(settings: Settings, instance: str) -> Tracing:
    """Who traces; ConfigError when OpenTelemetry is asked for and not there."""
    if not settings.tracing.enabled:
        return Untraced()
    try:
        from sidecar.observability.tracing.export import Exported
    except ImportError as missing:
        raise ConfigError([f"{MISSING} ({missing})"]) from missing
    return Exported(settings.group, instance)
