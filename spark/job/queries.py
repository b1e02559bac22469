"""The job's queries from source to sink, and the groups of each. Only this module starts queries.

There are three queries: `view` at the quick trigger, `stats` and `bad` at the slow one. Each has its own checkpoint, so
that one that fails does not stop the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark import stats, view
from spark.checkpoint import Folder
from spark.java import raising_gone
from spark.job.cluster import Cluster
from spark.job.display import say
from spark.job.eviction import EvictingQuery
from spark.job.groups import Plan, planned
from spark.job.meters import Meters
from spark.job.running_query import SparkQuery
from spark.job.serving_groups import Followed
from spark.job.supervisor import Running, Start
from spark.job.targets import deliverable
from spark.names import EVENTS_SUFFIX, STATS_SUFFIX, VIEW_SUFFIX, reading
from spark.options import Run
from spark.renewal import ids_in, ids_text, renewed
from spark.schema import Parsed
from spark.session import counting

QUERIES = ("view", "stats", "bad")
MOST_SHOWN = 10
"""Bad events of one batch that are written to the log."""


class Queries:
    """The queries of one session, ready to be started."""

    def __init__(
        self, spark: SparkSession, options: Run, kafka: Mapping[str, str], cluster: Cluster, meters: Meters
    ) -> None:
        self._spark, self._options, self._kafka = spark, options, kafka
        self._cluster, self._meters = cluster, meters

    @property
    def starts(self) -> dict[str, Start]:
        """The function that starts each query, by the query's name."""
        return {"view": self._view, "stats": self._stats, "bad": self._bad}

    def _followed(self, name: str, target: str | None, begin: Callable[[Plan], Running]) -> Running:
        """Return a query over the groups that have events and the topic it writes.

        The query restarts when these groups change.
        """
        options = self._options

        def look() -> Plan:
            with raising_gone():
                return planned(options.groups, options.pattern, self._cluster.topics(), target)

        def renewing(plan: Plan) -> Running:
            with raising_gone():
                self._renew(name, plan)
            return begin(plan)

        open_end = options.pattern is not None
        alive = partial(self._meters.alive, name)
        return Followed(look, renewing, time.monotonic, say, open_end=open_end, alive=alive)

    def _renew(self, name: str, plan: Plan) -> None:
        """Remove the offsets in topics that were deleted from the query's checkpoint. The query must not run.

        If such a topic was created again, it is read from its first record. If not, a batch that was planned with its
        records cannot be done: each task would wait for it for three minutes, and fail.
        """
        folder, file = Folder(self._spark, self._options.checkpoint), f"{name}-topics.json"
        kept, placed = ids_in(folder.read(file)), folder.placed(name)
        if topics := renewed(plan.ids, kept, placed):
            text = f"created again, so the {name} query reads from the first record: {', '.join(topics)}"
            say(f"{text}; unread records of the old topic are lost")
            folder.forget(name, topics)
        if gone := sorted(placed - self._cluster.topics().keys()):
            say(f"deleted, so the {name} query leaves out what it had planned to read: {', '.join(gone)}")
            folder.forget(name, gone)
        text = ids_text(plan.ids, kept, placed)
        if text != folder.read(file):
            folder.write(file, text)

    def _events(self, plan: Plan) -> Parsed:
        """Return the events of the groups that the plan serves."""
        source = {
            **reading(self._kafka["kafka.bootstrap.servers"], self._kafka),
            "maxOffsetsPerTrigger": str(self._options.max_offsets),
            "groupIdPrefix": "reconsume-spark",
            "subscribe": ",".join(plan.topics(EVENTS_SUFFIX)),
        }
        raw = self._spark.readStream.format("kafka").options(**source).load()
        # A task for each partition costs more than the reading itself: use as many tasks as can run at once.
        return view.events(raw.coalesce(self._spark.sparkContext.defaultParallelism))

    def _view(self) -> Running:
        return self._followed("view", VIEW_SUFFIX, self._swept)

    def _swept(self, plan: Plan) -> Running:
        keep = f"{self._options.keep} milliseconds"
        turns = (lambda: self._viewing(plan, None)), (lambda: self._viewing(plan, keep))
        return EvictingQuery(*turns, self._options.evict_every / 1000, time.monotonic, say)

    def _viewing(self, plan: Plan, keep: str | None) -> SparkQuery:
        rows = view.records(view.view(self._events(plan).good, keep))
        writer = to_kafka(deliverable(rows, plan.topics(VIEW_SUFFIX)), self._kafka).outputMode("update")
        with counting(self._spark, keep is not None):
            return self._started(writer, "view", self._options.trigger)

    def _stats(self) -> Running:
        return self._followed("stats", STATS_SUFFIX, self._summing)

    def _summing(self, plan: Plan) -> SparkQuery:
        rows = stats.records(stats.sums(self._events(plan).good, f"{self._options.sums_delay} milliseconds"))
        writer = to_kafka(deliverable(rows, plan.topics(STATS_SUFFIX)), self._kafka).outputMode("update")
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
        # One folder for each query. The name never changes, so that a restart finds the checkpoint.
        path = f"{self._options.checkpoint.rstrip('/')}/{name}"
        named = writer.queryName(name).option("checkpointLocation", path)
        with raising_gone():
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
            return SparkQuery(named.trigger(processingTime=f"{trigger} milliseconds").start())


def to_kafka(frame: DataFrame, kafka: Mapping[str, str]) -> DataStreamWriter:
    """Return a writer of records (key, value, topic)."""
    return frame.writeStream.format("kafka").options(**kafka)


def tell(bad: DataFrame, _number: int) -> None:
    """Log the first bad events of a batch, if no topic takes them. The metrics have the count."""
    for row in bad.limit(MOST_SHOWN).toJSON().collect():
        say(f"not an event, and ignored: {row[:1_000]}")
