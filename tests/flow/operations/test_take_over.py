"""Dead letters of Spring, Kafka Connect and RocketMQ, taken over from their topics and redriven with their ids.

The foreign topics have the bytes that those systems write. One group and one sidecar for all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.dead_letter_headers import DLQ_OFFSET
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, Row, create_topic, dump, produce
from tests.support.service.behaviours import OK
from tests.support.service.service import Service
from tests.support.sidecar.redrive import SECONDS, dlq

RECORDS = 6
DIED_AT = 1_763_690_000_000
"""Epoch ms."""


class Stage(NamedTuple):
    """A group whose main topic has RECORDS records in partition 0, all taken once."""

    group: GroupTopics
    service: Service
    folder: Path

    def foreign_topic(self, name: str, *letters: Out) -> str:
        """A topic of another system with these records."""
        topic = f"{self.group.main}-{name}"
        create_topic(self.group.bootstrap, topic, 1)
        produce(self.group.bootstrap, topic, letters)
        return topic

    def dead(self, value: bytes) -> list[Row]:
        """The letters in the DLQ with this value."""
        return [row for row in dump(self.group.bootstrap, self.group.dlq) if row.value == value]

    def deliveries(self, ident: str, redrives: int) -> list[bytes | None]:
        """The values that the service got for a record after so many redrives."""
        return [one.value for one in self.service.ledger.deliveries() if (one.id, one.redrives) == (ident, redrives)]


@pytest.fixture(scope="module")
def stage(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, folder: Path) -> Stage:
    group = create_group(new_group(2), partitions=1)
    service = start_service(lambda _: OK)
    produce(group.bootstrap, group.main, [Out(b"order-%d" % number, b"k", (), 0) for number in range(RECORDS)])
    start_sidecar(group, service.url)
    until(lambda: len(service.ledger.deliveries()) >= RECORDS, SECONDS, "all records were taken")
    return Stage(group, service, folder)


def spring(topic: str, offset: int, cause: bytes = b"com.example.OutOfStockException", value: bytes = b"") -> Out:
    """As DeadLetterPublishingRecoverer writes it."""
    headers = (
        ("sku", b"A-99"),
        ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
        ("kafka_dlt-exception-cause-fqcn", cause),
        ("kafka_dlt-exception-message", b"Listener failed; no stock"),
        ("kafka_dlt-original-topic", topic.encode()),
        ("kafka_dlt-original-partition", (0).to_bytes(4)),
        ("kafka_dlt-original-offset", offset.to_bytes(8)),
        ("kafka_dlt-original-timestamp", DIED_AT.to_bytes(8)),
    )
    return Out(value or b"spring-%d" % offset, b"k", headers, 0, DIED_AT + 60_000)


def connect(topic: str, offset: int) -> Out:
    """As DeadLetterQueueReporter writes it."""
    headers = (
        ("__connect.errors.topic", topic.encode()),
        ("__connect.errors.partition", b"0"),
        ("__connect.errors.offset", b"%d" % offset),
        ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
        ("__connect.errors.exception.message", b"Converting byte[] failed"),
    )
    return Out(b"connect-%d" % offset, None, headers, 0, DIED_AT)


def rows_of(rows: list[dict[str, object]]) -> set[tuple[object, ...]]:
    return {(row["action"], row["reason"], row["letters"]) for row in rows}


def test_dead_letters_of_spring_are_listed_imported_once_and_redriven_with_their_ids(stage: Stage) -> None:
    group, folder = stage.group, stage.folder
    main, other = group.main, f"{group.main}-of-others"
    refused = b"com.example.RefusedOrder"
    topic = stage.foreign_topic(
        "dlt",
        spring(main, 1),
        spring(main, 2, refused),
        spring(main, RECORDS),
        spring(other, 1),
        spring(main, 1, value=b"again"),
        Out(b"no letter"),
    )
    take_over = ("import", "--from", "spring", "--topic", topic)
    code, rows, told = dlq(group, folder, *take_over, "--dry-run")
    assert (code, rows_of(rows)) == (
        0,
        {("import", "out-of-stock-exception", 1), ("import", "refused-order", 1), ("left", "", 1)},
    ), told
    left = {str(row["why"]): row["ids"] for row in rows if row["action"] == "left"}
    assert left == {
        f"topic {main} has no record with its partition and offset": [f"{topic}:0:2"],
        f"its record is of topic {other}, which is not in this configuration": [f"{topic}:0:3"],
        "the topic has an earlier dead letter of the same record": [f"{topic}:0:4"],
        "it has no headers of spring with a topic, a partition and an offset": [f"{topic}:0:5"],
    }
    assert dump(group.bootstrap, group.dlq) == []

    code, rows, told = dlq(group, folder, *take_over, "--reason", "refused-order", "--yes")
    assert (code, rows_of(rows)) == (0, {("imported", "refused-order", 1)}), told
    code, rows, told = dlq(group, folder, *take_over, "--yes")
    assert code == 0, told
    assert {("imported", "out-of-stock-exception", 1), ("there already", "refused-order", 1)} <= rows_of(rows)
    assert "left 4 records that no record" in told
    code, rows, told = dlq(group, folder, *take_over, "--yes")
    assert ("there already", "out-of-stock-exception", 1) in rows_of(rows), told

    (letter,) = stage.dead(b"spring-1")
    headers = dict(letter.headers)
    assert (letter.key, headers["sku"], headers[wire.ORIGIN_MESSAGE_ID]) == (b"k", b"A-99", f"{main}:0:1".encode())
    assert (headers[wire.RETRY_REAL_TIMESTAMP], headers[DLQ_OFFSET]) == (b"%d" % DIED_AT, b"1")
    code, rows, told = dlq(group, folder, "list", "--reason", "out-of-stock-exception")
    assert [(row["id"], row["state"], row["text"]) for row in rows] == [
        (f"{main}:0:1", "ready", "Listener failed; no stock")
    ], told
    events = [json.loads(row.value or b"{}") for row in dump(group.bootstrap, group.names.events)]
    assert [event["state"] for event in events if event["id"] == f"{main}:0:1"] == ["DLQ"]

    code, rows, told = dlq(group, folder, "redrive", "--id", f"{main}:0:1", "--yes")
    assert (code, rows_of(rows)) == (0, {("redriven", "out-of-stock-exception", 1)}), told
    until(lambda: stage.deliveries(f"{main}:0:1", 1) == [b"spring-1"], SECONDS, "the service gets it with its id")
    code, rows, told = dlq(group, folder, *take_over, "--yes")
    assert ("there already", "out-of-stock-exception", 1) in rows_of(rows), "one that was redriven is not taken twice"


def test_dead_letters_of_connect_are_taken_over_since_a_time(stage: Stage) -> None:
    group, main = stage.group, stage.group.main
    topic = stage.foreign_topic("conn-dlq", connect(main, 3)._replace(timestamp=DIED_AT - 1), connect(main, 4))
    take_over = ("import", "--from", "connect", "--topic", topic, "--since", "2025-11-21T01:53:20Z")
    code, rows, told = dlq(group, stage.folder, *take_over, "--yes")
    assert (code, rows_of(rows)) == (0, {("imported", "data-exception", 1)}), told
    code, rows, told = dlq(group, stage.folder, "redrive", "--reason", "data-exception", "--yes")
    assert code == 0, told
    until(lambda: stage.deliveries(f"{main}:0:4", 1) == [b"connect-4"], SECONDS, "the service gets it with its id")
    assert stage.deliveries(f"{main}:0:3", 1) == []


def test_a_dead_letter_of_rocketmq_has_its_position_in_the_bridged_topic_as_id(stage: Stage) -> None:
    group, (_, bridged) = stage.group, stage.group.mains
    produce(group.bootstrap, bridged, [Out(b"mq", b"k", (("RECONSUME_TIME", b"16"),), 0), Out(b"plain", b"k", (), 0)])
    elsewhere = stage.foreign_topic("mq", Out(b"mq", b"k", (("RECONSUME_TIME", b"16"),), 0))
    code, rows, told = dlq(group, stage.folder, "import", "--from", "rocketmq", "--topic", elsewhere, "--dry-run")
    assert (code, rows_of(rows)) == (0, {("left", "", 1)}), told
    code, rows, told = dlq(group, stage.folder, "import", "--from", "rocketmq", "--topic", bridged, "--yes")
    assert rows_of(rows) == {("imported", "imported-from-rocketmq", 1), ("left", "", 1)}, told
    code, _, told = dlq(group, stage.folder, "redrive", "--id", f"{bridged}:0:0", "--yes")
    assert code == 0, told
    until(lambda: stage.deliveries(f"{bridged}:0:0", 1) == [b"mq"], SECONDS, "the service gets it with its id")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "name a file, or a system with --from"),
        (("--from", "spring"), 2, "--from needs --topic"),
        (("dead.jsonl", "--from", "spring", "--topic", "orders-dlt"), 2, "and not both"),
        (("dead.jsonl", "--reason", "http-500"), 2, "need --from"),
        (("--from", "kafka", "--topic", "orders-dlt"), 2, "'kafka' is not one of"),
        (("--from", "spring", "--topic", "no-such-topic", "--dry-run"), 1, "no-such-topic does not exist"),
    ],
)
def test_wrong_usage_of_a_take_over(stage: Stage, words: tuple[str, ...], code: int, said: str) -> None:
    ended, rows, told = dlq(stage.group, stage.folder, "import", *words)
    assert (ended, rows, said in told) == (code, [], True), told
