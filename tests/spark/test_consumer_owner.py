"""The retries of a group have one owner, and a start without progress takes nothing twice: with a whole Spark.

Two incidents that must not happen again. Two gated queries of one group made 10 299 copies of 123 failed records. A
query with an empty checkpoint handled all old copies again, and 12 dead letters became 57.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reconsume.spark.consumer import (
    Record,
    RetriesOwnedError,
    Rules,
    build_rules,
    for_each_record,
    read_gated,
    read_relay,
)
from reconsume.topics.names import Kind
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, dump, produce

SECONDS = 120.0
BAD = 12
"""Records that fail until they are dead letters."""


class Jobs:
    """Queries of one group, whose handler refuses records with the value `bad` and writes down every call."""

    def __init__(self, spark: SparkSession, group: GroupTopics, folder: Path) -> None:
        self.spark, self.group, self.folder = spark, group, folder
        self.kafka = {"bootstrap.servers": group.bootstrap}
        self.calls = folder / "calls"
        self.calls.touch()

    def rules(self, name: str = "ship") -> Rules:
        return build_rules(
            self.group.group,
            self.group.mains,
            name=name,
            ladder=["1s", "2s"],
            levels=["1s", "2s"],
            max_reconsume_times=3,
        )

    def start(self, name: str = "ship", place: str = "place", read: Any = read_gated, **more: Any) -> StreamingQuery:
        """Start a query, with the checkpoint `place`."""
        rules, calls = self.rules(name), self.calls

        def handle(record: Record) -> None:
            with calls.open("a") as file:
                file.write(f"{record.id} {record.times}\n")
            if record.value == b"bad":
                raise LookupError

        frame = read(self.spark, rules, self.kafka, **more)
        run = for_each_record(handle, rules, self.kafka, stop_share=1)
        writer = frame.writeStream.foreachBatch(run).option("checkpointLocation", str(self.folder / place))
        return writer.trigger(processingTime="500 milliseconds").start()

    def attempts(self) -> Counter[str]:
        """How often each attempt was handled."""
        return Counter(self.calls.read_text().splitlines())

    def states(self) -> Counter[tuple[str, int, str]]:
        """How many events each attempt has of each state."""
        events = [json.loads(row.value or b"") for row in dump(self.group.bootstrap, self.group.names.events)]
        return Counter((event["id"], event["times"], event["state"]) for event in events)

    def letters(self) -> int:
        """How many records the DLQ has."""
        return len(dump(self.group.bootstrap, self.group.dlq))

    def wait(self, query: StreamingQuery, condition: Any, what: str) -> None:
        """Wait for a condition while the query runs."""

        def is_met() -> bool:
            assert query.exception() is None, str(query.exception())
            return bool(condition())

        until(is_met, SECONDS, what)

    def fault(self, query: StreamingQuery) -> str:
        """Wait until the query ends by an error, and return it."""
        until(lambda: not query.isActive, SECONDS, "the query ends")
        return str(query.exception())


@pytest.fixture
def jobs(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Iterator[Jobs]:
    group = create_group(fresh_group(kafka.bootstrap, delays=(1_000, 2_000)), also=(Kind.POLICY,))
    yield Jobs(spark, group, tmp_path)
    for query in spark.streams.active:
        query.stop()


def fill(jobs: Jobs) -> None:
    produce(jobs.group.bootstrap, jobs.group.main, [Out(b"bad", b"k%d" % number) for number in range(BAD)])
    produce(jobs.group.bootstrap, jobs.group.main, [Out(b"good", b"k%d" % number) for number in range(BAD)])


@pytest.mark.long
def test_a_second_query_of_the_group_is_refused_and_nothing_is_handled_or_written_twice(jobs: Jobs) -> None:
    """D1: a second deployment, a notebook beside the job, another form of query."""
    fill(jobs)
    first = jobs.start()
    jobs.wait(first, lambda: jobs.attempts(), "the first works")
    for read in (read_gated, read_relay):
        with pytest.raises(RetriesOwnedError, match=r'the Spark query "ship" .*local-.* UTC') as refused:
            jobs.start("notebook", "other", read, start="earliest")
        assert refused.value.reader.query is not None
        assert refused.value.reader.query.name == "ship"
    jobs.wait(first, lambda: jobs.letters() == BAD, "all bad ones are dead letters")
    assert set(jobs.attempts().values()) == {1}
    assert set(jobs.states().values()) == {1}
    first.stop()
    second = jobs.start("notebook", "other", start="after:ship")
    produce(jobs.group.bootstrap, jobs.group.main, [Out(b"good", b"later")])
    jobs.wait(second, lambda: len(jobs.attempts()) == 4 * BAD + BAD + 1, "it goes on as soon as the first has ended")
    assert set(jobs.attempts().values()) == {1}
    assert jobs.letters() == BAD


@pytest.mark.long
def test_the_later_start_of_a_name_goes_on_and_the_earlier_one_ends(jobs: Jobs) -> None:
    fill(jobs)
    first = jobs.start()
    jobs.wait(first, lambda: jobs.letters() == BAD, "the first works")
    began = time.monotonic()
    second = jobs.start(place="copy")
    assert "this query ends, because it was started again" in jobs.fault(first)
    assert time.monotonic() - began < 40
    produce(jobs.group.bootstrap, jobs.group.main, [Out(b"good", b"later")])
    jobs.wait(second, lambda: len(jobs.attempts()) == 4 * BAD + BAD + 1, "the second goes on")
    assert set(jobs.states().values()) == {1}
    assert jobs.letters() == BAD


@pytest.mark.long
@pytest.mark.parametrize("start", ["earliest", "now"])
def test_a_start_without_checkpoint_and_progress_takes_what_waits_and_nothing_that_was_handled(
    jobs: Jobs, start: str
) -> None:
    """D2: an empty checkpoint; here with a lost private group too, under another name."""
    fill(jobs)
    first = jobs.start()
    jobs.wait(first, lambda: jobs.letters() == BAD, "all bad ones are dead letters")
    produce(jobs.group.bootstrap, jobs.group.main, [Out(b"bad", b"late")])
    jobs.wait(first, lambda: len(jobs.states()) > 3 * BAD + BAD, "one more has failed")
    first.stop()
    before, states = jobs.attempts(), jobs.states()
    fault = jobs.fault(jobs.start("other", "other"))
    assert 'the query "other" has no progress' in fault
    assert 'start=: write "earliest", "now"' in fault
    assert jobs.attempts() == before, "it ends before its first batch"
    second = jobs.start("other", "other", start=start)
    produce(jobs.group.bootstrap, jobs.group.main, [Out(b"good", b"new")])
    jobs.wait(second, lambda: jobs.letters() == BAD + 1, "what waited goes on")
    good = BAD if start == "earliest" else 0
    jobs.wait(second, lambda: jobs.attempts().total() >= before.total() + good + 2, "all is handled")
    second.stop()
    rows = dump(jobs.group.bootstrap, jobs.group.main)
    succeeded = {f"{jobs.group.main}:{row.partition}:{row.offset} 0" for row in rows if row.value == b"good"}
    counted = {f"{ident} {times - (state == 'WAITING_RETRY')}" for ident, times, state in states}
    cut = before.keys() - counted - succeeded  # of a batch in which the first query was stopped
    again = {line for line, times in jobs.attempts().items() if times > 1} - cut
    assert again <= succeeded, "no attempt of a record that has failed is made twice"
    assert len(again) == good, "of what succeeded at once Kafka has no trace"
    assert set(jobs.states().values()) == {1}
    assert states.keys() <= jobs.states().keys()
    assert jobs.letters() == BAD + 1
