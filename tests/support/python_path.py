"""Where the processes of tests import from."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def python_path() -> str:
    """Return PYTHONPATH for a process in any folder: the repository, and what comes before the environment's packages.

    `make compat` gives another release of Spark in this way: a process without it would run the installed one.
    """
    given = [str(Path(folder).resolve()) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return os.pathsep.join([str(REPOSITORY), *(folder for folder in given if folder != str(REPOSITORY))])
