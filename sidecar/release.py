"""What this program is: its version, the commit that it was built from, its Python and its Kafka client.

`reconsume --version`, the metric `reconsume_build_info` and heartbeats show it (contract 12.13). A wheel and a source
archive have the commit in the file COMMIT, which `hatch_build.py` writes. A checkout asks git.
"""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

UNKNOWN = "unknown"
_COMMIT = re.compile(r"[0-9a-f]{12}\+?")
_GIT_SECONDS = 5.0


class Release(NamedTuple):
    """`commit`: the first 12 digits, with `+` if the checkout was changed, or `unknown`."""

    version: str
    commit: str
    python: str
    librdkafka: str

    def __str__(self) -> str:
        """Return the line of `reconsume --version`."""
        return f"reconsume {self.version} (commit {self.commit}, Python {self.python}, librdkafka {self.librdkafka})"


@cache
def this_release() -> Release:
    """Return what runs here. Asks git at most once in a process."""
    from confluent_kafka import libversion  # takes 30 ms, which `--help` does not need

    return Release(version("reconsume"), _commit(), platform.python_version(), libversion()[0])


def _commit() -> str:
    """Return the commit that the build wrote down, or that of the checkout."""
    built = files("reconsume").joinpath("COMMIT")
    root = Path(__file__).resolve().parents[1]
    text = built.read_bytes().decode("ascii", "replace").strip() if built.is_file() else checkout_commit(root)
    return text if _COMMIT.fullmatch(text) else UNKNOWN


def checkout_commit(root: Path) -> str:
    """Return the first 12 digits of the commit in `root`, with `+` if tracked files were changed."""
    if not (root / ".git").exists():
        return UNKNOWN
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):  # no git, or a repository of another user
        return UNKNOWN


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    return done.stdout.strip()
