"""The three standard streams as a caller left them: closed ones, and encodings that cannot say everything.

Called once, before the first command; nothing else in the project touches them.
"""

from __future__ import annotations

import io
import os
import sys

DIRECTIONS = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
"""Of stdin, stdout, stderr where they are closed. Data that nobody takes is a failure, so stdout cannot be written."""


def repair_streams() -> None:
    """Give each closed stream a place, and let stdout say every character."""
    for number, (name, direction) in enumerate(zip(("stdin", "stdout", "stderr"), DIRECTIONS, strict=True)):
        if getattr(sys, name) is None:  # Python leaves None, and the next file or connection would get its number
            setattr(sys, name, stand_in(number, direction))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal's encoding is the user's; elsewhere our data is UTF-8. What neither can say is escaped.
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")


def stand_in(number: int, direction: int) -> io.TextIOWrapper:
    """The null device as the stream of this number."""
    opened = os.open(os.devnull, direction)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)
