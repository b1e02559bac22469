"""`retries list --blocked` on a real broker: the queue topics are read, nothing is changed."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import Result

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.names import Names
from reconsume.topics.policy_record import SubscriptionRecord, instance_key, render_record
from tests.support.kafka.broker import Broker
from tests.support.kafka.queue_copies import AT, queue_copy
from tests.support.kafka.topic_io import Out, create_topic, produce
from tests.support.sidecar.cli import reconsume

Call = Callable[..., Result]
HOSTILE = "a\u202e\x1b[31m\n<b>".encode()
BINARY = bytes(range(200, 256))
LONG = b"k" * 5_000


@pytest.fixture
def call(kafka: Broker, group: str, tmp_path: Path) -> Call:
    """`call("list")` for a fresh ordered group."""
    file = tmp_path / "reconsume.yaml"
    tree: dict[str, Any] = {
        "group": group,
        "topics": ["orders", "invoices"],
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/", "order": "key"},
        "retry": {"ordered_ladder": ["10s", "1h"]},
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return lambda *words: reconsume("retries", *words, "-c", file)


@pytest.fixture
def queue(kafka: Broker, group: str) -> str:
    """The queue topic of `orders`, without any record."""
    name = Names(group).ordered("orders")
    create_topic(kafka.bootstrap, name, 2)
    return name


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def done(kafka: Broker, group: str, source: Partition, progress: Progress) -> None:
    """Commit progress as the group's sidecar does."""
    client = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    place = TopicPartition(*source, progress.next, metadata=encode(source, progress))
    client.commit(offsets=[place], asynchronous=False)
    client.close()


def test_each_key_is_a_row_with_its_first_record_and_what_is_behind(
    call: Call, kafka: Broker, group: str, queue: str
) -> None:
    """Given what is done, what was written again and what is no copy, then each record that waits counts once."""
    copies = [
        queue_copy(queue, b"ada", 0, 1),
        queue_copy(queue, b"ada", 5),
        queue_copy(queue, b"ada", 3),
        queue_copy(queue, b"ada", 0, 2),
        queue_copy(queue, b"bob", 1, 1),
        queue_copy(queue, HOSTILE, 7, 1),
        Out(b"no copy of ours", b"ada", (), 0),
        queue_copy(queue, None, 9, 1),
        queue_copy(queue, LONG, 11, 1),
        queue_copy(queue, b"ada", 2, 1, number=1),
    ]
    produce(kafka.bootstrap, queue, copies)
    done(kafka, group, Partition(queue, 0), Progress(0, frozenset({0, 4})))
    result = call("list", "--blocked")
    shown = {row["id"]: row for row in rows(result)}
    assert f"warning: {group}-ORDERED-invoices is missing, or not for this user to see" in result.stderr
    assert "5 keys blocked, 7 records of them waiting" in result.stderr
    assert "in the queue topics 1 record is no copy of ours" in result.stderr
    assert {ident: (row["behind"], row["times"]) for ident, row in shown.items()} == {
        "orders:0:0": (2, 2),
        "orders:0:7": (0, 1),
        "orders:0:9": (0, 1),
        "orders:0:11": (0, 1),
        "orders:1:2": (0, 1),
    }
    first = shown["orders:0:0"]
    assert (first["key"], first["key_base64"], first["reason"]) == ("ada", "YWRh", "http-500")
    assert first["parked"] is False
    assert (first["due"], first["oldest_at"], first["topic"], first["partition"]) == (AT + 100_000, AT, "orders", 0)
    assert base64.b64decode(shown["orders:0:7"]["key_base64"]) == HOSTILE
    assert (shown["orders:0:9"]["key"], shown["orders:0:9"]["key_base64"]) == (None, None)
    assert (len(shown["orders:0:11"]["key"]), shown["orders:0:11"]["key_base64"]) == (257, None)
    assert len(rows(call("list", "--blocked", "--limit", "2"))) == 2
    table = call("list", "--blocked", "-o", "table").stdout
    assert "orders:0:0" in table
    assert not {"\u202e", "\x1b"} & set(table)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("list", "--blocked", "--reason", "http-500"), "--blocked goes with --topic, --limit and --most alone"),
        (("list", "--blocked", "--state", "DLQ"), "--blocked goes with --topic, --limit and --most alone"),
        (("list", "--blocked", "--topic", "parcels"), "'parcels' is none of the group's topics"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, words: tuple[str, ...], text: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert text in result.stderr


def test_what_is_retried_in_place_is_counted_for_it_is_in_no_queue(
    call: Call, kafka: Broker, group: str, queue: str
) -> None:
    policy = Names(group).policy
    create_topic(kafka.bootstrap, policy, 2)
    stuck = SubscriptionRecord({"orders": "*"}, wall(), retried_in_place=1)
    produce(kafka.bootstrap, policy, [Out(render_record(stuck), instance_key("pod-0"), partition=0)])
    result = call("list", "--blocked")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "1 record is retried in place; `reconsume find --topic TOPIC" in result.stderr


def test_the_records_that_are_retried_in_place_are_listed_first_with_how_they_fail(
    call: Call, kafka: Broker, group: str, queue: str
) -> None:
    policy, now = Names(group).policy, wall()
    create_topic(kafka.bootstrap, policy, 2)
    head = InPlaceTold("orders:0:5", 12, now, now - 90_000, "http-500")
    stuck = SubscriptionRecord({"orders": "*"}, now - 40_000, retried_in_place=3, in_place=(head,))
    produce(kafka.bootstrap, policy, [Out(render_record(stuck), instance_key("pod-0"), partition=0)])
    produce(kafka.bootstrap, queue, [queue_copy(queue, b"bob", 2, 1)])
    result = call("list", "--blocked")
    first, second = rows(result)
    assert (first["id"], first["key"], first["times"], first["due"]) == ("orders:0:5", None, 12, now)
    assert (first["reason"], first["behind"], first["in_place"], second["in_place"]) == ("http-500", None, True, False)
    assert "3 records are retried in place (as of 4" in result.stderr
    assert "those that fail longest are listed first" in result.stderr


@pytest.mark.parametrize(
    ("due", "in_place", "times"), [(AT, True, 12), (AT + 1_000_000, False, 2)], ids=["ladder-ended", "ladder-begun"]
)
def test_a_record_in_a_queue_that_was_retried_in_place_is_one_row_as_the_newer_of_both_says(
    call: Call, kafka: Broker, group: str, queue: str, due: int, in_place: bool, times: int
) -> None:
    policy, now = Names(group).policy, wall()
    create_topic(kafka.bootstrap, policy, 2)
    head = InPlaceTold("orders:0:5", 12, now, now - 90_000, "http-500")
    stuck = SubscriptionRecord({"orders": "*"}, now, retried_in_place=1, in_place=(head,))
    produce(kafka.bootstrap, policy, [Out(render_record(stuck), instance_key("pod-0"), partition=0)])
    produce(kafka.bootstrap, queue, [queue_copy(queue, b"ada", 5, 2, due=due), queue_copy(queue, b"ada", 6)])

    [row] = rows(call("list", "--blocked"))

    assert (row["id"], row["behind"], row["in_place"], row["times"]) == ("orders:0:5", 1, in_place, times)
    assert row["due"] == (now if in_place else due + 5)


def test_a_group_without_queues_says_so(call: Call, group: str) -> None:
    result = call("list", "--blocked")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{group}-ORDERED-orders is missing, or not for this user to see" in result.stderr


def test_what_is_read_is_bounded(call: Call, kafka: Broker, queue: str) -> None:
    produce(kafka.bootstrap, queue, [queue_copy(queue, b"%d" % origin, origin, 1) for origin in range(20)])
    result = call("list", "--blocked", "--most", "5")
    assert len(rows(result)) == 5
    assert "only 5 of some 20 records of the queues were read" in result.stderr
