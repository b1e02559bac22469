"""Compile the tests before the workers of a first run need them: each would rewrite every `assert` by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
MOST = TESTS / "unit"
"""About half of all."""
COLLECT = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:xdist"]


def compile_once() -> None:
    """Have two processes collect half of the tests each, if nobody has done so here.

    What they find wrong they do not tell: the workers will.
    """
    if sys.dont_write_bytecode or any(MOST.glob("*/__pycache__/*-pytest-*.pyc")):
        return
    others = [path for path in sorted(TESTS.iterdir()) if path.is_dir() and path != MOST]
    halves = [
        subprocess.Popen([*COLLECT, *half], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=TESTS.parent)
        for half in ([MOST], others)
    ]
    for half in halves:
        half.wait()
