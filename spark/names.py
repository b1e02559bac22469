"""What Spark reads of one group to know its present state, and how anything is read from Kafka. Pure.

What the job itself reads is `groups.Plan`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from topics.names import Names, check_name

EVENTS_SUFFIX = "-RETRY-EVENTS"
VIEW_SUFFIX = "-RETRY-VIEW"
STATS_SUFFIX = "-RETRY-STATS"


def present(group: str) -> dict[str, str]:
    """The source's option for all that tells a group's present state: its events, and its view once there is one.

    A pattern of exact names, because a topic that is named and missing is an error, and the view may not be there yet.
    ValueError when Kafka would not take the name.
    """
    check_name(Names(group).events)
    return {"subscribePattern": f"{re.escape(group)}(?:{EVENTS_SUFFIX}|{VIEW_SUFFIX})"}


def reading(bootstrap: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Options of every read from Kafka; `options` (such as `kafka.security.protocol`) are added and win."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",  # an aborted transaction's events never happened
        "startingOffsets": "earliest",
        # Retention that overtakes the job must not end it: a later event repairs the row, and the gap is measured.
        "failOnDataLoss": "false",
        **(options or {}),
    }
