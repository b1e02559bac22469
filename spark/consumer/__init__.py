"""Consume a group's records in a Spark streaming job: a handler is called for each record, and failures are retried.

`build_rules` describes the consumer group. `read_relay` or `read_gated` returns a streaming DataFrame of the group's
records. `for_each_record` returns the function for `foreachBatch` that calls the handler, for one record or for many.
`retry` and `dead_letter` are the verdicts that a handler may return or raise. A job without a handler takes `due_rows`
of a batch, and writes `retry_rows`, `done_rows` and `passed_rows`; `PolicyFollower` has its rules.
"""

from reconsume.spark.consumer.batches import BatchHandler
from reconsume.spark.consumer.following import PolicyFollower
from reconsume.spark.consumer.foreach import Counts, TooManyFailuresError, for_each_record
from reconsume.spark.consumer.record import Record
from reconsume.spark.consumer.rows import done_rows, due_rows, passed_rows, retry_rows
from reconsume.spark.consumer.rules import Rules, build_rules
from reconsume.spark.consumer.rules_change import forget_topics
from reconsume.spark.consumer.streams import read_gated, read_relay, with_batch_time
from reconsume.spark.consumer.verdict import DeadLetter, Retry, dead_letter, retry
from reconsume.spark.consumer.writing import kafka_writer

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
    "done_rows",
    "due_rows",
    "for_each_record",
    "forget_topics",
    "kafka_writer",
    "passed_rows",
    "read_gated",
    "read_relay",
    "retry",
    "retry_rows",
    "with_batch_time",
]
