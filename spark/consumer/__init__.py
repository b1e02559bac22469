"""Consume a group's records in a Spark streaming job: a handler is called for each record, and failures are retried.

`build_rules` describes the consumer group. `read_relay` or `read_gated` returns a streaming DataFrame of the group's
records. `for_each_record` returns the function for `foreachBatch` that calls the handler, for one record or for many.
`retry` and `dead_letter` are the verdicts that a handler may return or raise.
"""

from spark.consumer.batches import BatchHandler
from spark.consumer.following import PolicyFollower
from spark.consumer.foreach import Counts, TooManyFailuresError, for_each_record
from spark.consumer.record import Record
from spark.consumer.rules import Rules, build_rules
from spark.consumer.rules_change import forget_topics
from spark.consumer.streams import read_gated, read_relay, with_batch_time
from spark.consumer.verdict import DeadLetter, Retry, dead_letter, retry

__all__ = [
    "BatchHandler",
    "Counts",
    "DeadLetter",
    "PolicyFollower",
    "Record",
    "Retry",
    "Rules",
    "TooManyFailuresError",
    "build_rules",
    "dead_letter",
    "for_each_record",
    "forget_topics",
    "read_gated",
    "read_relay",
    "retry",
    "with_batch_time",
]
