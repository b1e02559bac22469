"""The job as users start it: groups found while it runs, bad events, failures, the death of its Java, and its end."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.spark.java import BROKEN_CALL
from reconsume.spark.job.running_query import STOP_SECONDS
from reconsume.topics.events import State
from reconsume.topics.names import Names
from tests.support.deadline import until
from tests.support.kafka.broker import Broker, embedded
from tests.support.kafka.topic_io import Out, create_topic, dump, produce
from tests.support.kafka.view_topics import create_view_topics, event, tell, view_of
from tests.support.sidecar.view_process import SELDOM, START_SECONDS, Batches, ViewProcess

SOON = 60.0
END_SECONDS = 20.0
"""From SIGTERM to the end, also if a batch is slow or a broker does not answer."""


class World(NamedTuple):
    """A job that runs, for all groups of one pattern."""

    bootstrap: str
    job: ViewProcess
    prefix: str
    bad_topic: str
    folder: Path

    def group(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def seen(self, group: str, number: int, state: State = State.WAITING_RETRY) -> None:
        """Wait until the view says so."""
        self.job.until(
            lambda: view_of(self.bootstrap, group).get(f"orders:0:{number}", {}).get("state") == state,
            SOON,
            f"record {number} of {group} is {state} in the view",
            SELDOM,
        )


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def world(kafka: Broker, tmp_path_factory: pytest.TempPathFactory, stack: ExitStack) -> World:
    prefix = f"job-{uuid.uuid4().hex[:8]}"
    bad_topic, folder = f"{prefix}-BAD", tmp_path_factory.mktemp("job")
    create_view_topics(kafka.bootstrap, f"{prefix}-first")
    create_topic(kafka.bootstrap, bad_topic)
    create_topic(kafka.bootstrap, Names(f"{prefix}-halved").events)
    tell(kafka.bootstrap, [event(f"{prefix}-halved", 1)])
    words = ("--pattern", f"{prefix}-.*", "--bad-topic", bad_topic, "--slow-trigger=1s", "--metrics-listen=127.0.0.1:0")
    job = ViewProcess(kafka.bootstrap, folder, *words, f"--checkpoint={folder / 'place'}")
    return World(kafka.bootstrap, stack.enter_context(job), prefix, bad_topic, folder)


def test_an_event_becomes_a_row_of_its_groups_view(world: World) -> None:
    first = world.group("first")
    told = [event(first, 1), event(first, 1, State.COMMIT), event(first, 2)]
    tell(world.bootstrap, told)
    world.seen(first, 1, State.COMMIT)
    world.seen(first, 2)
    row = view_of(world.bootstrap, first)["orders:0:2"]
    assert (row["group"], row["at"], row["instance"]) == (first, told[2].at, told[2].instance)


@pytest.mark.long
def test_a_group_that_is_made_while_the_job_runs_gets_its_view(world: World) -> None:
    second = create_view_topics(world.bootstrap, world.group("second")).group
    tell(world.bootstrap, [event(second, 7)])
    world.seen(second, 7)


@pytest.mark.long
def test_a_group_without_its_view_topic_is_left_out_by_name_until_it_has_it(world: World) -> None:
    halved = world.group("halved")
    for target in ("VIEW", "STATS"):
        sentence = f"{halved} is not served until it has a topic {halved}-RETRY-{target}"
        world.job.until(lambda said=sentence: said in world.job.log(), SOON, f"it is said that {target} is missing")
    for target in ("VIEW", "STATS"):
        create_topic(world.bootstrap, f"{halved}-RETRY-{target}")
    world.seen(halved, 1)
    failed = [line for line in world.job.log().splitlines() if "query failed" in line]
    assert [line for line in failed if "UnansweredError" not in line] == [], (
        "only of a Kafka that is too busy to answer"
    )


@pytest.mark.long
def test_a_bad_event_is_counted_and_written_aside_and_the_next_one_is_seen(world: World) -> None:
    first = world.group("first")
    [(partition, offset)] = produce(world.bootstrap, Names(first).events, [Out(b'{"v": 1}', b"x")])
    tell(world.bootstrap, [event(first, 3)])
    world.seen(first, 3)
    world.job.until(lambda: dump(world.bootstrap, world.bad_topic), SOON, "the bad event is written aside", SELDOM)
    [row] = dump(world.bootstrap, world.bad_topic)
    bad = json.loads(row.value or b"null")
    assert (bad["topic"], bad["partition"], bad["offset"]) == (Names(first).events, partition, offset)
    assert bad["fault"] == "a field is missing or of another type"
    world.job.until(lambda: world.job.metric("bad_events_total") == 1, SOON, "the bad event is counted once")


def test_the_metrics_say_how_the_queries_fare(world: World) -> None:
    spark = re.escape(version("pyspark"))
    assert re.search(rf"Spark {spark}, its Kafka connector 4\.\d\.\d, Java \d+\.\S+; reading", world.job.log())
    assert world.job.livez() == "alive\n"
    world.job.until(lambda: world.job.metric('input_rows_total{query="view"}') >= 3, SOON, "rows are counted")
    assert world.job.metric('batch_duration_seconds_count{query="view"}') >= 1
    for query in ("view", "stats"):
        progress = f'last_progress_timestamp_seconds{{query="{query}"}}'
        world.job.until(lambda name=progress: world.job.metric(name) > 1.7e9, SOON, f"{query} has had a batch")
        assert world.job.metric(f'rows_dropped_by_watermark_total{{query="{query}"}}') == 0
        failures = world.job.log().count(f"the {query} query failed")  # a Kafka that is too busy to answer
        assert world.job.metric(f'restarts_total{{query="{query}"}}') == failures


def folders_of_java(folder: Path) -> list[Path]:
    """Return the temporary folders of the Java processes of the job in `folder`."""
    return list(folder.glob("reconsume-view-*/reconsume-java-*"))


@pytest.mark.long
def test_the_job_outlives_the_death_of_its_java_process(world: World) -> None:
    driver = world.job.driver()
    java = world.job.java()
    (left,) = folders_of_java(world.folder)
    java.kill()
    first = world.group("first")
    tell(world.bootstrap, [event(first, 2, State.COMMIT)])
    world.seen(first, 2, State.COMMIT)
    assert "Spark's Java process crashed (1 of 10 deaths in a row); the job starts again in 1 s" in world.job.log()
    assert world.job.driver() == driver
    assert world.job.java() != java
    assert not left.exists(), "what the one that was killed kept on disk is gone"
    assert len(folders_of_java(world.folder)) == 1


def test_sigterm_in_a_batch_lets_it_end_and_nothing_stays(world: World) -> None:
    first, batches = world.group("first"), Batches(world.folder)
    world.job.until(batches.between, SOON, "the next batch is that of the event")
    tell(world.bootstrap, [event(first, 4)])
    world.job.until(batches.inside, SOON, "a batch is under way")
    kept = [folder for java in folders_of_java(world.folder) for folder in java.glob("blockmgr-*")]
    began = time.monotonic()
    assert world.job.stop() == 0
    took = time.monotonic() - began
    assert took < END_SECONDS
    if took < STOP_SECONDS:  # on a busy machine a batch may take longer: then it is cut off
        assert "orders:0:4" in view_of(world.bootstrap, first), "the batch was done"
    assert "view: stopped" in world.job.log()
    assert kept, "Spark's blocks were in the folder of the job"
    assert not list(world.folder.glob("reconsume-view-*"))
    assert BROKEN_CALL not in world.job.log(), "neither the death before nor the end is told by Py4J"


@pytest.mark.long
def test_a_query_that_fails_starts_again_and_the_end_of_its_parent_ends_all(kafka: Broker, tmp_path: Path) -> None:
    group = f"job-{uuid.uuid4().hex[:8]}"
    words = ("--groups", group, "--metrics-listen=127.0.0.1:0", f"--checkpoint={tmp_path / 'place'}")
    with ViewProcess(kafka.bootstrap, tmp_path, *words) as job:
        job.until(lambda: "the view query failed (1 of 10" in job.log(), START_SECONDS, "there is no topic to read")
        create_view_topics(kafka.bootstrap, group)
        tell(kafka.bootstrap, [event(group, 1)])
        job.until(lambda: view_of(kafka.bootstrap, group), SOON, "the view has a row", SELDOM)
        assert job.metric('restarts_total{query="view"}') >= 1
        secrets = list(tmp_path.glob("reconsume-view-*/kafka.properties"))
        assert [file.stat().st_mode & 0o777 for file in secrets] == [0o600]
        job.family()
        tell(kafka.bootstrap, [event(group, number) for number in range(2, 9)])  # Java writes for a while yet
        job.process.kill()
        job.process.wait()
        job.await_gone()
        until(lambda: not list(tmp_path.glob("reconsume-view-*")), SOON, "the folder of secrets is removed")


@pytest.mark.long
def test_sigterm_ends_the_job_in_time_and_with_0_in_slow_batches_of_a_broker_that_does_not_answer(
    tmp_path: Path,
) -> None:
    group = f"job-{uuid.uuid4().hex[:8]}"
    words = (
        "--groups",
        group,
        "--trigger=200ms",
        "--slow-trigger=200ms",
        f"--checkpoint={tmp_path / 'x'}",
    )
    with embedded() as kafka, ViewProcess(kafka.bootstrap, tmp_path, *words) as job:
        create_view_topics(kafka.bootstrap, group)
        tell(kafka.bootstrap, [event(group, number) for number in range(20_000)])
        job.until(lambda: Batches(tmp_path).done(), START_SECONDS, "the view has begun", SELDOM)
        tell(kafka.bootstrap, [event(group, number) for number in range(20_000)])
        job.until(Batches(tmp_path).inside, SOON, "a batch is under way")
        kafka.node(0).pause()
        try:
            began = time.monotonic()
            assert job.stop() == 0
            assert time.monotonic() - began < END_SECONDS
        finally:
            kafka.node(0).resume()


@pytest.mark.long
def test_the_job_ends_with_1_after_failures_in_a_row(kafka: Broker, tmp_path: Path) -> None:
    words = ("--groups", f"none-{uuid.uuid4().hex[:8]}", "--max-failures=2", f"--checkpoint={tmp_path / 'place'}")
    with ViewProcess(kafka.bootstrap, tmp_path, *words) as job:
        assert job.process.wait(START_SECONDS) == 1
        assert "given up after 2 of 2 failures in a row" in job.log()
        job.await_gone()
