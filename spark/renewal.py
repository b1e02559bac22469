"""Topics that were made anew since a query read them: its place in the old one says nothing of the new one. Pure.

Kafka gives each topic an id of its own, and Spark's checkpoint knows names alone. So the ids are kept beside it, and
before a query that finds another id starts, its checkpoint forgets its places in the topic: to Spark that is a new one
then, which it reads from the first record.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

IDS_VERSION = 1


def renewed(ids: Mapping[str, str], kept: Mapping[str, str], placed: Collection[str]) -> list[str]:
    """The topics of `ids` that the checkpoint has a place in (`placed`) from when they had another id."""
    return sorted(topic for topic, found in ids.items() if topic in placed and kept.get(topic, found) != found)


def ids_text(ids: Mapping[str, str], kept: Mapping[str, str], placed: Collection[str]) -> str:
    """What is kept beside the checkpoint: the ids of what is read, and of what it still has a place in."""
    before = {topic: found for topic, found in kept.items() if topic in placed}
    return json.dumps({"v": IDS_VERSION, "ids": before | dict(ids)}, sort_keys=True)


def ids_in(text: str) -> dict[str, str]:
    """The ids that a text holds, none where there is none. Raises ValueError when it is not in its form."""
    told = json.loads(text) if text else {"v": IDS_VERSION, "ids": {}}
    if not isinstance(told, dict) or told.get("v") != IDS_VERSION or not isinstance(told.get("ids"), dict):
        raise ValueError("it is not in its form")
    return {str(topic): str(found) for topic, found in told["ids"].items()}


def topics_in(entry: str) -> frozenset[str]:
    """The topics of an entry of Spark's offset log: a version, what the batch had, and a line for each source."""
    return frozenset(topic for line in entry.splitlines()[2:] for topic in source_of(line) or ())


def forgotten(entry: str, topics: Collection[str]) -> str:
    """An entry of the offset log without the places in some topics."""
    lines = entry.split("\n")
    return "\n".join(lines[:2] + [source_without(line, topics) for line in lines[2:]])


def source_without(line: str, topics: Collection[str]) -> str:
    """The line of one source, which may have none of the topics."""
    source = source_of(line)
    if source is None or not source.keys() & set(topics):
        return line
    left = {topic: places for topic, places in source.items() if topic not in topics}
    return json.dumps(left, separators=(",", ":"))


def source_of(line: str) -> dict[str, Any] | None:
    """The places by topic of one of Spark's Kafka sources; None where the line is of none."""
    found = json.loads(line) if line.strip() not in ("", "-") else None
    # The gated source of a consumer has its places one below, and answers for them itself.
    return found if isinstance(found, dict) and not found.keys() >= {"next", "dropped"} else None
