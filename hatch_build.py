"""The build's hook: write the commit into wheel and source archive, as the file COMMIT.

A build from the source archive, or from the image's folder without history, takes it from the file COMMIT that is
there. `sidecar/release.py` reads it.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Add COMMIT to what is built. An editable install has none: it asks git each time."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Find the commit and include it."""
        if version == "editable":
            return
        root = Path(self.root)
        file = root / "COMMIT"
        if not file.exists():
            names = runpy.run_path(str(root / "sidecar" / "release.py"))
            self._folder = tempfile.TemporaryDirectory()
            file = Path(self._folder.name) / "COMMIT"
            file.write_text(f"{names['checkout_commit'](root)}\n", "ascii")
        place = "reconsume/COMMIT" if self.target_name == "wheel" else "COMMIT"
        build_data["force_include"][str(file)] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the file that was made for the build."""
        if self._folder is not None:
            self._folder.cleanup()
