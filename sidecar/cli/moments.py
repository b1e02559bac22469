"""Moments as people type them: a length of time from now, or an RFC 3339 time."""

from __future__ import annotations

import time
from datetime import datetime

import typer

from sidecar.cli.output import visible
from topics.durations import parse_duration


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
