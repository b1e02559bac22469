"""What a sidecar says that it holds."""

from __future__ import annotations

from tests.support.sidecar.process import SidecarProcess


def owned(sidecar: SidecarProcess) -> set[int]:
    """The main partitions that a sidecar holds."""
    return {part["partition"] for part in sidecar.status()["partitions"] if part["lane"] == "main"}
