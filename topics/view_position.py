"""The metadata of a position that the view's Spark job commits: the topics that the position is true of. Pure.

The job's offset in a group's events says: every event before it is in the view. That is true of one events topic and
one VIEW topic. A topic that was created again has the old one's name, and another id.
"""

from __future__ import annotations

from typing import NamedTuple

VERSION = "1"


class PositionTopics(NamedTuple):
    """The ids of the events topic and of the VIEW topic, as Kafka's Java tools print them."""

    events: str
    view: str


def as_java_prints(topic_id: str) -> str:
    """Return a topic's id as Java prints it: Kafka's C client uses two other characters of base64."""
    return topic_id.replace("+", "-").replace("/", "_")


def render_position(events: str, view: str) -> str:
    """Return the metadata of a position that is true of these topic ids."""
    return f"{VERSION} {events} {view}"


def parse_position(metadata: str | None) -> PositionTopics | None:
    """Return the topics that a position is true of; None if it does not say so: it is not this job's."""
    words = (metadata or "").split(" ")
    return PositionTopics(*words[1:]) if len(words) == 3 and words[0] == VERSION else None
