"""Peers in Python, each in an environment of its own: their versions of the Kafka client exclude each other."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.job import Command, Job
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.java.jars import cache_folder

PROGRAMS = Path(__file__).with_name("programs")
Arguments = Callable[[Job], list[str]]
"""What a program is given."""


def program(file: str, packages: Sequence[str], arguments: Arguments, python: str = "") -> Callable[[], Command]:
    """How a peer is prepared that is a file of `programs` and needs these packages, and this Python if not ours."""
    return lambda: command(python_with(packages, python or sys.executable), file, arguments)


def command(python: Path | str, file: str, arguments: Arguments) -> Command:
    """How a file of `programs` is started by this Python."""
    return lambda job: [str(python), str(PROGRAMS / file), *arguments(job)]


def python_with(packages: Sequence[str], base: str) -> Path:
    """The Python of an environment with these packages, made on the first call. Raises SetupError if it cannot be."""
    found = shutil.which(base)
    if found is None:
        raise SetupError(f"it needs {base}, which is not on PATH")
    name = hashlib.sha256("\n".join([found, *packages]).encode()).hexdigest()[:16]
    folder = cache_folder().parent / "peers" / name
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        run([found, "-m", "venv", "--clear", str(folder)])
        run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        ready.touch()
    return python


def run(words: Sequence[str]) -> None:
    """Run a command that prepares a peer. Raises SetupError with the end of what it said if it fails."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"{' '.join(words[:4])} failed: {(done.stderr or done.stdout)[-500:]}")
