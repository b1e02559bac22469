"""The ways in which the demo's shop can get its orders. Pure: the names, and what depends on nothing but them."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """Who hands the orders over, and what a failure does."""

    PUSH = "push"
    BATCH = "batch"
    ORDERED = "ordered"
    PULL = "pull"
    RELAY = "relay"

    @property
    def is_served(self) -> bool:
        """Whether the shop is a server that the sidecar calls; else it is itself the one who calls or reads."""
        return self in (Mode.PUSH, Mode.BATCH, Mode.ORDERED)
