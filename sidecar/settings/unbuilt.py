"""What the configuration knows and this version cannot do yet: the one list of it.

`run` refuses these settings instead of ignoring them; `config check` warns. A line is deleted when its part is built.
"""

from __future__ import annotations

from collections.abc import Callable

from sidecar.settings.model import Settings

UNBUILT: tuple[tuple[str, Callable[[Settings], object | None]], ...] = (
    ("view.enabled", lambda settings: "true" if settings.view.enabled else None),
)
"""Each setting's key, and its value when that is not built yet, else None."""


def not_built(settings: Settings) -> tuple[str, ...]:
    """A sentence for each setting that this version would have to ignore."""
    found = ((key, value(settings)) for key, value in UNBUILT)
    return tuple(f"{key} = {value}: is not built yet in this version" for key, value in found if value is not None)
