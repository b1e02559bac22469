"""Find topics that were deleted and created again since a query read them. Pure functions.

The offsets that a query has read in the old topic mean nothing in the new one. Kafka gives each topic an id, but
Spark's checkpoint knows only names. So the job keeps the ids beside the checkpoint. Before a query that finds another
id starts, the offsets in that topic are removed from its checkpoint. To Spark the topic is then new, and it reads the
topic from the first record.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

IDS_VERSION = 1


def renewed(ids: Mapping[str, str], kept: Mapping[str, str], placed: Collection[str]) -> list[str]:
    """Return the topics, sorted, whose offsets in the checkpoint belong to a topic with another id.

    `ids` are the ids that Kafka reports now, and `kept` those that were kept beside the checkpoint. `placed` are the
    topics that the checkpoint has offsets for.
    """
    return sorted(topic for topic, topic_id in ids.items() if topic in placed and kept.get(topic, topic_id) != topic_id)


def ids_text(ids: Mapping[str, str], kept: Mapping[str, str], placed: Collection[str]) -> str:
    """Return the text to keep beside the checkpoint.

    It holds the ids of the topics that are read, and of those that the checkpoint still has offsets for.
    """
    before = {topic: topic_id for topic, topic_id in kept.items() if topic in placed}
    return json.dumps({"v": IDS_VERSION, "ids": before | dict(ids)}, sort_keys=True)


def ids_in(text: str) -> dict[str, str]:
    """Return the ids in a kept text; an empty text holds none.

    Raises ValueError if the text does not have the expected form.
    """
    content = json.loads(text) if text else {"v": IDS_VERSION, "ids": {}}
    if not isinstance(content, dict) or content.get("v") != IDS_VERSION or not isinstance(content.get("ids"), dict):
        raise ValueError("it is not in its form")
    return {str(topic): str(topic_id) for topic, topic_id in content["ids"].items()}


def topics_in(entry: str) -> frozenset[str]:
    """Return the topics in an entry of Spark's offset log.

    An entry holds a line with its version, a line about the batch, and a line for each source.
    """
    return frozenset(topic for line in entry.splitlines()[2:] for topic in source_of(line) or ())


def forgotten(entry: str, topics: Collection[str]) -> str:
    """Return an entry of the offset log without the offsets in `topics`."""
    lines = entry.split("\n")
    return "\n".join(lines[:2] + [source_without(line, topics) for line in lines[2:]])


def source_without(line: str, topics: Collection[str]) -> str:
    """Return the line of one source without the offsets in `topics`."""
    source = source_of(line)
    if source is None or not source.keys() & set(topics):
        return line
    kept = {topic: offsets for topic, offsets in source.items() if topic not in topics}
    return json.dumps(kept, separators=(",", ":"))


def source_of(line: str) -> dict[str, Any] | None:
    """Return the offsets, by topic, in the line of a Kafka source of Spark; None if the line is of another source."""
    source = json.loads(line) if line.strip() not in ("", "-") else None
    # The gated source of a consumer keeps its offsets one level deeper, and checks topic ids itself.
    return source if isinstance(source, dict) and not source.keys() >= {"next", "dropped"} else None
