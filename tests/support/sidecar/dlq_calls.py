"""Calls of `reconsume dlq`: what they are given, and what they said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from typer.testing import Result

from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Out, Row, dump, produce

DAY = 86_400_000
HOSTILE = "\x1b[31m\x9b2J‮"
Call = Callable[..., Result]


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def plant(group: GroupTopics, *letters: Out) -> None:
    produce(group.bootstrap, group.dlq, letters)


def ready(group: GroupTopics) -> list[Row]:
    return dump(group.bootstrap, group.names.ready)


def now() -> int:
    return time.time_ns() // 1_000_000


def actions(result: Result) -> list[tuple[str, int]]:
    return [(row["action"], row["letters"]) for row in rows(result)]


def redriven(result: Result) -> int:
    return sum(count for action, count in actions(result) if action == "redriven")
