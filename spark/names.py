"""The Kafka topics that hold the present state of one group, and the options of every read from Kafka. Pure functions.

The topics that the job reads are chosen by `job.groups.planned`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from reconsume.topics.names import Names, check_name

EVENTS_SUFFIX = "-RETRY-EVENTS"
VIEW_SUFFIX = "-RETRY-VIEW"


def present(group: str) -> dict[str, str]:
    """Return the option of Spark's Kafka source that selects the topics of a group's present state.

    These are its events topic, and its view topic if there is one. The option is a pattern of exact names. A topic that
    is named and missing would be an error, and the view may not exist yet. Raises ValueError if Kafka does not allow
    the name of the group's events topic.
    """
    check_name(Names(group).events)
    return {"subscribePattern": f"{re.escape(group)}(?:{EVENTS_SUFFIX}|{VIEW_SUFFIX})"}


def reading(bootstrap: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options of Spark's Kafka source for every read, as text by name.

    `bootstrap` is `host:port`, or several of them separated by commas. `options` (such as `kafka.security.protocol`)
    are added, and override these.
    """
    return {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",  # events of an aborted transaction do not count
        "startingOffsets": "earliest",
        # If retention deletes events before the job has read them, the job must go on. A later event repairs the row,
        # and the lost events are counted.
        "failOnDataLoss": "false",
        **(options or {}),
    }
