"""Subscriptions by tag: `*`, `TagA`, or `TagA||TagB` against the record's header TAGS (contract §6)."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.core.record import Record

HEADER = "TAGS"


def parse_tags(text: str) -> frozenset[bytes] | None:
    """The tags of a subscription; None: all records, whatever their tag."""
    return None if text == "*" else frozenset(tag.strip().encode() for tag in text.split("||"))


class TagFilter:
    """Which records of which main topic are wanted; called for each record of a main topic."""

    def __init__(self, tags: Mapping[str, frozenset[bytes] | None]) -> None:
        self._tags = tags

    def __call__(self, record: Record) -> bool:
        """Whether the record is wanted. One without a tag is wanted by `*` alone; of several tags one suffices."""
        tags = self._tags.get(record.source.topic)
        if tags is None:
            return True
        return any(name == HEADER and value in tags for name, value in record.headers or ())
