"""Subscriptions by tag: `*`, `TagA`, or `TagA||TagB`, compared with a header of the record (contract 6.12)."""

from __future__ import annotations

from collections.abc import Mapping

from reconsume.topics.attempt import ReadRecord

HEADER = "TAGS"
"""The header that has a record's tag, unless the group names another one (`tags_header`)."""
HEADER_FORM = r"[^\s\x00-\x1f\x7f]{1,255}"
FORM = r"\*|[^\s|*]+(?:\s*\|\|\s*[^\s|*]+)*"
"""The form of an expression."""


def check_once(text: str) -> str:
    """Return an expression. Raises ValueError if a tag is in it twice."""
    names = [name.strip() for name in text.split("||")]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"has {twice} twice; leave one of them out")
    return text


def parse_tags(text: str) -> frozenset[bytes] | None:
    """Return the tags of a subscription; None if it takes all records, whatever their tag."""
    return None if text == "*" else frozenset(tag.strip().encode() for tag in text.split("||"))


class TagFilter:
    """The tags that each main topic is subscribed with; called for each record of a main topic."""

    def __init__(self, tags: Mapping[str, frozenset[bytes] | None], header: str = HEADER) -> None:
        self._tags = tags
        self._header = header

    def __call__(self, record: ReadRecord) -> bool:
        """Return whether the group wants the record.

        A record without a tag is wanted only by `*`. Of several tags one is enough.
        """
        tags = self._tags.get(record.source.topic)
        if tags is None:
            return True
        return any(name == self._header and value in tags for name, value in record.headers or ())
