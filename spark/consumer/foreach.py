"""`for_each_record`: the function for `foreachBatch` that calls a handler for each row and writes the results.

Order within a batch: handle all rows, count and log what failed, check the share of failures, write, and then Spark
commits the batch. A failure before the end repeats the whole batch. So records are handled at least once, and handlers
must be idempotent.

All of this is on the driver, in one thread; `workers.py` handles the rows. What reaches the driver of a batch is one
row: its counts, and the notes of its tasks, by which `BatchLog` says why records fail.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from reconsume.spark.consumer.following import PolicyFollower
from reconsume.spark.consumer.handling import ODD_KINDS, OUTCOMES, PASSED_OVER, BatchHandler, Handler, Note
from reconsume.spark.consumer.metrics import QueryMetrics, metrics_at
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.workers import BATCH_TIME, COLUMNS, Work, Works, died, works_of

STOP_SHARE = 0.5
"""The default `stop_share`: a fraction of a batch's main records."""
STOP_COUNT = 100
"""The default `stop_count`: a number of main records."""
LOG_EVERY = 60.0
"""Seconds between two lines about the same class of failures or the same kind of odd verdicts."""
MOST_LOGGED, MOST_NOTES = 1_000, 1_000
"""Classes whose last line is remembered, and notes of a batch that are taken."""

PREFERRED: Mapping[str, str] = {
    # The topic's own limit decides, not the client's default of 1 MiB. 31 MiB fit into the client's buffer of 32 MiB.
    "max.request.size": str(31 * 1024 * 1024),
}
"""Settings of the Kafka producer that the caller's settings override."""
REQUIRED: Mapping[str, str] = {"acks": "all", "enable.idempotence": "true"}
"""Settings that the caller's settings never override: Spark commits a batch after its copies, so the copies must be
stored."""

_LOG = logging.getLogger("reconsume.spark")

Write: TypeAlias = Callable[[DataFrame], None]
"""A function that writes a DataFrame with the columns `workers.WRITE`, and returns when all rows are confirmed.

The columns are topic STRING, key BINARY, value BINARY, and headers ARRAY<STRUCT<key: STRING, value: BINARY>>.
"""


class Counts(NamedTuple):
    """The counts of one batch, in records; each field is an int.

    Each record has one of six outcomes:

    - `commit`: the handler took it.
    - `retry`: it goes to a level topic, because the handler failed or asked for a retry.
    - `dead_letter`: it goes to the dead letters.
    - `hop`: it is sent on to a level topic without being handled: it is not due, or an operator holds it.
    - `passed_over`: it has not the tags that are wanted, and is done without being handled.
    - `refused`: it is dead-lettered without being handled, because its headers are not valid.

    The other fields:

    - `batch`: the number that Spark gave to the batch.
    - `failed`: the handler raised, asked for a retry or ended its process. These are also in `retry` or `dead_letter`.
    - `odd`: the handler's answer was a mistake, or asked for a delay or level that is not allowed.
    - `fresh`: records that came from a main topic and were handled.
    - `fresh_failed`: those of `fresh` that are also in `failed`.
    - `writes`: copies and events that the batch writes.
    - `waited_ms`: for how long the oldest record of a main topic had waited, when the batch began.
    - `late_ms`: by how much the most overdue retry was late then.
    - `odd_kinds`: the numbers of `odd` by kind: `verdict-error`, `delay` and `level`, if they are above 0.
    """

    batch: int
    commit: int = 0
    retry: int = 0
    dead_letter: int = 0
    hop: int = 0
    passed_over: int = 0
    refused: int = 0
    failed: int = 0
    odd: int = 0
    fresh: int = 0
    fresh_failed: int = 0
    writes: int = 0
    odd_kinds: Mapping[str, int] = {}
    waited_ms: int = 0
    late_ms: int = 0


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
    metrics: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return the function for `foreachBatch` that handles each record of a batch and writes the copies and events.

    - `handler` takes a `Record`. A returned value that is neither a verdict nor surely meant as one means success. Any
      exception but a verdict is a failure.
    - `rules` are the group's rules, from `build_rules`. The values of the group's policy go before them.
    - `kafka` holds settings of Kafka's Java producer, as text by name, with `bootstrap.servers` among them. The policy
      is read with them too.
    - `batch_handler`, with None as the handler, takes many records in one call; see BatchHandler.
    - `follow` False leaves the group's policy unread, as does `kafka` None.
    - `stop_share` (a fraction from 0 to 1) and `stop_count` (records) stop the query in an outage, see below.
    - `write` replaces the writer to Kafka; see Write.
    - `report` takes the `Counts` of each batch after its writes.
    - `metrics`: the `host:port` at which Prometheus finds the query's metrics; see `metrics.py`.

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
    log = BatchLog()
    meter = QueryMetrics(rules) if metrics is None else metrics_at(metrics, rules)

    def run(frame: DataFrame, batch: int) -> None:
        check_frame(frame.columns, frame.sparkSession.conf.get("spark.speculation", "false"))
        works = current.works(frame)
        meter.begins()
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
            counts, notes = count(results, batch)
            log.take(counts, notes)
            check_share(counts, stop_share, stop_count)
            if counts.writes:
                write(results.select(f.explode("r.writes").alias("w")).select("w.*"))
        finally:
            results.unpersist()
        _LOG.info("batch %d: %s", batch, counts)
        meter.took(counts)
        if report is not None:
            report(counts)

    return run


class CurrentWorks:
    """How batches are handled by the rules in force. It makes the functions anew only when these have changed."""

    def __init__(self, make: Callable[[Rules], Works], rules: Rules, kafka: Mapping[str, str] | None) -> None:
        """Begin with the job's own rules; `kafka` None: no policy is followed."""
        self._make, self._rules, self._works = make, rules, make(rules)
        self._follower = PolicyFollower(rules, kafka)

    def works(self, batch: DataFrame) -> Works:
        """Return the functions for a batch, once the rate lets it begin."""
        rules = self._follower.rules(batch)
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


def count(results: DataFrame, batch: int) -> tuple[Counts, list[Note]]:
    """Handle all rows and return the counts, and notes of the tasks. One row reaches the driver, whatever the size of
    the batch."""
    outcomes = [
        f.count_if(f.col("r.outcome") == name).alias(name) for name in (*OUTCOMES.values(), PASSED_OVER, "refused")
    ]
    flags = [f.count_if(f.col(f"r.{name}")).alias(name) for name in ("failed", "fresh")]
    flags.append(f.count_if(f.col("r.fresh") & f.col("r.failed")).alias("fresh_failed"))
    kinds = [f.count_if(f.col("r.odd") == kind).alias(kind) for kind in ODD_KINDS]
    writes = f.coalesce(f.sum(f.size("r.writes")), f.lit(0)).alias("writes")
    ages = [f.coalesce(f.max(f"r.{name}"), f.lit(0)).alias(f"{name}_ms") for name in ("waited", "late")]
    notes = f.slice(f.collect_list("r.note"), 1, MOST_NOTES).alias("notes")
    row = results.agg(*outcomes, *flags, *kinds, *ages, writes, notes).collect()[0].asDict()
    task_notes = [Note(note["key"], note["text"]) for note in row.pop("notes")]
    odd_kinds = {kind: number for kind in ODD_KINDS if (number := row.pop(kind))}
    return Counts(batch, **row, odd=sum(odd_kinds.values()), odd_kinds=odd_kinds), task_notes


class BatchLog:
    """Says why records fail, on the driver: at most one line a minute for each class of failures, with the first record
    and its stack, and for each kind of odd verdicts, with the number of those since the last such line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._logged: dict[str, float] = {}
        """When each class or kind had its last line."""
        self._unsaid: Counter[str] = Counter()
        """Odd verdicts of each kind since their last line."""
        self._examples: dict[str, str] = {}
        """The last known record of each kind of odd verdicts."""

    def take(self, counts: Counts, notes: Iterable[Note]) -> None:
        """Log what is new in a batch, and sums that have waited for a minute."""
        self._unsaid.update(counts.odd_kinds)
        firsts: dict[str, str] = {}
        for note in notes:
            firsts.setdefault(note.key, note.text)
        self._examples.update((kind, firsts[kind]) for kind in ODD_KINDS if kind in firsts)
        for key in [*self._unsaid, *firsts.keys() - self._unsaid.keys()]:
            if not self._may_log(key):
                continue
            if number := self._unsaid.pop(key, 0):
                records = "1 record" if number == 1 else f"{number} records"
                _LOG.warning(
                    "odd verdicts (%s) of %s since the last such line: %s", key, records, self._examples.get(key, "")
                )
            else:
                _LOG.warning("a record failed with %s: %s", key, firsts[key])

    def _may_log(self, key: str) -> bool:
        """Whether a minute has passed since the last line; then this is its next one."""
        now = self._clock()
        if now - self._logged.get(key, float("-inf")) < LOG_EVERY:
            return False
        self._logged.pop(key, None)
        while len(self._logged) >= MOST_LOGGED:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = now
        return True


def check_share(counts: Counts, share: float, least: int) -> None:
    """Raise TooManyFailuresError if at least `least` main records, and more than `share` of them, have failed."""
    if counts.fresh_failed >= max(least, 1) and counts.fresh_failed > share * counts.fresh:
        raise TooManyFailuresError(
            f"{counts.fresh_failed} of {counts.fresh} new records of batch {counts.batch} failed: what they need is "
            "probably away, so nothing was written and no retry is spent; start the job again once it is back"
        )


def kafka_writer(kafka: Mapping[str, str]) -> Write:
    """Return a function that writes to Kafka with these settings of the Java producer."""
    options = writer_options(kafka)

    def write(frame: DataFrame) -> None:
        frame.write.format("kafka").options(**options).save()

    return write


def writer_options(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka sink for these settings of the Java producer."""
    return {f"kafka.{name}": value for name, value in {**PREFERRED, **kafka, **REQUIRED}.items()}
