"""How the job asks the brokers: deadlines, what it says meanwhile, the request to stop, and how answers are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from reconsume.sidecar.java.kafka_properties import properties_text
from reconsume.spark.errors import JobError
from reconsume.spark.java import kafka_options
from reconsume.spark.job.kafka import (
    ANSWER_SECONDS,
    LOOK_MS,
    SAY_SECONDS,
    START_SECONDS,
    STOPPING_SECONDS,
    Brokers,
    Described,
    Position,
    UnansweredError,
    described,
    listed,
    offsets_in,
    positions_in,
)
from reconsume.spark.job.metrics import LIVE_SECONDS


class NotYetError(Py4JJavaError):
    """What Py4J raises where a future has no answer yet."""

    def __init__(self) -> None:
        thrown = SimpleNamespace(_target_id="o1", _gateway_client=SimpleNamespace(address="", port=0))
        super().__init__("An error occurred while calling o1.get", thrown)


class Waits:
    """A clock that waits make go on, and what was said. The list of topics is there `after` so many seconds of it."""

    def __init__(self, stops_after: float = float("inf")) -> None:
        self.at, self.said, self._there_at = 0.0, list[str](), 0.0
        java = MagicMock()
        java.org.apache.kafka.clients.admin.Admin.create().listTopics().listings.return_value = self
        session = cast("SparkSession", SimpleNamespace(_jvm=java))
        self.brokers = Brokers(
            session,
            {"kafka.bootstrap.servers": "nosuch.invalid:9092"},
            stopping=lambda: self.at >= stops_after,
            say=self.said.append,
            now=lambda: self.at,
        )

    def ask(self, after: float) -> None:
        """Ask, and wait for the answer."""
        self._there_at = self.at + after
        assert self.brokers.topics() == {}

    def isDone(self) -> bool:  # noqa: N802 - Java's name
        return self.at >= self._there_at

    def get(self, ms: int = 0, *_: Any) -> str:
        assert ms <= LOOK_MS, "a stop is noticed soon"
        if self.isDone():
            return cast("str", SimpleNamespace(toString=lambda: "[]"))
        self.at = min(self.at + ms / 1000, self._there_at)
        raise NotYetError


def test_an_answer_is_waited_for_in_silence_until_its_deadline() -> None:
    waits = Waits()
    waits.ask(after=ANSWER_SECONDS - 0.1)
    assert waits.said == []
    with pytest.raises(UnansweredError, match="Kafka has not answered about its topics in 5 s"):
        waits.ask(after=ANSWER_SECONDS + 1)


def test_all_answers_of_a_start_share_its_deadline_and_the_log_says_what_is_waited_for() -> None:
    waits = Waits()
    with waits.brokers.within():
        waits.ask(after=START_SECONDS - 11)
        assert len(waits.said) == (START_SECONDS - 11) // SAY_SECONDS
        assert waits.said[0] == "Kafka has not answered about its topics for 5 s"
        with pytest.raises(UnansweredError, match="in 11 s"):
            waits.ask(after=12)
    assert waits.at == pytest.approx(START_SECONDS, abs=1)
    with pytest.raises(UnansweredError, match="in 5 s"):
        waits.ask(after=START_SECONDS)


def test_a_job_that_must_stop_waits_no_longer() -> None:
    waits = Waits(stops_after=3.0)
    with waits.brokers.within(), pytest.raises(UnansweredError, match="the job stops"):
        waits.ask(after=START_SECONDS)
    assert waits.at <= 3.0 + LOOK_MS / 1000
    waits.ask(after=STOPPING_SECONDS / 2)  # the last position
    with pytest.raises(UnansweredError, match="the job stops"):
        waits.ask(after=START_SECONDS)
    assert waits.at <= 3.0 + 2 * STOPPING_SECONDS


def test_a_start_that_waits_is_not_taken_for_a_query_that_stands_still() -> None:
    assert START_SECONDS < LIVE_SECONDS


def test_topics_offsets_and_partitions_are_read_from_the_clients_text() -> None:
    text = "[(name=a-RETRY-EVENTS, topicId=x_-1, internal=false), (name=__t, topicId=Y, internal=true)]"
    assert listed(text) == {"a-RETRY-EVENTS": "x_-1", "__t": "Y"}
    said = "ListOffsetsResultInfo(offset={}, timestamp=-1, leaderEpoch=Optional[0])"
    text = f"{{a-1-RETRY-EVENTS-0={said.format(7)}, a_b.c-12={said.format(0)}}}"
    assert offsets_in(text) == {("a-1-RETRY-EVENTS", "0"): 7, ("a_b.c", "12"): 0}
    part = "(partition={}, leader={}, replicas=h:1 (id: 1 rack: null), isr=, elr=, lastKnownElr=)"
    topic = "(name={}, internal=false, partitions={}, authorizedOperations={})"
    led, lost = part.format(0, "h:1 (id: 1 rack: null)"), part.format(1, "none")
    text = f"{{a={topic.format('a', led, '[READ, WRITE]')}, b.c={topic.format('b.c', f'{led},{lost}', 'null')}}}"
    rights = frozenset({"READ", "WRITE"})
    assert described(text) == {"a": Described({"0": True}, rights), "b.c": Described({"0": True, "1": False}, None)}
    assert listed("[]") == offsets_in("{}") == described("{}") == {}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (listed, "[(name=a, id=1)]"),
        (offsets_in, "{a-0=ListOffsetsResultInfo(at=1)}"),
        (described, "{a=(name=a, internal=false, parts=1)}"),
        (described, "{a=(name=a, internal=false, partitions=, authorizedOperations=null)}"),
    ],
)
def test_an_answer_in_an_unknown_form_is_an_error(read: Any, text: str) -> None:
    with pytest.raises(UnansweredError, match="unknown form"):
        read(text)


COMMITTED = "{}=OffsetAndMetadata{{offset={}, leaderEpoch={}, metadata='{}'}}"
GOOD = COMMITTED.format("a-1-RETRY-EVENTS-0", 7, "null", "1 x_-Y z")


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "x",
        "1 a",
        "2 a b",
        "1 a b c",
        "1 é b",
        "'}",
        "', metadata='1 a",
        "\x00\n\r\ufffd",
        "{=OffsetAndMetadata{" * 9,
    ],
)
def test_a_position_in_another_form_than_this_jobs_counts_as_none_and_hides_no_other(metadata: str) -> None:
    other = COMMITTED.format("a-1-RETRY-EVENTS-1", 9, 3, metadata)
    found = {("a-1-RETRY-EVENTS", "0"): Position(7, "1 x_-Y z")}
    assert positions_in(f"{{{GOOD}, {other}}}") == positions_in(f"{{{other}, {GOOD}}}") == found
    assert positions_in("{a-0=null}") == positions_in("{}") == {}


@pytest.mark.timeout(20)
def test_metadata_of_a_megabyte_is_read_in_no_time() -> None:
    for metadata in ("a" * 2**20, ", a" * 2**18, "-0" * 2**19, "{a-0=OffsetAndMetadata{offset=" * 2**15):
        assert positions_in(f"{{{COMMITTED.format('b-0', 1, 'null', metadata)}, {GOOD}}}")


def test_java_reads_the_properties_that_the_sidecar_has_written(spark: SparkSession) -> None:
    properties = {
        "sasl.jaas.config": 'x required password="a\\\\b\\" = : # ! é";',
        "ssl.keystore.key": "-----BEGIN-----\nMII+/=\n\t-----END-----\n",
        "spaces": "  two before and after  ",
        "ssl.endpoint.identification.algorithm": "",
        "bootstrap.servers": "b:1",
    }
    expected = {f"kafka.{name}": value for name, value in properties.items()}
    assert kafka_options(spark, properties_text(properties), None) == expected
    assert kafka_options(spark, properties_text(properties), "c:2")["kafka.bootstrap.servers"] == "c:2"


def test_a_job_without_brokers_ends_with_a_sentence(spark: SparkSession) -> None:
    with pytest.raises(JobError, match=r"bootstrap\.servers is needed, by --bootstrap or in the file"):
        kafka_options(spark, "client.id=x\n", None)
