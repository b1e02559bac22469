"""The commands that our texts recommend: `reconsume topics apply -c billing.yaml`.

A recommended command must mean the same configuration as the one that recommends it. Without `-c` it would read another
file, or ask another Kafka. So every text that names a command, in an error, a log line, a check of `doctor` or a row,
gets it from `hint`; a test finds the texts that do not.

The command line calls `use_file` once, before a command runs. Texts are made on any thread later.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path


class _Given:
    """What the running command was called with."""

    file: Path | None = None


def use_file(file: Path | None) -> None:
    """Let hints name this configuration; None: the command was called without `-c`."""
    _Given.file = file


def hint(command: str, file: Path | None = None) -> str:
    """Return a command to type, as `hint("topics apply")`. `file`: its configuration, if not that of this command."""
    file = file or _Given.file
    return f"reconsume {command}" + ("" if file is None else f" -c {shlex.quote(str(file))}")


ABSENT = "missing, or not for this user to see"
"""What is known of a topic that Kafka does not show: it answers UNKNOWN_TOPIC_OR_PARTITION for both."""


def absent(topics: Iterable[str]) -> str:
    """Return the sentence about our topics that Kafka does not show, with the command that creates them."""
    return f"{', '.join(sorted(topics))}: {ABSENT}; `{hint('topics apply')}` creates what is missing"
