"""How the topics end that Spark jobs read or write, and the options of every read from Kafka. Pure.

The topics that the job reads are chosen by `job.groups.planned`, those of a table by `look.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

EVENTS_SUFFIX = "-RETRY-EVENTS"
VIEW_SUFFIX = "-RETRY-VIEW"


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
        # With a `startingTimestamp`, a partition without a newer record has nothing to read; by default it is an error.
        "startingOffsetsByTimestampStrategy": "latest",
        **(options or {}),
    }
