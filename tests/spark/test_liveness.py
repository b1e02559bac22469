"""`/livez` of the job, on a clock that does not wait, and over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from reconsume.spark.job.answers import START_SECONDS, UnansweredError
from reconsume.spark.job.liveness import LIVE_SECONDS, Liveness
from reconsume.spark.job.meters import Meters
from reconsume.spark.job.run import serve
from reconsume.spark.job.supervisor import LONGEST_WAIT, Running
from tests.spark.test_options import World


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Hand:
    return Hand()


def begun(*queries: str, now: Callable[[], float]) -> Liveness:
    """That of a job whose Spark runs."""
    liveness = Liveness(queries, now)
    liveness.begin()
    return liveness


def test_the_job_is_not_alive_before_spark_has_started_and_its_minute_begins_then(clock: Hand) -> None:
    liveness = Liveness(("view",), clock)
    assert liveness.fault() == "Spark has not started"
    clock.at = 2 * LIVE_SECONDS
    liveness.begin()
    assert liveness.fault() == ""


def test_a_query_without_a_sign_of_life_for_a_minute_is_named(clock: Hand) -> None:
    liveness = begun("view", "stats", now=clock)
    clock.at = LIVE_SECONDS
    assert liveness.fault() == ""
    liveness.alive("stats")
    clock.at += 1
    assert liveness.fault() == "the view query has got no further for 61 s"
    liveness.alive("view")
    assert liveness.fault() == ""


def test_a_query_that_was_given_up_does_not_end_the_others(clock: Hand) -> None:
    liveness = begun("view", "stats", now=clock)
    liveness.given_up("stats")
    liveness.alive("stats")  # a late event of Spark's
    clock.at = 2 * LIVE_SECONDS
    liveness.alive("view")
    assert liveness.fault() == ""


@pytest.mark.parametrize("failures", [1, 12])
def test_a_query_that_waits_for_its_next_start_is_alive_however_long_that_is(failures: int) -> None:
    world = World({"view": [1.0] * failures + [None]}, until=failures * (LONGEST_WAIT + 2))
    liveness = begun("view", now=world.now)
    faults = set[str]()

    def waiting(name: str) -> None:
        liveness.alive(name)
        faults.add(liveness.fault())

    world.run(most=100, waiting=waiting)
    assert len(world.begun) == failures + 1
    assert faults == {""}


class Silent(World):
    """Kafka answers nothing: each start waits its time, and fails."""

    def __init__(self) -> None:
        super().__init__({"view": [], "stats": []}, until=1_000)
        self.liveness = begun("view", "stats", now=self.now)
        self.faults = set[str]()

    def start(self, name: str) -> Running:
        self.begun.append((name, self.at))
        for _ in range(int(START_SECONDS)):
            self.at += 1
            self.faults.add(self.liveness.fault())
        raise UnansweredError("Kafka has not told its topics")


def test_queries_whose_starts_wait_for_a_silent_kafka_one_after_the_other_are_alive() -> None:
    world = Silent()
    world.run(most=100, waiting=world.liveness.alive)
    assert {name for name, _ in world.begun} == {"view", "stats"}
    assert world.faults == {""}


def test_it_is_served_beside_the_metrics(clock: Hand, capsys: pytest.CaptureFixture[str]) -> None:
    end = serve(Meters(("view",), begun("view", now=clock)), "127.0.0.1", 0)
    address = capsys.readouterr().err.split("metrics at ")[1].split("/metrics")[0]
    try:
        assert answer(f"{address}/livez") == (200, "alive\n")
        clock.at = 2 * LIVE_SECONDS
        assert answer(f"{address}/livez") == (503, "the view query has got no further for 120 s\n")
        status, text = answer(f"{address}/metrics")
        assert (status, "reconsume_spark_given_up" in text) == (200, True)
    finally:
        end()


def answer(url: str) -> tuple[int, str]:
    """The status and the body of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
