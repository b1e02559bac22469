"""`for_each_record`: the function for `foreachBatch` that calls a handler for each row and writes the results.

Order within a batch: handle all rows, check the share of failures, write, and then Spark commits the batch. A failure
before the end repeats the whole batch. So records are handled at least once, and handlers must be idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.spark.consumer.batches import BatchHandler
from reconsume.spark.consumer.following import PolicyFollower
from reconsume.spark.consumer.handling import COLUMNS, Handler
from reconsume.spark.consumer.isolation import died
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.works import BATCH_TIME, Work, Works, works_of
from reconsume.spark.consumer.writing import Write, kafka_writer

STOP_SHARE = 0.5
"""The default `stop_share`: a fraction of a batch's main records."""
STOP_COUNT = 100
"""The default `stop_count`: a number of main records."""

_LOG = logging.getLogger("reconsume.spark")


class Counts(NamedTuple):
    """The counts of one batch, in records; each field is an int.

    Each record has one of five outcomes:

    - `commit`: the handler took it.
    - `retry`: it goes to a level topic, because the handler failed or asked for a retry.
    - `dead_letter`: it goes to the dead letters.
    - `hop`: it is sent on to a level topic without being handled.
    - `refused`: it is dead-lettered without being handled, because its headers are not valid.

    The other fields:

    - `batch`: the number that Spark gave to the batch.
    - `failed`: the handler raised, asked for a retry or ended its process. These are also in `retry` or `dead_letter`.
    - `odd`: the handler asked for a delay or level that is not allowed.
    - `fresh`: records that came from a main topic and were handled.
    - `fresh_failed`: those of `fresh` that are also in `failed`.
    - `writes`: copies and events that the batch writes.
    """

    batch: int
    commit: int = 0
    retry: int = 0
    dead_letter: int = 0
    hop: int = 0
    refused: int = 0
    failed: int = 0
    odd: int = 0
    fresh: int = 0
    fresh_failed: int = 0
    writes: int = 0


OUTCOMES = ("commit", "retry", "dead_letter", "hop", "refused")
"""The outcomes that are counted."""

Report: TypeAlias = Callable[[Counts], None]
"""A function that takes the counts of a batch."""


class TooManyFailuresError(RuntimeError):
    """Most new records of a batch failed. Nothing is written and the query ends; a restart handles the batch again."""


def for_each_record(
    handler: Handler | None,
    rules: Rules,
    kafka: Mapping[str, str] | None = None,
    *,
    batch_handler: BatchHandler | None = None,
    follow: bool = True,
    stop_share: float = STOP_SHARE,
    stop_count: int = STOP_COUNT,
    write: Write | None = None,
    report: Report | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return the function for `foreachBatch` that handles each record of a batch and writes the copies and events.

    - `handler` takes a `Record`. A returned value that is not a verdict means success. Any exception but a verdict is a
      failure.
    - `rules` are the group's rules, from `build_rules`. The values of the group's policy go before them.
    - `kafka` holds settings of Kafka's Java producer, as text by name, with `bootstrap.servers` among them. The policy
      is read with them too.
    - `batch_handler`, with None as the handler, takes many records in one call; see BatchHandler.
    - `follow` False leaves the group's policy unread, as does `kafka` None.
    - `stop_share` (a fraction from 0 to 1) and `stop_count` (records) stop the query in an outage, see below.
    - `write` replaces the writer to Kafka; see Write.
    - `report` takes the `Counts` of each batch after its writes.

    The function takes the batch's DataFrame and the batch's number. The DataFrame must have the columns that
    `read_relay`, `read_gated` and `with_batch_time` make.

    Raises ValueError if `write` is None and `kafka` does not name `bootstrap.servers`, and unless there is one of the
    two handlers. The function raises
    TooManyFailuresError if at least `stop_count` main records and more than `stop_share` of them fail. A `stop_share`
    of 1 switches this off. It raises ValueError if the DataFrame lacks a column, or if `spark.speculation` is on.
    Errors of Spark, `write` and `report` are raised as they are.
    """
    if write is None:
        if not kafka or "bootstrap.servers" not in kafka:
            raise ValueError("write the brokers of the copies as kafka={'bootstrap.servers': …}")
        write = kafka_writer(kafka)
    current = CurrentWorks(lambda rules: works_of(handler, batch_handler, rules), rules, kafka if follow else None)

    def run(frame: DataFrame, batch: int) -> None:
        check_frame(frame.columns, frame.sparkSession.conf.get("spark.speculation", "false"))
        works = current.works(frame.sparkSession)
        try:
            run_with(works.usual, frame, batch)
        except Exception as error:
            if not died(error):
                raise
            # The same record would crash the worker at each repetition, and no batch would ever end.
            _LOG.warning(
                "batch %d: a Python worker crashed; the batch is repeated, with its handlers in a child process", batch
            )
            run_with(works.isolated, frame, batch)

    def run_with(work: Work, frame: DataFrame, batch: int) -> None:
        # Both the counts and the writes read the results. Without `persist` each of them would call the handlers.
        results = work(frame).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = count(results, batch)
            check_share(counts, stop_share, stop_count)
            if counts.writes:
                write(results.select(f.explode("r.writes").alias("w")).select("w.*"))
        finally:
            results.unpersist()
        _LOG.info("batch %d: %s", batch, counts)
        if report is not None:
            report(counts)

    return run


class CurrentWorks:
    """How batches are handled by the rules in force. It makes the functions anew only when these have changed."""

    def __init__(self, make: Callable[[Rules], Works], rules: Rules, kafka: Mapping[str, str] | None) -> None:
        """Begin with the job's own rules; `kafka` None: no policy is followed."""
        self._make, self._rules, self._works = make, rules, make(rules)
        self._follower = None if kafka is None else PolicyFollower(rules, kafka)

    def works(self, session: SparkSession) -> Works:
        """Return the functions for the next batch."""
        rules = self._rules if self._follower is None else self._follower.rules(session)
        if rules is not self._rules:
            self._rules, self._works = rules, self._make(rules)
        return self._works


def check_frame(names: Collection[str], speculation: str | None) -> None:
    """Check a batch's columns and its session's speculation setting.

    Raises ValueError if the frame lacks a column, or if Spark would run slow tasks, and with them the handlers, twice.
    """
    wanted = {*COLUMNS, BATCH_TIME} - {"now"}
    if missing := sorted(wanted - set(names)):
        raise ValueError(
            f"the frame lacks {', '.join(missing)}: make it with read_relay, read_gated or with_batch_time"
        )
    if speculation == "true":
        raise ValueError("spark.speculation runs a slow task twice, and with it its handlers: switch it off")


def count(results: DataFrame, batch: int) -> Counts:
    """Handle all rows and return the counts. One row reaches the driver, whatever the size of the batch."""
    outcomes = [f.count_if(f.col("r.outcome") == name).alias(name) for name in OUTCOMES]
    flags = [f.count_if(f.col(f"r.{name}")).alias(name) for name in ("failed", "odd", "fresh")]
    flags.append(f.count_if(f.col("r.fresh") & f.col("r.failed")).alias("fresh_failed"))
    writes = f.coalesce(f.sum(f.size("r.writes")), f.lit(0)).alias("writes")
    row = results.agg(*outcomes, *flags, writes).collect()[0]
    return Counts(batch, **row.asDict())


def check_share(counts: Counts, share: float, least: int) -> None:
    """Raise TooManyFailuresError if at least `least` main records, and more than `share` of them, have failed."""
    if counts.fresh_failed >= max(least, 1) and counts.fresh_failed > share * counts.fresh:
        raise TooManyFailuresError(
            f"{counts.fresh_failed} of {counts.fresh} new records of batch {counts.batch} failed: what they need is "
            "probably away, so nothing was written and no retry is spent; start the job again once it is back"
        )
