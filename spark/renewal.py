"""Find topics that were deleted and created again since a query with a checkpoint read them. Pure functions.

The offsets that a query has read in the old topic mean nothing in the new one. Kafka gives each topic an id, but
Spark's checkpoint knows only names. So the job keeps the ids beside the checkpoint of the sums. Before a query that
finds another id starts, the offsets in that topic are removed from its checkpoint. To Spark the topic is then new, and
it reads the topic from the first record. What the state has counted stays. So if a STATS topic is another one, or
events that were counted would be read again, the checkpoint is of no use any more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from reconsume.spark.names import EVENTS_SUFFIX, STATS_SUFFIX

IDS_VERSION = 1


def renewed(ids: Mapping[str, str], kept: Mapping[str, str], placed: Collection[str]) -> list[str]:
    """Return the topics, sorted, whose offsets in the checkpoint belong to a topic with another id.

    `ids` are the ids that Kafka reports now, and `kept` those that were kept beside the checkpoint. `placed` are the
    topics that the checkpoint has offsets for.
    """
    return sorted(topic for topic, topic_id in ids.items() if topic in placed and kept.get(topic, topic_id) != topic_id)


class Kept(NamedTuple):
    """What is kept beside the checkpoint: ids of topics, and the events topics that a query has counted and left out.

    A query leaves a group out while its STATS topic is missing. Its place in the group's events is soon forgotten, and
    what it has counted of them is not.
    """

    ids: Mapping[str, str]
    unserved: frozenset[str]


def is_stale(ids: Mapping[str, str], kept: Kept, placed: Collection[str]) -> str:
    """Return the events topics for which the state of the sums is of no use, as a text; empty if there are none.

    A group's counts must be written again if its STATS topic is another one. They would be counted twice if the query
    has left its events, and would read them again. Events of another topic are as good as new.
    """
    stale = []
    for events in (topic for topic in ids if topic.endswith(EVENTS_SUFFIX) and kept.ids.get(topic) == ids[topic]):
        sums = events.removesuffix(EVENTS_SUFFIX) + STATS_SUFFIX
        rewritten = events in placed and kept.ids.get(sums, ids[sums]) != ids[sums]
        if rewritten or (events in kept.unserved and events not in placed):
            stale.append(events)
    return ", ".join(stale)


def kept_text(ids: Mapping[str, str], kept: Kept, placed: Collection[str], there: Collection[str]) -> str:
    """Return the text to keep beside the checkpoint, for a query that uses `ids`.

    Of other topics that a query has used it keeps the ids, as long as their group's events are `there`. The ids of
    events that were counted it keeps for good: that they are not there may be so for a moment, as where a right is
    missing or a broker lags, and they would be counted twice.
    """
    counted = {*kept.unserved, *placed}

    def lasts(topic: str) -> bool:
        return topic in counted or topic in there or topic.removesuffix(STATS_SUFFIX) + EVENTS_SUFFIX in there

    before = {topic: topic_id for topic, topic_id in kept.ids.items() if lasts(topic)}
    unserved = {topic for topic in (*kept.unserved, *placed) if topic in before and topic not in ids}
    return json.dumps({"v": IDS_VERSION, "ids": before | dict(ids), "unserved": sorted(unserved)}, sort_keys=True)


def kept_in(text: str) -> Kept:
    """Return what is kept in a text; an empty text holds nothing.

    Raises ValueError if the text does not have the expected form.
    """
    content = json.loads(text) if text else {"v": IDS_VERSION, "ids": {}, "unserved": []}
    if not isinstance(content, dict) or content.get("v") != IDS_VERSION:
        raise ValueError("it is not in its form")
    topic_ids, unserved = content.get("ids"), content.get("unserved")
    if not isinstance(topic_ids, dict) or not isinstance(unserved, list):
        raise ValueError("it is not in its form")
    ids = {str(topic): str(topic_id) for topic, topic_id in topic_ids.items()}
    return Kept(ids, frozenset(map(str, unserved)))


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
