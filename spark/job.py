"""The job: its queries from source to sink, and its life from start to stop. No other module starts a query.

Three queries, each with a checkpoint of its own, because one that fails must not stop the others: `view` at the quick
trigger; `stats` and `bad` at the slow one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from prometheus_client import start_http_server
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark import stats, view
from spark.backoff import Streak
from spark.checkpoint import write_plainly
from spark.cluster import Cluster
from spark.display import say, shown
from spark.following import Followed
from spark.groups import Plan, planned
from spark.java import end, end_java, hearing_of_death, java_process, start_anew, submitted
from spark.listener import Listener, Meters
from spark.names import EVENTS_SUFFIX, STATS_SUFFIX, VIEW_SUFFIX, reading
from spark.options import Run
from spark.schema import Parsed
from spark.session import build, counting
from spark.supervisor import GoneError, Running, Start, Supervisor, first_line
from spark.sweep import Swept
from spark.targets import deliverable

LOCAL = "local[2]"
"""The master, unless one is given or spark-submit has started us."""
QUERIES = ("view", "stats", "bad")
STOP_SECONDS = 20.0
"""How long a stop waits for the end of a batch; less than the 30 s after which Kubernetes kills."""
STEP = 0.02
FIRST_SECONDS = 30.0
"""How long the other queries wait for the first batch of the view: code is compiled then, and three queries at once
would each take three times as long."""
TOLD = 10
"""Bad events of one batch that are told in the log."""
SETTINGS = {
    "spark.log.level": "ERROR",
    # Each query in a pool of its own: the view's tasks do not stand in line behind those of the slow ones.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.stopTimeout": "20s",
    # Its default of 10 s is also how old the time of last progress may be while nothing happens.
    "spark.sql.streaming.noDataProgressEventInterval": "5s",
}


class Wish:
    """The clock of the supervisor, and the wish to stop that signals set."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def listen(self) -> None:
        """Take SIGTERM and SIGINT; again after Spark has started, which takes SIGINT for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())

    def now(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def pause(self, seconds: float) -> bool:
        """Wait; True, at once, when the job shall stop."""
        return self._stop.wait(seconds)


class SparkQuery:
    """A query that Spark runs."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    @property
    def fault(self) -> str | None:
        """Why it has ended; None while it runs. Raises GoneError."""
        with hearing_of_death():
            if self._query.isActive:
                return None
            error = self._query.exception()
        return "it was stopped from elsewhere" if error is None else first_line(error)

    @property
    def batches(self) -> int:
        """How many batches it has ended since it was started, as far as Spark remembers. Raises GoneError."""
        with hearing_of_death():
            return len({each["batchId"] for each in self._query.recentProgress})

    def stop(self) -> None:
        """End it between two batches, or in one after STOP_SECONDS: that one is done again. Raises GoneError."""
        end = time.monotonic() + STOP_SECONDS
        with hearing_of_death():
            while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < end:
                time.sleep(STEP)
            self._query.stop()


class Job:
    """The queries of one session, ready to be started."""

    def __init__(self, spark: SparkSession, options: Run, kafka: Mapping[str, str], meters: Meters) -> None:
        self._spark, self._options, self._kafka, self._meters = spark, options, kafka, meters
        self._cluster = Cluster(spark, kafka)

    @property
    def starts(self) -> dict[str, Start]:
        """How each query is started."""
        return {"view": self._view, "stats": self._stats, "bad": self._bad}

    def _followed(self, name: str, target: str | None, begin: Callable[[Plan], Running]) -> Running:
        """A query of the groups that have events and the topic that it writes, begun anew when these change."""
        options = self._options

        def look() -> Plan:
            with hearing_of_death():
                return planned(options.groups, options.pattern, self._cluster.topics(), target)

        open_end = options.pattern is not None
        lives = partial(self._meters.lives, name)
        return Followed(look, begin, time.monotonic, say, open_end=open_end, lives=lives)

    def _events(self, plan: Plan) -> Parsed:
        """The events of the groups that the plan serves."""
        source = {
            **reading(self._kafka["kafka.bootstrap.servers"], self._kafka),
            "maxOffsetsPerTrigger": str(self._options.max_offsets),
            "groupIdPrefix": "reconsume-spark",
            "subscribe": ",".join(plan.topics(EVENTS_SUFFIX)),
        }
        raw = self._spark.readStream.format("kafka").options(**source).load()
        # A task for each partition costs more than what it reads: as many as can run at once.
        return view.events(raw.coalesce(self._spark.sparkContext.defaultParallelism))

    def _view(self) -> Running:
        return self._followed("view", VIEW_SUFFIX, self._swept)

    def _swept(self, plan: Plan) -> Running:
        keep = f"{self._options.keep} milliseconds"
        turns = (lambda: self._viewing(plan, None)), (lambda: self._viewing(plan, keep))
        return Swept(*turns, self._options.evict_every / 1000, time.monotonic, say)

    def _viewing(self, plan: Plan, keep: str | None) -> SparkQuery:
        rows = view.records(view.view(self._events(plan).good, keep))
        writer = to_kafka(deliverable(rows, plan.topics(VIEW_SUFFIX)), self._kafka).outputMode("update")
        with counting(self._spark, keep is not None):
            return self._started(writer, "view", self._options.trigger)

    def _stats(self) -> Running:
        return self._followed("stats", STATS_SUFFIX, self._summing)

    def _summing(self, plan: Plan) -> SparkQuery:
        rows = stats.records(stats.sums(self._events(plan).good, f"{self._options.sums_delay} milliseconds"))
        writer = to_kafka(deliverable(rows, plan.topics(STATS_SUFFIX)), self._kafka).outputMode("append")
        return self._started(writer, "stats", self._options.slow_trigger)

    def _bad(self) -> Running:
        return self._followed("bad", None, self._telling)

    def _telling(self, plan: Plan) -> SparkQuery:
        bad = self._events(plan).bad
        if (topic := self._options.bad_topic) is None:
            writer = bad.writeStream.foreachBatch(tell)
        else:
            writer = to_kafka(bad.selectExpr("to_json(struct(*)) AS value", f"'{topic}' AS topic"), self._kafka)
        return self._started(writer, "bad", self._options.slow_trigger)

    def _started(self, writer: DataStreamWriter, name: str, trigger: int) -> SparkQuery:
        # One folder for each query, under the name that it keeps for ever.
        place = f"{self._options.checkpoint.rstrip('/')}/{name}"
        named = writer.queryName(name).option("checkpointLocation", place)
        with hearing_of_death():
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
            return SparkQuery(named.trigger(processingTime=f"{trigger} milliseconds").start())


def to_kafka(frame: DataFrame, kafka: Mapping[str, str]) -> DataStreamWriter:
    """A writer of records (key, value, topic)."""
    return frame.writeStream.format("kafka").options(**kafka)


def tell(bad: DataFrame, _number: int) -> None:
    """Say in the log what is bad, where no topic takes it; the first of each batch, the count is in the metrics."""
    for row in bad.limit(TOLD).toJSON().collect():
        say(f"not an event, and left out: {row[:1_000]}")


def run(options: Run, master: str, kafka: Mapping[str, str], wish: Wish) -> int:
    """Run until told to stop (0), or until every query was given up (1, as when one was). Raises GoneError."""
    meters = Meters(QUERIES)
    with hearing_of_death(), ExitStack() as stack:
        if options.metrics_listen is not None:
            stack.callback(serve(meters, *options.metrics_listen))
        jars = [Path(jar) for jar in options.jars]
        spark = build("reconsume-view", jars=jars, master=master, options=SETTINGS | dict(options.conf))
        stack.callback(end_java, spark)
        wish.listen()
        write_plainly(spark, options.checkpoint)
        listener = Listener(meters, say)
        spark.streams.addListener(listener)
        say(f"Spark {spark.version} runs; reading {options.reads()}")
        job, limit = Job(spark, options, kafka, meters), wish.now() + FIRST_SECONDS
        supervisor = Supervisor(
            job.starts,
            wish,
            most=options.max_failures,
            say=say,
            restarting=meters.restarting,
            giving_up=meters.giving_up,
            may_begin=lambda name: name == "view" or listener.settled("view") or wish.now() > limit,
        )
        with shown(listener.rows):
            good = supervisor.run()
        say("stopped" if good else "ended, with queries that were given up")
    return 0 if good else 1


def serve(meters: Meters, host: str, port: int) -> Callable[[], None]:
    """Serve the metrics until the answer is called. Raises OSError."""
    server, _ = start_http_server(port, host, meters.registry)
    say(f"metrics at http://{host}:{server.server_port}/metrics")
    return server.shutdown


def after_death(options: Run, ran: float, gone: GoneError, wish: Wish) -> int:
    """The Java process has died: start anew after a wait, unless it dies too often or we are told to stop."""
    if (process := java_process()) is not None:
        end(process)
    streak = Streak(options.deaths).failed(ran)
    count = f"{streak.failures} of {options.max_failures} deaths in a row"
    if submitted() or streak.failures >= options.max_failures:
        say(f"Spark's Java process has died ({count}), and the job ends: {gone}")
        return 1
    say(f"Spark's Java process has died ({count}); starting anew in {streak.wait:g} s: {gone}")
    if not wish.pause(streak.wait):
        start_anew(streak.failures)
    return 0
