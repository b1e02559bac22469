"""Moments as people type them: a length of time from now, or an RFC 3339 time."""

from __future__ import annotations

import getpass
import socket
import time
from datetime import datetime

import typer

from sidecar.cli.terminal.output import visible
from topics.durations import parse_duration
from topics.policy_record import LONGEST_NAME


def wall() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000


def before(text: str, option: str) -> int:
    """Epoch ms: so long ago, or at a time; wrong usage for what is neither."""
    return moment(text, f"{option}: {{}} is neither a duration like 1h nor RFC 3339", -1)


def ahead(text: str, option: str) -> int:
    """Epoch ms: so long from now, or at a time; wrong usage for what is neither."""
    return moment(text, f"{option}: {{}} is neither a duration like 10m nor RFC 3339", 1)


def moment(text: str, wrong: str, direction: int) -> int:
    """Epoch ms of a duration in that direction from now, or of a time with its zone; `wrong` for what is neither."""
    try:
        return wall() + direction * parse_duration(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise typer.BadParameter(wrong.format(visible(text[:40])))
    return round(at.timestamp() * 1000)


def author(who: str | None) -> str:
    """Who changes it: as given, or user@host."""
    if who is None:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container whose user has no name
            user = "unknown"
        who = f"{user}@{socket.gethostname()}"
    if not who.isprintable() or not 1 <= len(who) <= LONGEST_NAME:
        raise typer.BadParameter(f"--who must be 1 to {LONGEST_NAME} printable characters")
    return who
