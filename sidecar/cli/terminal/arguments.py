"""Times as people type them (a duration from now, or RFC 3339), and the author of a change."""

from __future__ import annotations

import getpass
import socket
import time
from datetime import datetime

import typer

from sidecar.cli.terminal.output import visible
from sidecar.settings.addresses import Listen, parse_listen
from topics.durations import parse_duration
from topics.policy_record import LONGEST_NAME


def wall() -> int:
    """Return the wall clock, in epoch ms."""
    return time.time_ns() // 1_000_000


def before(text: str, option: str) -> int:
    """Parse a time as epoch ms: a duration before now, or RFC 3339. Raises BadParameter if it is neither."""
    return moment(text, f"{option}: {{}} is neither a duration like 1h nor RFC 3339", -1)


def ahead(text: str, option: str) -> int:
    """Parse a time as epoch ms: a duration from now, or RFC 3339. Raises BadParameter if it is neither."""
    return moment(text, f"{option}: {{}} is neither a duration like 10m nor RFC 3339", 1)


def moment(text: str, wrong: str, direction: int) -> int:
    """Parse a duration from now in `direction`, or a time with its zone, as epoch ms. Raises BadParameter(`wrong`)
    if neither."""
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


def duration(text: str, option: str) -> int:
    """Parse a duration, in ms. Raises BadParameter if it is invalid."""
    try:
        return parse_duration(text)
    except ValueError as fault:
        raise typer.BadParameter(f"{option}: {fault}") from fault


def address(text: str, option: str) -> Listen:
    """Parse host and port. Raises BadParameter if it is invalid."""
    try:
        return parse_listen(text)
    except ValueError as fault:
        raise typer.BadParameter(f"{option} {fault}") from fault


def author(who: str | None) -> str:
    """Return the author of a change: as given, or user@host. Raises BadParameter if it is too long or not printable."""
    if who is None:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container whose user has no name
            user = "unknown"
        who = f"{user}@{socket.gethostname()}"
    if not who.isprintable() or not 1 <= len(who) <= LONGEST_NAME:
        raise typer.BadParameter(f"--who must be 1 to {LONGEST_NAME} printable characters")
    return who
