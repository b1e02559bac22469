"""Repair the three standard streams: some may be closed, and an encoding may not have all characters.

Called once, before the first command; nothing else in the project changes them.
"""

from __future__ import annotations

import io
import os
import sys

DIRECTIONS = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
"""How a closed stdin, stdout or stderr is opened again. stdout gets a read-only file: data that nobody receives is a
failure."""


def repair_streams() -> None:
    """Open each closed stream, and make stdout accept every character."""
    for number, (name, direction) in enumerate(zip(("stdin", "stdout", "stderr"), DIRECTIONS, strict=True)):
        # Python sets a closed stream to None. The next file or connection would get its number.
        if getattr(sys, name) is None:
            setattr(sys, name, stand_in(number, direction))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal keeps the user's encoding; elsewhere data is UTF-8. Characters that an encoding lacks are escaped.
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")


def stand_in(number: int, direction: int) -> io.TextIOWrapper:
    """Open the null device under this stream number."""
    # Read-only for a closed stdout: no socket takes its number, and what is written there is a failure, and not lost.
    opened = os.open(os.devnull, direction)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)
