"""Former names of settings. Each is taken for one release after its change, with a warning."""

from __future__ import annotations

from collections.abc import Mapping

FORMER_NAMES: Mapping[tuple[str, ...], tuple[str, ...]] = {("deliver", "max_held"): ("deliver", "buffer_memory")}
"""The present path of a setting, by its former one. An entry goes with the release after the one that it came with."""


def twice(former: tuple[str, ...], origin: str | None) -> str:
    """Return the fault of a source that sets a setting by both names."""
    present = ".".join(FORMER_NAMES[former])
    return f"{'.'.join(former)}: is the former name of {present}, which is set too{in_brackets(origin)}"


def warning(former: tuple[str, ...], origin: str | None) -> str:
    """Return the warning about a setting that came by its former name."""
    present = ".".join(FORMER_NAMES[former])
    return f"{'.'.join(former)} is called {present} now; the next release refuses the old name{in_brackets(origin)}"


def in_brackets(origin: str | None) -> str:
    """Return an origin as the end of a sentence. Empty if it is not known."""
    return "" if origin is None else f" ({origin})"
