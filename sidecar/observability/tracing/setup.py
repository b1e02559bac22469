"""Choose whether attempts are traced.

Without tracing a delivery is passed on unchanged, so that no record pays for it.
"""

from __future__ import annotations

from typing import Protocol

from reconsume.sidecar.core.ports import Delivery
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.model import Settings

MISSING = (
    "tracing.enabled: needs OpenTelemetry, which is not installed: pip install '.[otel]' in a clone of Reconsume's "
    "repository"
)


class Tracing(Protocol):
    """Tracing, as the sidecar uses it on the event loop."""

    def around(self, delivery: Delivery) -> Delivery:
        """Return the delivery that the lanes are to use."""

    async def close(self) -> None:
        """Export what is known so far, within a second."""


class Untraced:
    """No tracing."""

    def around(self, delivery: Delivery) -> Delivery:
        """Return the delivery unchanged."""
        return delivery

    async def close(self) -> None:
        """Do nothing: there is nothing to export."""


def build_tracing(settings: Settings, instance: str) -> Tracing:
    """Return the tracing of these settings. Raises ConfigError if it needs OpenTelemetry, which is not installed."""
    if not settings.tracing.enabled:
        return Untraced()
    try:
        from reconsume.sidecar.observability.tracing.export import Exported
    except ImportError as missing:
        raise ConfigError([f"{MISSING} ({missing})"]) from missing
    return Exported(settings.group, instance)
