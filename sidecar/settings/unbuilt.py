"""What the configuration knows and this version cannot do yet: the one list of it.

`run` refuses these settings instead of ignoring them; `config check` warns. A line is deleted when its part is built.
"""

from __future__ import annotations

from collections.abc import Callable

from sidecar.settings.model import Settings

UNBUILT: tuple[tuple[str, Callable[[Settings], object | None]], ...] = (
    ("deliver.mode", lambda settings: settings.deliver.mode if settings.deliver.mode != "push" else None),
    ("deliver.health_url", lambda settings: settings.deliver.health_url),
    ("deliver.order", lambda settings: settings.deliver.order if settings.deliver.order != "none" else None),
    ("deliver.broadcast", lambda settings: "true" if settings.deliver.broadcast else None),
    ("deliver.batch.max_size", lambda settings: larger_batch(settings)),
    ("topics[].tags", lambda settings: next((topic.tags for topic in settings.topics if topic.tags != "*"), None)),
    ("view.enabled", lambda settings: "true" if settings.view.enabled else None),
    ("policy_mode", lambda settings: settings.policy_mode if settings.policy_mode != "last-writer" else None),
)
"""Each setting's key, and its value when that is not built yet, else None."""


def larger_batch(settings: Settings) -> int | None:
    """The size of a batch, if it is more than one record."""
    size = settings.deliver.batch.max_size
    return size if size > 1 else None


def not_built(settings: Settings) -> tuple[str, ...]:
    """A sentence for each setting that this version would have to ignore."""
    found = ((key, value(settings)) for key, value in UNBUILT)
    return tuple(f"{key} = {value}: is not built yet in this version" for key, value in found if value is not None)
