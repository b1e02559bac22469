"""`dev produce` on a real broker: one record, as it was typed, and its id."""

from __future__ import annotations

import json

import pytest

from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import create_topic, dump
from tests.support.sidecar.cli import reconsume

TOPIC = "dev-produce"


@pytest.fixture(scope="module")
def topic(kafka: Broker) -> str:
    create_topic(kafka.bootstrap, TOPIC)
    return TOPIC


def test_a_record_is_written_as_it_was_typed_and_its_id_is_told(kafka: Broker, topic: str) -> None:
    value = '{"sku": "A-17", "é": 1}'
    words = ("--key", "ann", "--header", "a=1", "--header", "a=x=y", topic, value)
    done = reconsume("dev", "produce", "--brokers", kafka.bootstrap, *words)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    row = next(row for row in dump(kafka.bootstrap, topic) if row.offset == told["offset"])
    assert (row.key, row.value, row.headers) == (b"ann", value.encode(), (("a", b"1"), ("a", b"x=y")))
    assert told["id"] == f"{topic}:0:{row.offset}"
    assert f"written; what becomes of it: reconsume retries show {told['id']}\n" in done.stderr


def test_a_value_comes_from_stdin_and_a_key_is_not_needed(kafka: Broker, topic: str) -> None:
    done = reconsume("dev", "produce", "--brokers", kafka.bootstrap, topic, "-", stdin="from a file\n")
    assert done.exit_code == 0, done.stderr
    row = dump(kafka.bootstrap, topic)[-1]
    assert (row.key, row.value) == (None, b"from a file\n")


def test_what_cannot_be_written_is_one_sentence(kafka: Broker) -> None:
    missing = reconsume("dev", "produce", "--brokers", kafka.bootstrap, "no-such-topic", "x")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert missing.stderr == "reconsume: topics: there is no topic no-such-topic\n"
    misspelt = reconsume("dev", "produce", "--brokers", kafka.bootstrap, f"{TOPIC}s", "x")
    assert f"there is no topic {TOPIC}s; did you mean {TOPIC}?" in misspelt.stderr
    assert reconsume("dev", "produce", "--brokers", kafka.bootstrap, TOPIC, "x", "--header", "a").exit_code == 2
    assert reconsume("dev", "produce", TOPIC, "x", "-c", "/nowhere.yaml").exit_code == 78
