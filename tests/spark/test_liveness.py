"""`/livez` of the job and its metrics, on a clock that does not wait, and over HTTP."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request

import pytest

from reconsume.spark.errors import JobError
from reconsume.spark.job.metrics import LIVE_SECONDS, JobMetrics


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Hand:
    return Hand()


def test_the_job_is_not_alive_before_spark_has_started_and_its_minute_begins_then(clock: Hand) -> None:
    metrics = JobMetrics(clock)
    assert metrics.fault() == "Spark has not started"
    clock.at = 2 * LIVE_SECONDS
    metrics.alive()
    assert metrics.fault() == ""


def test_a_query_without_a_sign_of_life_for_a_minute_is_reported(clock: Hand) -> None:
    metrics = JobMetrics(clock)
    metrics.alive()
    clock.at = LIVE_SECONDS
    assert metrics.fault() == ""
    clock.at += 1
    assert metrics.fault() == "the query has got no further for 61 s"
    metrics.well()
    assert metrics.fault() == ""


def test_it_is_served_next_to_the_metrics(clock: Hand) -> None:
    metrics = JobMetrics(clock)
    metrics.alive()
    metrics.groups(("billing", "ship"), 1)
    port, end = metrics.serve("127.0.0.1", 0)
    try:
        assert answer(f"http://127.0.0.1:{port}/livez") == (200, "alive\n")
        clock.at = 2 * LIVE_SECONDS
        assert answer(f"http://127.0.0.1:{port}/livez") == (503, "the query has got no further for 120 s\n")
        status, text = answer(f"http://127.0.0.1:{port}/metrics")
        assert (status, 'reconsume_spark_groups{state="left out"} 1.0' in text) == (200, True)
    finally:
        end()


def test_an_address_that_is_taken_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = f"cannot listen on 127.0.0.1:{port} (--metrics-listen): Address already in use"
        with pytest.raises(JobError, match=f"^{re.escape(told)}$"):
            JobMetrics().serve("127.0.0.1", port)


def answer(url: str) -> tuple[int, str]:
    """The status and the body of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
