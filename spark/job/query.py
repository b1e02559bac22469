"""The view's query in Spark: from the events topics of all served groups to their VIEW topics.

The query has no state. It begins at positions in Kafka (`progress`), and its checkpoint is a temporary folder on the
driver's disk, so it may end at any moment: events that are read again become the same rows. `ViewWork` is the `Work`
of `groups.FollowedGroups`: it asks what a start must know, starts the query, and takes in its progress. The job's main
thread calls all of it. Progress is polled, as Spark's listener would need a server of Py4J with threads of its own.

*Many groups.* Spark reads each partition with a Kafka consumer of its own, and keeps consumers for the next batch by
their consumer group and partition. One that is made again costs 10 ms of CPU and a connection. So each start of the
query has the same consumer group (which nobody joins) for the same options. What a consumer has fetched ahead stays in
memory: therefore a consumer's share is smaller where there are many. A task reads partition after partition and waits
for the broker four times for each, so many partitions are read by more tasks than a machine has cores.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reconsume.spark import view
from reconsume.spark.errors import JobError
from reconsume.spark.job.groups import Plan, planned
from reconsume.spark.job.kafka import Brokers, PartitionName, Position, RefusedError
from reconsume.spark.job.metrics import JobMetrics
from reconsume.spark.job.progress import Begin, RunProgress, batch_of, begin, offsets_json, to_commit
from reconsume.spark.names import EVENTS_SUFFIX, VIEW_SUFFIX, reading
from reconsume.spark.options import Run
from reconsume.topics.names import Names

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
groups."""
STOP_SECONDS = 4.0
"""Seconds that a stop waits for the end of a batch, before it is cut off."""
RESTS = 9
"""Times as long as a commit took, there is no other while batches come: a job of many groups spends a tenth of its time
on commits, and not more."""
REFUSED_SECONDS = 1.0
"""Seconds after which commits that were refused are tried again."""

# --- reading thousands of partitions ----------------------------------------------------------------------------------

MOST_CONSUMERS, LEAST_CONSUMERS = 2_560, 64
"""Consumers that Spark keeps, 170 kB of the heap each. With the lesser number, its own default, a job of more
partitions makes nearly all of them again in each batch."""
FILES_PER_CONSUMER = 8
"""Open files for which there must be room for each; it has three."""
FEW = 64
"""So many partitions may be read with the limits of Kafka's client."""
FETCH_BYTES, LEAST_FETCH_BYTES = 1_048_576, 32_768
"""Bytes that are fetched of a partition at a time; a larger record comes all the same, alone."""
POLL_RECORDS, LEAST_POLL_RECORDS = 500, 32
"""Records that are taken at a time from what was fetched. Each time costs three requests."""
GROUP = "kafka.group.id"
"""The option that no setting of a user replaces: it tells consumers with other limits, or of other topics, apart."""
FETCH_WAIT_MS = 1
"""ms for which a broker may hold a fetch that finds nothing, 500 by default. Spark asks for a partition's first and
last offset after each fetch, and a broker answers a connection's requests in their order: so a task waits that long for
the fetch ahead, in one partition after another. With 20 ms a batch of twenty groups took twice as long."""
PARTITIONS_PER_TASK, LEAST_TASKS = 25, 2


def kept_consumers(files: int) -> int:
    """Return how many consumers Spark may keep in a process that may open so many files; negative: any number."""
    if files < 0:
        return MOST_CONSUMERS
    return max(LEAST_CONSUMERS, min(MOST_CONSUMERS, files // FILES_PER_CONSUMER))


def consumer_options(partitions: int, era: int) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a query that reads so many partitions.

    Spark refuses different options for one consumer group and partition, so the group's name says what they are. `era`
    counts how often a topic was another one of the same name: what was fetched ahead of it must not be read.
    """
    share = 1
    while share * FEW < partitions:  # a power of two, so it changes seldom
        share *= 2
    return {
        GROUP: f"reconsume-spark-{share}-{era}",
        "kafka.max.partition.fetch.bytes": str(max(FETCH_BYTES // share, LEAST_FETCH_BYTES)),
        "kafka.max.poll.records": str(max(POLL_RECORDS // share, LEAST_POLL_RECORDS)),
        "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MS),
        # A tenth of a consumer's cost, for metrics that nobody reads.
        "kafka.enable.metrics.push": "false",
        "kafka.auto.include.jmx.reporter": "false",
    }


def tasks_of(partitions: int, at_once: int, *, local: bool) -> int:
    """Return how many tasks read so many partitions, where `at_once` can run.

    A task costs 5 ms, so a batch of few partitions has few. On a cluster each thread has a core, and all are used.
    """
    return min(at_once, max(LEAST_TASKS, partitions // PARTITIONS_PER_TASK)) if local else at_once


# --- the query --------------------------------------------------------------------------------------------------------


class ViewQuery:
    """One run of the query in Spark, with its progress. `folder` is its checkpoint, removed when it has ended."""

    def __init__(self, query: StreamingQuery, progress: RunProgress, folder: tempfile.TemporaryDirectory[str]) -> None:
        self.progress = progress
        self._query, self._folder, self._reported = query, folder, -1

    def fault(self) -> str | None:
        """Return why the query has ended; None while it runs."""
        if self._query.isActive:
            return None
        error = self._query.exception()
        self._folder.cleanup()
        return "it was stopped from elsewhere" if error is None else cause_in(str(error))

    def is_idle(self) -> bool:
        """Whether the query waits for its next trigger."""
        status = self._query.status
        return not status["isTriggerActive"] and status["message"].startswith("Waiting")

    def reports(self) -> list[str]:
        """Return Spark's reports, as JSON, of the batches that have ended since the last call."""
        # Asked for its values one by one, PySpark takes 50 ms of CPU for a report.
        query = self._query._jsq
        last = query.lastProgress()
        if last is None or (newest := last.batchId()) <= self._reported:
            return []
        news = [last]
        if newest > self._reported + 1:
            recent = query.recentProgress()
            news = [report for report in list(recent)[self._reported - newest :] if report.batchId() > self._reported]
        self._reported = newest
        return [str(report.json()) for report in news]

    def stop(self, *, at_once: bool = False) -> None:
        """Stop the query between two batches, or within one after STOP_SECONDS. Raises an error of Java if it does
        not stop."""
        end = time.monotonic() + (0.0 if at_once else STOP_SECONDS)
        try:
            while time.monotonic() < end and self._query.isActive and not self.is_idle():
                time.sleep(0.02)
        finally:
            self._query.stop()
            self._folder.cleanup()


def cause_in(text: str) -> str:
    """Return the first line of a query's error, without the query's own name and ids."""
    line = next((line for line in text.splitlines() if line.strip()), "an unknown error")
    return (line.partition(" terminated with exception: ")[2] or line)[:500]


class ViewWork:
    """Asks the brokers, starts the query, and takes in its progress: the `Work` of `FollowedGroups`.

    `kafka` holds Spark's options for connecting to Kafka. `now`: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Run,
        kafka: Mapping[str, str],
        brokers: Brokers,
        metrics: JobMetrics,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._options, self._kafka = spark, options, {**PATIENCE, **kafka}
        self._brokers, self._metrics, self._say, self._now = brokers, metrics, say, now
        self._ids: dict[str, str] = {}
        self._era = 0
        self._begins: dict[PartitionName, int] = {}
        self._run: ViewQuery | None = None
        self._commit_at, self._is_refused = 0.0, False

    # --- for FollowedGroups

    def look(self) -> Plan:
        """Return the groups that there are now."""
        return planned(self._options.groups, self._options.pattern, self._brokers.topics())

    def ended(self, plan: Plan) -> None:
        """Take in the last progress of the query that has ended, as far as it is true of the plan's topics."""
        if (run := self._run) is not None:
            self._run = None
            self._take(run)
            run.progress.keep(plan)
            self._settle(run.progress)

    def check(self, plan: Plan) -> dict[str, str]:
        """Find out where the query must begin, and commit it. Return why groups cannot be served, by group.

        It is asked about all groups together, and about each alone if one of them is refused.
        """
        self._metrics.alive()
        self._begins, reasons = {}, dict[str, str]()
        with self._brokers.within():
            try:
                self._begins, reasons = self._positions(plan)
            except RefusedError:
                for group in plan.served:
                    try:
                        begins, refused = self._positions(plan.of([group]))
                    except RefusedError as why:
                        begins, refused = {}, {group: str(why)}
                    self._begins |= begins
                    reasons |= refused
        return reasons

    def begin(self, plan: Plan) -> ViewQuery:
        """Start the query for groups that were checked."""
        topics = plan.topics(EVENTS_SUFFIX)
        begins = {partition: at for partition, at in self._begins.items() if partition[0] in set(topics)}
        ids = {topic: plan.ids[topic] for topic in topics}
        if any(self._ids.get(topic, topic_id) != topic_id for topic, topic_id in ids.items()):
            self._era, self._ids = self._era + 1, {}
        self._ids |= ids
        options = consumer_options(len(begins), self._era)
        source = {
            **options,
            **reading(self._kafka["kafka.bootstrap.servers"], self._kafka),
            GROUP: options[GROUP],
            "maxOffsetsPerTrigger": str(self._options.max_offsets),
            # Names, never a pattern: Spark would find a partition that has no starting offset.
            "subscribe": ",".join(topics),
            "startingOffsets": offsets_json(begins),
        }
        context = self._spark.sparkContext
        tasks = tasks_of(len(begins), context.defaultParallelism, local=str(context.master).startswith("local"))
        # A task for each partition costs more than the reading itself.
        raw = self._spark.readStream.format("kafka").options(**source).load().coalesce(tasks)
        # On the driver's disk, whatever file system is Spark's default: no executor needs it.
        folder = tempfile.TemporaryDirectory(prefix="reconsume-view-query-", ignore_cleanup_errors=True)
        writer = view.outputs(raw).writeStream.queryName("view").outputMode("append")
        writer = writer.format("kafka").options(**{**GATHERING, **self._kafka})
        writer = writer.option("checkpointLocation", Path(folder.name).as_uri())
        query = writer.trigger(processingTime=f"{self._options.trigger} milliseconds").start()
        self._run = ViewQuery(query, RunProgress(plan, begins, self._now()), folder)
        self._metrics.alive()  # a check may take most of a minute, and the first batch as long again
        return self._run

    def _positions(self, plan: Plan) -> tuple[dict[PartitionName, int], dict[str, str]]:
        """Return where the query begins, after it was committed: readers must not take an unread group for a new one.

        Return also why groups' positions were refused, by group. Raises RefusedError and UnansweredError.
        """
        if not plan.served:
            return {}, {}
        partitions = self._brokers.partitions(plan.topics(EVENTS_SUFFIX), plan.topics(VIEW_SUFFIX))
        firsts, ends = self._brokers.first_offsets(partitions), self._brokers.end_offsets(partitions)
        view_groups = {Names(group).view_group: group for group in plan.served}
        committed = self._brokers.committed(view_groups)
        begins: Begin = begin(plan, firsts, ends, committed)
        if begins.reread:
            why = "their events or VIEW topic is another one, or was cut"
            self._say(f"the view of {', '.join(begins.reread)} is read from the first event: {why}")
        news: dict[str, dict[PartitionName, Position]] = {}
        for group, partition, position in to_commit(plan, begins.offsets):
            if committed.get(partition) != position:
                news.setdefault(group, {})[partition] = position
        refused = self._brokers.commit(news)
        return dict(begins.offsets), {
            view_groups[group]: f"its position cannot be committed: {why}" for group, why in refused.items()
        }

    # --- for the job's loop

    def take_progress(self) -> None:
        """Take in the batches that have ended, count what they did not find, and commit how far they have read."""
        if (run := self._run) is None:
            return
        self._take(run)
        if run.is_idle():
            self._metrics.well()
        if (began := self._now()) >= self._commit_at:
            self._settle(run.progress)
            rest = (self._now() - began) * RESTS
            self._commit_at = self._now() + (max(rest, REFUSED_SECONDS) if self._is_refused else rest)

    def _take(self, run: ViewQuery) -> None:
        for report in run.reports():
            batch = batch_of(json.loads(report))
            if not batch.starts:
                self._say(f"the first batch is done, after {batch.seconds:.1f} s: {batch.rows} records")
            run.progress.take(batch)
            self._metrics.took(batch)
            if batch.bad:
                text = f"{batch.bad} records are not events, and ignored; one of them: {batch.first_bad[:1_000]}"
                self._say(text)

    def _settle(self, progress: RunProgress) -> None:
        self._count_lost(progress)
        self._commit(progress)

    def _count_lost(self, progress: RunProgress) -> None:
        if not (partitions := progress.suspicious()):
            return
        try:
            counts = progress.lost(self._brokers.first_offsets(partitions))
        except JobError as error:
            self._say(f"the first offsets cannot be read, so lost events may be uncounted: {error}")
            progress.lost({})
            return
        for topic, number in counts.items():
            self._metrics.lost(topic, number)
            self._say(f"{number} events of {topic} were deleted before the view read them")

    def _commit(self, progress: RunProgress) -> None:
        """Commit how far the query has read. A failure is logged once, until all commits succeed."""
        if not (news := progress.news(self._now())):
            return
        refused = self._brokers.commit(news)
        for group, positions in news.items():
            if group not in refused:
                progress.committed(positions)
        if refused and not self._is_refused:
            text = "the view seems older than it is, and these events are read again after a restart"
            group, why = next(iter(refused.items()))
            self._say(f"positions cannot be committed for {len(refused)} groups, so {text}; {group}: {why}")
        self._is_refused = bool(refused)
