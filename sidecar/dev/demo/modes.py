"""The ways in which the demo's shop can get its orders. Pure: the names, and what follows from them alone."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """How orders reach the shop, and the effect of a failure."""

    PUSH = "push"
    BATCH = "batch"
    ORDERED = "ordered"
    PULL = "pull"
    RELAY = "relay"

    @property
    def is_served(self) -> bool:
        """Whether the shop is a server that the sidecar calls; else the shop itself calls or reads."""
        return self in (Mode.PUSH, Mode.BATCH, Mode.ORDERED)
