"""What people type: times (a duration from now, or RFC 3339), addresses, token files, and the author of a change."""

from __future__ import annotations

import getpass
import re
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import typer

from reconsume.sidecar.clock import wall
from reconsume.sidecar.http.tokens import Token, read_tokens
from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings.addresses import Listen, parse_listen
from reconsume.topics.durations import parse_duration
from reconsume.topics.policy_record import LONGEST_NAME

RECORD_ID = re.compile(r"\S+:[0-9]{1,10}:[0-9]{1,19}")
"""A topic, a partition and an offset."""


def before(text: str, option: str) -> int:
    """Parse a time as epoch ms: a duration before now, or RFC 3339. Raises BadParameter if it is neither."""
    return moment(text, f"{option}: {{}} is neither a duration like 1h nor RFC 3339", -1)


def ahead(text: str, option: str) -> int:
    """Parse a time as epoch ms: a duration from now, or RFC 3339. Raises BadParameter if it is neither."""
    return moment(text, f"{option}: {{}} is neither a duration like 10m nor RFC 3339", 1)


def moment(text: str, wrong: str, direction: int) -> int:
    """Parse a duration from now in `direction`, or a time with its zone, as epoch ms. Raises BadParameter(`wrong`)
    if neither."""
    with suppress(ValueError):
        return wall() + direction * parse_duration(text)
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return round(at.timestamp() * 1000)
    raise typer.BadParameter(wrong.format(printable(text[:40])))


def record_id(text: str) -> str:
    """Return a record's id, or its position, as given. Raises BadParameter if it can be neither."""
    if not RECORD_ID.fullmatch(text):
        raise typer.BadParameter(f"{printable(text[:40])!r} is no id: it is like orders:3:1024, or a topic's position")
    return text


def optional_record_id(text: str | None) -> str | None:
    """Return the same, or None if there is none."""
    return None if text is None else record_id(text)


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


def tokens_in(file: Path) -> tuple[tuple[Token, ...], str]:
    """Read a token file: its tokens, and why not all of it can be used; empty if all can."""
    try:
        content = read_tokens(file)
    except OSError as error:
        return (), f"cannot be read: {error.strerror}"
    return content.tokens, content.fault


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
