"""The job's queries from source to sink, and the groups of each. Only this module starts queries.

There are two queries, so that one that fails does not stop the other. `view`, at the quick trigger, has no state: it
begins at positions in Kafka (`positions`), and Spark's checkpoint of it is a temporary folder. `stats`, at the slow
trigger, has Spark's state and a checkpoint. It may be lost: the sums then begin at the first event at hand.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from reconsume.spark import stats, view
from reconsume.spark.checkpoint import Folder, written_plainly
from reconsume.spark.java import raising_gone
from reconsume.spark.job.answers import UnansweredError
from reconsume.spark.job.cluster import Cluster
from reconsume.spark.job.display import say
from reconsume.spark.job.groups import Plan, planned
from reconsume.spark.job.meters import Meters
from reconsume.spark.job.positions import Begin, PartitionName, Position, ReadPositions, begin, to_commit
from reconsume.spark.job.reading import GROUP, TopicEras, consumer_options, tasks_of
from reconsume.spark.job.running_query import SparkQuery
from reconsume.spark.job.serving_groups import Followed
from reconsume.spark.job.supervisor import Running, Start
from reconsume.spark.job.targets import deliverable
from reconsume.spark.names import EVENTS_SUFFIX, STATS_SUFFIX, VIEW_SUFFIX, reading
from reconsume.spark.options import Run
from reconsume.spark.renewal import Kept, is_stale, kept_in, kept_text, renewed
from reconsume.topics.names import Names

QUERIES = ("view", "stats")
PATIENCE = {
    # A topic that was deleted is read, or written, until these times are over. With Spark's and Kafka's own, minutes,
    # one group's deletion would hold up the others as long.
    "kafkaConsumer.pollTimeoutMs": "10000",
    "kafka.max.block.ms": "10000",
}
"""Options of Spark's Kafka source and sink; the caller's override them."""
GATHERING = {"kafka.linger.ms": "100"}
"""Options of the sink; the caller's override them. A task flushes at its end, so nothing waits for this time. Without
it the producer looks at all of thousands of partitions for each row, and sends it alone: a third of the CPU of 200
groups.
"""
UNLISTED = ("specify all TopicPartitions", "START_OFFSET_DOES_NOT_MATCH_ASSIGNED")
"""What Spark says if it finds a partition that has no starting offset: it was added after we had listed them."""


class Queries:
    """The queries of one session, ready to be started. `positions` learns where the view's query begins."""

    def __init__(
        self,
        spark: SparkSession,
        options: Run,
        kafka: Mapping[str, str],
        cluster: Cluster,
        meters: Meters,
        positions: ReadPositions,
    ) -> None:
        self._spark, self._options, self._kafka = spark, options, {**PATIENCE, **kafka}
        self._cluster, self._meters, self._positions = cluster, meters, positions
        self._eras = TopicEras()

    @property
    def starts(self) -> dict[str, Start]:
        """The function that starts each query, by the query's name."""
        return {"view": self._view, "stats": self._stats}

    def _followed(
        self,
        name: str,
        target: str,
        begin: Callable[[Plan], SparkQuery],
        more: str | None = None,
        may_change: Callable[[], bool] = lambda: True,
    ) -> Running:
        """Return a query over the groups that have events and the topic it writes.

        The query restarts when these groups change, and it `may_change`.
        """
        options = self._options

        def look() -> Plan:
            with raising_gone():
                return planned(options.groups, options.pattern, self._cluster.topics(), target, more)

        def begun(plan: Plan) -> SparkQuery:
            with raising_gone(), self._cluster.starting():
                return begin(plan)

        with self._cluster.starting():
            return Followed(
                look,
                begun,
                time.monotonic,
                say,
                open_end=options.pattern is not None,
                alive=partial(self._meters.alive, name),
                starting=partial(self._meters.liveness.alive, name),
                may_change=may_change,
            )

    def _read(
        self, plan: Plan, partitions: Collection[PartitionName], more: Mapping[str, str], *, urgent: bool
    ) -> DataFrame:
        """Return the records of the events topics of the groups that the plan serves, which have these partitions."""
        topics, count = plan.topics(EVENTS_SUFFIX), len(partitions)
        era = self._eras.take({topic: plan.ids[topic] for topic in topics})
        options = consumer_options(count, era)
        source = {
            **options,
            **reading(self._kafka["kafka.bootstrap.servers"], self._kafka),
            GROUP: options[GROUP],
            "maxOffsetsPerTrigger": str(self._options.max_offsets),
            # Names, never a pattern: Spark would find a partition that has no starting offset.
            "subscribe": ",".join(topics),
            **more,
        }
        context = self._spark.sparkContext
        local = str(context.master).startswith("local")
        tasks = tasks_of(count, context.defaultParallelism, local=local, urgent=urgent)
        # A task for each partition costs more than the reading itself.
        return self._spark.readStream.format("kafka").options(**source).load().coalesce(tasks)

    # --- the view -----------------------------------------------------------------------------------------------------

    def _view(self) -> Running:
        return self._followed("view", VIEW_SUFFIX, self._viewing, self._options.bad_topic)

    def _viewing(self, plan: Plan) -> SparkQuery:
        begins = self._begins(plan)
        starting = {"startingOffsets": offsets_json(begins.offsets)}
        written = [topic for topic in plan.ids if not topic.endswith(EVENTS_SUFFIX)]
        rows = view.outputs(self._read(plan, begins.offsets, starting, urgent=True), self._options.bad_topic)
        writer = to_kafka(deliverable(rows, written), self._kafka).outputMode("append")
        # On the driver's disk, whatever file system is Spark's default: no executor needs it.
        folder = tempfile.TemporaryDirectory(prefix="reconsume-view-query-")
        checkpoint = Path(folder.name).as_uri()
        return self._started(writer, "view", self._options.trigger, checkpoint, folder.cleanup, passing=UNLISTED)

    def _begins(self, plan: Plan) -> Begin:
        """Return where the query begins, after it was committed: readers must not take an unread group for a new one.

        Raises UnansweredError if Kafka did not take a position.
        """
        spans = self._cluster.spans(self._cluster.partitions(plan.topics(EVENTS_SUFFIX)))
        committed = self._cluster.committed([Names(group).view_group for group in plan.served])
        begins = begin(plan, spans, committed)
        if begins.renewed:
            text = "their events or VIEW topic is another one, or was cut"
            say(f"the view of {', '.join(begins.renewed)} is read from the first event: {text}")
        news: dict[str, dict[tuple[str, str], Position]] = {}
        for group, partition, position in to_commit(plan, begins.offsets):
            if committed.get(partition) != position:
                news.setdefault(group, {})[partition] = position
        for group, why in self._cluster.commit(news).items():
            raise UnansweredError(f"the position of {group} cannot be committed: {why}")
        self._positions.starting(plan, begins.offsets)
        return begins

    # --- the sums -----------------------------------------------------------------------------------------------------

    def _stats(self) -> Running:
        # Two restarts at once would each take twice as long, and the view's is the one that somebody waits for.
        return self._followed("stats", STATS_SUFFIX, self._summing, may_change=lambda: self._positions.settled)

    def _summing(self, plan: Plan) -> SparkQuery:
        self._renew(plan)
        partitions = self._cluster.partitions(plan.topics(EVENTS_SUFFIX))
        good = view.events(self._read(plan, partitions, {}, urgent=False)).good
        rows = stats.records(stats.sums(good, f"{self._options.sums_delay} milliseconds"))
        writer = to_kafka(deliverable(rows, plan.topics(STATS_SUFFIX)), self._kafka).outputMode("update")
        # The folder's name never changes, so that a restart finds the checkpoint.
        checkpoint = f"{self._options.checkpoint.rstrip('/')}/stats"
        return self._started(writer, "stats", self._options.slow_trigger, checkpoint)

    def _renew(self, plan: Plan) -> None:
        """Make the sums' checkpoint fit the topics that are there. The query must not run.

        Offsets in a topic that was deleted are removed from it. If the topic was created again, it is read from its
        first record. If not, a batch that was planned with its records cannot be done. If the counts of a group must be
        written again, there is no way but to count all events again: the checkpoint is given up.
        """
        folder, file = Folder(self._spark, self._options.checkpoint), "stats-topics.json"
        kept, placed, there = kept_in(folder.read(file)), folder.placed("stats"), self._cluster.topics()
        if stale := is_stale(plan.ids, kept, placed):
            say(f"all sums are counted again from the first events, as those of {stale} must be written anew")
            folder.drop("stats")
            kept, placed = Kept({}, frozenset()), frozenset()
        if topics := renewed(plan.ids, kept.ids, placed):
            say(f"created again, so the stats query reads from the first record: {', '.join(topics)}")
            folder.forget("stats", topics)
        if gone := sorted(placed - there.keys()):
            say(f"deleted, so the stats query leaves out what it had planned to read: {', '.join(gone)}")
            folder.forget("stats", gone)
        text = kept_text(plan.ids, kept, placed, there.keys())
        if text != folder.read(file):
            folder.write(file, text)

    def _started(
        self,
        writer: DataStreamWriter,
        name: str,
        trigger: int,
        checkpoint: str,
        after: Callable[[], None] = lambda: None,
        passing: tuple[str, ...] = (),
    ) -> SparkQuery:
        named = writer.queryName(name).option("checkpointLocation", checkpoint)
        with raising_gone(), written_plainly(self._spark, checkpoint):
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
            return SparkQuery(named.trigger(processingTime=f"{trigger} milliseconds").start(), after, passing)


def offsets_json(offsets: Mapping[tuple[str, str], int]) -> str:
    """Return offsets as Spark's option `startingOffsets` takes them."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        topics.setdefault(topic, {})[number] = offset
    return json.dumps(topics)


def to_kafka(frame: DataFrame, kafka: Mapping[str, str]) -> DataStreamWriter:
    """Return a writer of records (key, value, topic)."""
    return frame.writeStream.format("kafka").options(**{**GATHERING, **kafka})
