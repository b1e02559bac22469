"""The job as users start it: groups found while it runs, bad events, what ends it, and that it then goes on."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.spark.java import BROKEN_CALL
from reconsume.spark.job.query import STOP_SECONDS
from reconsume.topics.events import State
from reconsume.topics.names import Kind, Names
from tests.support.deadline import until
from tests.support.kafka.broker import Broker, embedded
from tests.support.kafka.topic_io import Out, create_topic, produce
from tests.support.kafka.view_topics import create_view_topics, event, tell, view_of
from tests.support.sidecar.view_process import GONE_SECONDS, SELDOM, START_SECONDS, Batches, ViewProcess

KINDS = (Kind.EVENTS, Kind.VIEW)
SOON = 60.0
END_SECONDS = 20.0
"""From SIGTERM to the end, also if a batch is slow or a broker does not answer."""


class World(NamedTuple):
    """A job that runs, for all groups of one pattern."""

    bootstrap: str
    job: ViewProcess
    prefix: str
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
    folder = tmp_path_factory.mktemp("job")
    create_view_topics(kafka.bootstrap, f"{prefix}-first", KINDS)
    create_topic(kafka.bootstrap, Names(f"{prefix}-halved").events)
    tell(kafka.bootstrap, [event(f"{prefix}-halved", 1)])
    words = ("--pattern", f"{prefix}-.*", "--metrics-listen=127.0.0.1:0")
    job = ViewProcess(kafka.bootstrap, folder, *words)
    return World(kafka.bootstrap, stack.enter_context(job), prefix, folder)


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
    second = create_view_topics(world.bootstrap, world.group("second"), KINDS).group
    tell(world.bootstrap, [event(second, 7)])
    world.seen(second, 7)


@pytest.mark.long
def test_a_group_without_its_view_topic_is_left_out_by_name_until_it_has_it(world: World) -> None:
    halved = world.group("halved")
    sentence = f"{halved} is not served: there is no topic {halved}-RETRY-VIEW"
    world.job.until(lambda: sentence in world.job.log(), SOON, "the log says that the topic is missing")
    create_topic(world.bootstrap, f"{halved}-RETRY-VIEW")
    world.seen(halved, 1)


@pytest.mark.long
def test_a_bad_event_is_counted_and_named_and_the_next_one_is_seen(world: World) -> None:
    first = world.group("first")
    [(partition, offset)] = produce(world.bootstrap, Names(first).events, [Out(b'{"v": 1}', b"x")])
    tell(world.bootstrap, [event(first, 3)])
    world.seen(first, 3)
    found = world.job.until(
        lambda: re.search(r"1 records are not events, and ignored; one of them: (.*)", world.job.log()),
        SOON,
        "its line",
    )
    bad = json.loads(found[1])
    assert (bad["topic"], bad["partition"], bad["offset"]) == (Names(first).events, partition, offset)
    assert bad["fault"] == "not an event as Reconsume writes it"
    world.job.until(lambda: world.job.metric("bad_events_total") == 1, SOON, "the bad event is counted once")


def test_the_metrics_say_how_the_query_fares(world: World) -> None:
    spark = re.escape(version("pyspark"))
    assert re.search(rf"Spark {spark}, its Kafka connector 4\.\d\.\d, Java \d+\.\S+; reading", world.job.log())
    assert world.job.livez() == "alive\n"
    world.job.until(lambda: world.job.metric("input_rows_total") >= 3, SOON, "rows are counted")
    assert world.job.metric("batch_duration_seconds_count") >= 1
    assert world.job.metric("last_progress_timestamp_seconds") > 1.7e9
    assert world.job.metric('groups{state="served"}') >= 1


def folders_of_java(folder: Path) -> list[Path]:
    """Return the temporary folders of the Java processes of the job in `folder`."""
    return list(folder.glob("reconsume-view-*/reconsume-java-*"))


@pytest.mark.long
def test_a_query_that_dies_or_a_java_process_that_is_killed_ends_the_job_with_1_and_the_next_start_goes_on(
    world: World,
) -> None:
    first = world.group("first")
    world.job.java().kill()
    assert world.job.process.wait(GONE_SECONDS) == 1
    assert "view: ended: Spark's Java process has ended" in world.job.log()
    assert BROKEN_CALL not in world.job.log(), "one sentence, and not Py4J's stacks"
    world.job.await_gone()
    until(lambda: not list(world.folder.glob("reconsume-view-*")), SOON, "what the killed one kept on disk is gone")
    tell(world.bootstrap, [event(first, 2, State.COMMIT)])
    world.job.start()
    world.seen(first, 2, State.COMMIT)
    for offsets in world.folder.glob("reconsume-view-*/reconsume-view-query-*/offsets"):  # a fault of no group
        shutil.rmtree(offsets)
        offsets.write_text("no folder")
    produce(world.bootstrap, Names(first).events, [Out(b"{}", b"x")])
    assert world.job.process.wait(SOON) == 1
    assert "view: ended: the query has ended: " in world.job.log()
    world.job.start()
    tell(world.bootstrap, [event(first, 5)])
    world.seen(first, 5)


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


@pytest.mark.long
def test_the_end_of_its_parent_ends_all_of_a_job_that_waits_for_its_first_topics(kafka: Broker, tmp_path: Path) -> None:
    group = f"job-{uuid.uuid4().hex[:8]}"
    with ViewProcess(kafka.bootstrap, tmp_path, "--groups", group, "--metrics-listen=127.0.0.1:0") as job:
        job.until(lambda: f"there is no topic {group}-RETRY-EVENTS" in job.log(), START_SECONDS, "it is named")
        job.until(lambda: job.metric('groups{state="left out"}') == 1, SOON, "and counted")
        create_view_topics(kafka.bootstrap, group, KINDS)
        tell(kafka.bootstrap, [event(group, 1)])
        job.until(lambda: view_of(kafka.bootstrap, group), SOON, "the view has a row", SELDOM)
        secrets = list(tmp_path.glob("reconsume-view-*/kafka.properties"))
        assert [file.stat().st_mode & 0o777 for file in secrets] == [0o600]
        job.family()
        tell(kafka.bootstrap, [event(group, number) for number in range(2, 9)])  # Java writes for a while yet
        job.process.kill()
        job.process.wait()
        job.await_gone()
        until(lambda: not list(tmp_path.glob("reconsume-view-*")), SOON, "the folder of secrets is removed")


@pytest.mark.long
def test_sigterm_ends_the_job_in_time_and_with_0_in_a_batch_of_a_broker_that_was_stopped(tmp_path: Path) -> None:
    group = f"job-{uuid.uuid4().hex[:8]}"
    with embedded() as kafka, ViewProcess(kafka.bootstrap, tmp_path, "--groups", group, "--trigger=200ms") as job:
        create_view_topics(kafka.bootstrap, group, KINDS)
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


@contextmanager
def deaf_broker() -> Iterator[str]:
    """An address that takes connections and whatever is sent, and never answers; yields `host:port`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            with suppress(OSError):  # the server is closed
                while True:
                    taken.append(server.accept()[0])

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in taken:
                one.close()


@pytest.mark.long
def test_brokers_that_never_answer_end_the_job_with_1_and_hold_up_no_sigterm(tmp_path: Path) -> None:
    with deaf_broker() as address, ViewProcess(address, tmp_path, "--groups=billing") as job:
        job.until(lambda: "reading the groups billing" in job.log(), START_SECONDS, "Spark has started")
        began = time.monotonic()
        assert job.stop() == 0
        assert time.monotonic() - began < END_SECONDS
        job.start()
        assert job.process.wait(START_SECONDS + SOON) == 1, "Spark starts, and the first question has 45 s"
        assert "view: ended: Kafka has not answered about its topics in" in job.log()
        job.await_gone()
