"""`dev expect` on a real broker: a record's end as the group's events and progress have it, compared with a test's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import Result

from reconsume.topics.events import State
from reconsume.topics.names import Kind
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.kafka.view_topics import event, tell
from tests.support.sidecar.cli import for_group

DONE, DEAD, RETRIED, PARKED, NEVER_FAILED, OPEN, ABSENT = range(7)


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """A group in which each record has ended in another way, and one has not."""
    group = create_group(fresh_group(kafka.bootstrap), also=(Kind.POLICY,))
    produce(group.bootstrap, group.main, [Out(b"x", b"k", (), 0) for _ in range(ABSENT)])

    def told(number: int, *steps: tuple[State, int], **more: Any) -> None:
        last = steps[-1]
        for state, times in steps:
            changes = more if (state, times) == last else {}
            one = event(
                *(group.group, number, state, times),
                **{
                    "id": f"{group.main}:0:{number}",
                    "topic": group.main,
                    "at": 1_000 * (number + times + 1),
                    **changes,
                },
            )
            tell(group.bootstrap, [one])

    told(DONE, (State.WAITING_RETRY, 1), (State.COMMIT, 1))
    told(DEAD, (State.WAITING_RETRY, 1), (State.WAITING_RETRY, 2), (State.DLQ, 2))
    told(RETRIED, (State.WAITING_RETRY, 1))
    told(PARKED, (State.WAITING_RETRY, 1), (State.WAITING_RETRY, 2), parked=True, due=0, level=None)
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group})
    try:
        consumer.commit(offsets=[TopicPartition(group.main, 0, OPEN)], asynchronous=False)
    finally:
        consumer.close()
    return group


def expected(group: GroupTopics, folder: Path, number: int, *words: str) -> Result:
    return for_group(folder, group, "dev", "expect", f"{group.main}:0:{number}", *words, "--within", "1s")


@pytest.mark.parametrize(
    ("number", "words", "code", "says"),
    [
        (DONE, ("--done",), 0, "is done, as expected"),
        (DONE, ("--done", "--retries", "1"), 0, "is done after 1 retry, as expected"),
        (DONE, ("--done", "--retries", "0"), 1, "is done after 1 retry; expected: done after 0 retries"),
        (DONE, ("--dead",), 1, "is done after 1 retry; expected: dead"),
        (DEAD, ("--dead", "--retries", "2"), 0, "is dead after 2 retries, as expected"),
        (DEAD, ("--dead", "--retries", "3"), 1, "is dead after 2 retries; expected: dead after 3 retries"),
        (DEAD, ("--done",), 1, "is dead after 2 retries; expected: done"),
        (PARKED, ("--parked", "--retries", "2"), 0, "is parked after 2 retries, as expected"),
        (RETRIED, ("--dead",), 1, "has not ended within 1s; expected: dead"),
        (NEVER_FAILED, ("--done", "--retries", "0"), 0, "is done after 0 retries, as expected"),
        (NEVER_FAILED, ("--dead",), 1, "is done after 0 retries; expected: dead"),
        (OPEN, ("--done",), 1, "has not ended within 1s; expected: done"),
        (ABSENT, ("--dead",), 1, "there is no record"),
    ],
)
def test_a_record_ends_as_expected_or_the_exit_code_is_1(
    group: GroupTopics, tmp_path: Path, number: int, words: tuple[str, ...], code: int, says: str
) -> None:
    done = expected(group, tmp_path, number, *words)
    assert (done.exit_code, says in done.stderr) == (code, True), done.stderr


def test_the_journey_is_printed(group: GroupTopics, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in expected(group, tmp_path, DEAD, "--dead").stdout.splitlines()]
    assert [(row["state"], row["times"]) for row in rows] == [("WAITING_RETRY", 1), ("WAITING_RETRY", 2), ("DLQ", 2)]


@pytest.mark.parametrize(
    "words", [(), ("--done", "--dead"), ("--done", "--within", "soon"), ("--done", "--retries", "-1")]
)
def test_a_wrong_call_is_wrong_usage(group: GroupTopics, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert for_group(tmp_path, group, "dev", "expect", f"{group.main}:0:0", *words).exit_code == 2


def test_what_cannot_be_told_is_refused(group: GroupTopics, tmp_path: Path) -> None:
    url = "http://127.0.0.1:1/"
    broadcast = for_group(
        tmp_path, group, "dev", "expect", "orders:0:0", "--done", deliver={"url": url, "broadcast": True}
    )
    assert (broadcast.exit_code, "keeps nothing" in broadcast.stderr) == (78, True), broadcast.stderr
    in_place = {"deliver": {"url": url, "order": "key"}, "retry": {}}
    words = ("dev", "expect", f"{group.main}:0:{DONE}", "--done")
    assert for_group(tmp_path, group, *words, **in_place).exit_code == 0
    assert for_group(tmp_path, group, *words, "--retries", "1", **in_place).exit_code == 2
    elsewhere = for_group(tmp_path, group, "dev", "expect", "elsewhere:0:0", "--done")
    assert (elsewhere.exit_code, "is none of the group's topics" in elsewhere.stderr) == (1, True)
