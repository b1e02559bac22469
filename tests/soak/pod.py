"""One pod of a soak, and a time for which it stood still."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.sidecar.process import SidecarProcess


class Stood(NamedTuple):
    """A pod that was stopped, from when to when (epoch ms)."""

    pod: str
    since: int
    until: int


class Pod:
    """One sidecar, and what is wanted of it."""

    def __init__(self, slot: int, generation: int, variant: str, process: SidecarProcess) -> None:
        self.slot, self.generation, self.variant, self.process = slot, generation, variant, process
        self.wanted = False
        self.unwell = 0
        self._logged = 0
        """How long its log was when its container was started last."""

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.process.pod

    def start(self) -> None:
        """Start its container, for the first time or again."""
        self._logged = len(self.process.log())
        self.process.start()

    @property
    def begun(self) -> bool:
        """Whether the process has come so far that it handles signals."""
        return "started: " in self.process.log()[self._logged :]
