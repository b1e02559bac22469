"""`for_each_record`: the function for `foreachBatch` that calls a handler for each row and writes the results.

Order within a batch: handle all rows, count and log what failed, check the share of failures, write, and then Spark
commits the batch. A failure before the end repeats the whole batch. So records are handled at least once, and handlers
must be idempotent. Copies, events and progress are written in transactions (`transactions.py`), so that a repeated
batch counts no attempt twice.

All of this is on the driver, in one thread; `workers.py` handles the rows. What reaches the driver of a batch is one
`Tally` for each task and source partition: its counts, where it ends, and the notes by which `BatchLog` says why
records fail. `write_rows` of `rows.py` comes to the same `settle`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from reconsume.spark.consumer.client import native_client
from reconsume.spark.consumer.following import PolicyFollower
from reconsume.spark.consumer.handling import ODD_KINDS, BatchHandler, Handler, Note
from reconsume.spark.consumer.metrics import QueryMetrics, metrics_at
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.transactions import BatchWriter, Done, End, Source
from reconsume.spark.consumer.workers import BATCH_TIME, COLUMNS, Tally, Works, died, tallies_in, works_of

STOP_SHARE = 0.5
"""The default `stop_share`: a fraction of a batch's main records."""
STOP_COUNT = 100
"""The default `stop_count`: a number of main records."""
LOG_EVERY = 60.0
"""Seconds between two lines about the same class of failures or the same kind of odd verdicts."""
MOST_LOGGED, MOST_NOTES = 1_000, 1_000
"""Classes whose last line is remembered, and notes of a batch that are taken."""

_LOG = logging.getLogger("reconsume.spark")

Write: TypeAlias = Callable[[DataFrame, Sequence[End]], Sequence[Done]]
"""A function that writes the results of a batch, which end so in its source partitions, as `BatchWriter.write`."""


class Counts(NamedTuple):
    """The counts of one batch, in records; each field but `odd_kinds` is an int. A plain record for users' reports.

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
    - `writes`: copies and events that the batch has written.
    - `repeated`: records with copies or events that a try of the batch before had written already. Nothing was written
      for them now.
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
    repeated: int = 0
    odd_kinds: Mapping[str, int] = {}
    waited_ms: int = 0
    late_ms: int = 0


Report: TypeAlias = Callable[[Counts], None]
"""A function that takes the counts of a batch."""


class TooManyFailuresError(RuntimeError):
    """Most new records of a batch failed. Nothing is written and the query ends; a restart handles the batch again."""


class StopAt(NamedTuple):
    """When a batch counts as an outage: at least `least` of its main records failed, and more than `share` of them."""

    share: float = STOP_SHARE
    least: int = STOP_COUNT

    def check(self, counts: Counts) -> None:
        """Raise TooManyFailuresError if the batch counts as an outage."""
        if counts.fresh_failed >= max(self.least, 1) and counts.fresh_failed > self.share * counts.fresh:
            raise TooManyFailuresError(
                f"{counts.fresh_failed} of {counts.fresh} new records of batch {counts.batch} failed: what they need "
                "is probably away, so nothing was written and no retry is spent; start the job again once it is back"
            )


def for_each_record(
    handler: Handler | None,
    rules: Rules,
    kafka: Mapping[str, str],
    *,
    client: Mapping[str, str] | None = None,
    batch_handler: BatchHandler | None = None,
    stop_share: float = STOP_SHARE,
    stop_count: int = STOP_COUNT,
    report: Report | None = None,
    metrics: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return the function for `foreachBatch` that handles each record of a batch and writes the copies and events.

    - `handler` takes a `Record`. A returned value that is neither a verdict nor surely meant as one means success. Any
      exception but a verdict is a failure.
    - `rules` are the group's rules, from `build_rules`. The values of the group's policy go before them.
    - `kafka` holds settings of Kafka's Java client, as text by name, with `bootstrap.servers` among them.
    - `client` holds settings of librdkafka, as text by name, with which copies, events and progress are written and the
      policy is read; None: what follows from `kafka`.
    - `batch_handler`, with None as the handler, takes many records in one call; see BatchHandler.
    - `stop_share` (a fraction from 0 to 1) and `stop_count` (records) stop the query in an outage, see below.
    - `report` takes the `Counts` of each batch after its writes.
    - `metrics`: the `host:port` at which Prometheus finds the query's metrics; see `metrics.py`.

    The function takes the batch's DataFrame and the batch's number. The DataFrame must have the columns that
    `read_relay`, `read_gated` and `with_batch_time` make.

    Raises ValueError if no brokers are named or `kafka` cannot be translated for librdkafka, and unless there is one of
    the two handlers. The function raises TooManyFailuresError if at least `stop_count` main records and more than
    `stop_share` of them fail. A `stop_share` of 1 switches this off. It raises ValueError if the DataFrame lacks a
    column, or if `spark.speculation` is on. Errors of Spark and `report` are raised as they are, a
    `transactions.WriteError` of a worker among them.
    """
    settings = native_client(kafka, client)
    write = BatchWriter(rules, settings).write
    follower = PolicyFollower(rules, client=settings)
    current = CurrentWorks(lambda rules: works_of(handler, batch_handler, rules), rules, follower)
    meter = QueryMetrics(rules) if metrics is None else metrics_at(metrics, rules)
    return batch_function(current, write, StopAt(stop_share, stop_count), meter, report)


def batch_function(
    current: CurrentWorks, write: Write, stop: StopAt, meter: QueryMetrics, report: Report | None = None
) -> Callable[[DataFrame, int], None]:
    """Return the function for `foreachBatch`, which handles batches by `current` and writes their results."""
    log = BatchLog()

    def run(frame: DataFrame, batch: int) -> None:
        check_frame(frame.columns, frame.sparkSession.conf.get("spark.speculation", "false"))
        works = current.works(frame)
        meter.begins()
        try:
            counts, tallies = settle(works.usual(frame), batch, write, stop, log)
        except Exception as error:
            if not died(error):
                raise
            # The same record would crash the worker at each repetition, and no batch would ever end.
            _LOG.warning(
                "batch %d: a Python worker has ended; the batch is repeated, with its handlers in a child process",
                batch,
            )
            counts, tallies = settle(works.isolated(frame), batch, write, stop, log)
        meter.took(counts, tallies)
        if report is not None:
            report(counts)

    return run


def settle(
    results: DataFrame,
    batch: int,
    write: Write,
    stop: StopAt,
    log: BatchLog | None = None,
    check: Callable[[DataFrame], None] = lambda _results: None,
) -> tuple[Counts, list[Tally]]:
    """Count the results of a batch, check them, write them, and return the counts and what they are the sum of.

    `check` sees the results before anything is written. Raises TooManyFailuresError, and what `check` and `write`
    raise.
    """
    # Counts, checks and writes read the results. Without `persist` each of them would call the handlers.
    results = results.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        tallies = tallies_in(results)
        counts, notes, ends = count(tallies, batch)
        if log is not None:
            log.take(counts, notes)
        check(results)
        stop.check(counts)
        done = write(results, ends)
    finally:
        results.unpersist()
    counts = counts._replace(writes=sum(one.written for one in done), repeated=sum(one.repeated for one in done))
    _LOG.info("batch %d: %s", batch, counts)
    return counts, tallies


class CurrentWorks:
    """How batches are handled by the rules in force. It makes the functions anew only when these have changed."""

    def __init__(self, make: Callable[[Rules], Works], rules: Rules, follower: PolicyFollower) -> None:
        """Begin with the job's own rules."""
        self._make, self._rules, self._works = make, rules, make(rules)
        self._follower = follower

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


def count(tallies: Sequence[Tally], batch: int) -> tuple[Counts, list[Note], list[End]]:
    """Return the counts of a batch, notes of its tasks, and where it ends in each source partition."""
    sums: Counter[str] = Counter()
    notes: list[Note] = []
    of_source: dict[Source, list[Tally]] = {}
    for tally in tallies:
        of_source.setdefault((tally.topic, tally.partition), []).append(tally)
        sums.update(tally.numbers)
        for (outcome, *_), number in tally.outcomes.items():
            sums[outcome] += number
        notes += tally.notes
    odd_kinds = {kind: number for kind in ODD_KINDS if (number := sums[kind])}
    numbers = {name: number for name, number in sums.items() if name in Counts._fields}
    ages = {f"{age}_ms": max((getattr(tally, age) for tally in tallies), default=0) for age in ("waited", "late")}
    ends = [
        End(*source, max(one.until for one in some), max(one.at for one in some), sum(one.writes for one in some))
        for source, some in of_source.items()
    ]
    writes = sum(end.writes for end in ends)
    counts = Counts(batch, **numbers, odd=sum(odd_kinds.values()), writes=writes, odd_kinds=odd_kinds, **ages)
    return counts, notes[:MOST_NOTES], ends


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
