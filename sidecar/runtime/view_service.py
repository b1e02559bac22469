"""The group-wide view in a running sidecar: the follower of its topics, and the queries.

All of it may fail without any effect on records. The sidecar starts before the view is read, and does not wait long for
it at a stop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from reconsume.sidecar.api.view import no_view_routes, view_routes
from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.http.calls import Call
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.observability.metric_sources import Sources
from reconsume.sidecar.observability.thread_watch import WatchedThread
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.view.follower import ViewFollower
from reconsume.sidecar.view.query import QueryPool, age
from reconsume.sidecar.view.source import Source

STOPPED_WITHIN = 2.0
"""Seconds that a stop waits for the thread. What it leaves behind is read again, or is in a temporary folder."""


@dataclass(frozen=True, slots=True)
class ViewService:
    """The parts of a sidecar that follow the view. Made and called on the event loop."""

    topic: ViewFollower
    readers: QueryPool

    def start(self) -> None:
        self.topic.start()

    async def stop(self) -> None:
        self.topic.stop()
        self.readers.close()
        await on_own_thread("stop", lambda: self.topic.join(STOPPED_WITHIN))

    def watched(self) -> list[WatchedThread]:
        """Return the thread that follows the view."""
        return self.topic.watched()

    def status(self) -> dict[str, object]:
        """Return the view's part of `/status`."""
        seen = self.topic.status
        return {
            "source": str(seen.source),
            "as_of": seen.as_of,
            "age_seconds": self.lag(),
            "complete_since": seen.since or None,
            "sums_since": seen.sums_since or None,
            "shortfall": seen.shortfall or None,
            "problem": seen.problem or None,
        }

    def lag(self) -> float | None:
        """Return the seconds by which the local copy may be behind; None while nothing is known."""
        seen = self.topic.status
        return None if seen.as_of is None else age(seen.as_of)

    def bad_records(self) -> dict[str, int]:
        """Return how many records were skipped, by the kind of their topic."""
        return {str(kind): count for kind, count in self.topic.status.bad.items()}


def build_view_service(settings: Settings, instance: str, registry: CredentialRegistry) -> ViewService | None:
    """Return the parts of the view; None if no view is followed."""
    view = settings.view
    if not view.enabled:
        return None
    folder = None if view.folder is None else Path(view.folder)
    client, credentials = f"reconsume-{settings.group}-view-{instance}", registry.register("view")
    source = Source(view.source)
    topic = ViewFollower(settings.kafka, settings.names, folder, client, credentials=credentials, source=source)
    return ViewService(topic, QueryPool(topic))


def view_calls(view_service: ViewService | None) -> list[Call]:
    """Return the API calls of the view. Without a view they answer that there is none."""
    return no_view_routes() if view_service is None else view_routes(view_service.readers)


def with_view(sources: Sources, view_service: ViewService | None) -> Sources:
    """Return what a scrape reads, together with what is known of the view."""
    if view_service is None:
        return sources
    return replace(sources, view_lag=view_service.lag, bad_view_records=view_service.bad_records)
