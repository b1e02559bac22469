"""Spark streaming jobs as consumers of a group: a handler is called for each record, and what fails is retried.

`read_relay` or `read_gated` gives the records, `for_each_record` the function for `foreachBatch`; `build_rules` says
whose group it is, `retry` and `dead_letter` are what a handler may answer.
"""

from spark.consumer.foreach import Counts, TooManyFailuresError, for_each_record
from spark.consumer.record import Record
from spark.consumer.rules import Rules, build_rules
from spark.consumer.rules_change import forget_topics
from spark.consumer.streams import read_gated, read_relay, with_batch_time
from spark.consumer.verdict import DeadLetter, Retry, dead_letter, retry

__all__ = [
    "Counts",
    "DeadLetter",
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
