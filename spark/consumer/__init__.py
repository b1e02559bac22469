"""Consume a group's records in a Spark streaming job: a handler is called for each record, and failures are retried.

`build_rules` describes the consumer group, or `rules_from`, which reads the group's reconsume.yaml. `read_relay` or
`read_gated` returns a streaming DataFrame of the group's records. `for_each_record` returns the function for
`foreachBatch` that calls the handler, for one record or for many. `retry` and `dead_letter` are the verdicts that a
handler may return or raise. A job without a handler takes `due_rows` of a batch, and writes what became of them by
`write_rows`; `parsed` and `split` say which rows are good, and `PolicyFollower` has its rules. `redrive_rows` sends
dead letters back.

What a handler needs on an executor is imported at once. All else is imported at its first use: PySpark, so that
handlers can be tested where there is none (`reconsume.spark.testing`), and the sidecar's settings, which executors may
lack.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from reconsume.spark.consumer.handling import BatchHandler
from reconsume.spark.consumer.record import Record
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import DeadLetter, Retry, dead_letter, retry

if TYPE_CHECKING:
    from reconsume.spark.consumer.claim import RetriesOwnedError
    from reconsume.spark.consumer.configuration import build_rules, rules_from
    from reconsume.spark.consumer.following import PolicyFollower
    from reconsume.spark.consumer.foreach import Counts, TooManyFailuresError, for_each_record
    from reconsume.spark.consumer.redrive import RedriveError, Redrives, redrive_rows
    from reconsume.spark.consumer.rows import due_rows, parsed, split, write_rows
    from reconsume.spark.consumer.start import StartError
    from reconsume.spark.consumer.streams import read_gated, read_relay, with_batch_time

__all__ = [
    "BatchHandler",
    "Counts",
    "DeadLetter",
    "PolicyFollower",
    "Record",
    "RedriveError",
    "Redrives",
    "RetriesOwnedError",
    "Retry",
    "Rules",
    "StartError",
    "TooManyFailuresError",
    "build_rules",
    "dead_letter",
    "due_rows",
    "for_each_record",
    "parsed",
    "read_gated",
    "read_relay",
    "redrive_rows",
    "retry",
    "rules_from",
    "split",
    "with_batch_time",
    "write_rows",
]

NEED_MORE = {
    "claim": ("RetriesOwnedError",),
    "configuration": ("build_rules", "rules_from"),
    "start": ("StartError",),
    "following": ("PolicyFollower",),
    "foreach": ("Counts", "TooManyFailuresError", "for_each_record"),
    "redrive": ("RedriveError", "Redrives", "redrive_rows"),
    "rows": ("due_rows", "parsed", "split", "write_rows"),
    "streams": ("read_gated", "read_relay", "with_batch_time"),
}
"""The names of each module that imports PySpark, a Kafka client or the sidecar's settings."""


def __getattr__(name: str) -> object:
    for module, names in NEED_MORE.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
