"""How requests with the records of a main topic differ from the others: where they go, and how long they may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec


class TopicCall(msgspec.Struct, frozen=True):
    """What a topic has of its own; None: as all topics. Topics whose calls are equal may share a batch.

    `path`: path and query of the request. `timeout_ms`: as `PushSettings.timeout_ms`. `requests`: how many may be in
    flight; then `topic` is set, so that no other topic shares its batches.
    """

    path: str | None = None
    timeout_ms: int | None = None
    requests: int | None = None
    topic: str = ""


USUAL = TopicCall()
"""The call of a topic that has nothing of its own."""
TopicCalls: TypeAlias = Mapping[str, TopicCall]
"""The calls of those main topics that have something of their own."""
