"""Handlers of every kind on a broker: a mistake is a failure with a text, and harms no other record."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reconsume.spark.consumer import (
    Counts,
    Record,
    build_rules,
    dead_letter,
    for_each_record,
    read_gated,
    read_relay,
    retry,
)
from reconsume.topics.names import Kind
from tests.spark import mistakes
from tests.spark.mistakes import MISTAKES
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, dump, produce

if TYPE_CHECKING:  # each worker collects all tests, and few use it
    import pandas as pd

pytestmark = pytest.mark.long

SECONDS = 120.0
LATE_WORKER = "to connect back"
"""What Spark says when a Python process of its own has not started within 10 s, which no setting changes."""
OTHERS: dict[str, tuple[Callable[[Record], object], str]] = {
    "taken": (lambda _: None, ""),
    "taken with a value": (lambda _: ["x"], ""),
    "taken at last": (lambda record: None if record.times else retry(delay=1, reason="busy"), ""),
    "refused": (lambda _: dead_letter("bad-sku"), "bad-sku"),
    "refused with a text": (lambda _: dead_letter("bad-sku: A-99"), "bad-sku: A-99"),
    "asks twice": (lambda _: retry(delay="1s", reason="busy"), "busy"),
    "asks for too much": (lambda _: retry(delay="20d"), "retry-asked"),
    "raises": (lambda _: int("three"), "ValueError: invalid literal for int() with base 10: 'three'"),
    "exits": (lambda _: sys.exit(3), "SystemExit: 3"),
}
"""Handlers without a mistake, and the reason with which their record ends in the DLQ; empty: it is done."""
KINDS = {**{name: (handler, f"verdict-error: …{text}") for name, (handler, text) in MISTAKES.items()}, **OTHERS}
ENDS_ITS_PROCESS = "ends its process"


def handle(record: Record) -> object:
    """Do what the record's value names."""
    name = (record.value or b"").decode()
    if name == ENDS_ITS_PROCESS:
        os._exit(1)
    return KINDS[name][0](record)


def handle_all(table: pd.DataFrame) -> list[object]:
    """Do for each row what its value names; a mistake that would be that of all rows is raised for its row alone."""
    return [handle(Record(*row)) for row in table.itertuples(index=False)]


class Job:
    """A query for a new group, which has a record of each kind."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, folder: Path, read: Any, values: list[str], **handlers: Any
    ) -> None:
        self._read = read
        self._spark, self._handlers = spark, {"handler": None, **handlers}
        self.counts: list[Counts] = []
        self.group = create_group(fresh_group(bootstrap, delays=(1_000,)), also=(Kind.POLICY,))
        self._checkpoint = str(folder / self.group.group)
        produce(bootstrap, self.group.main, [Out(value.encode(), b"k") for value in values])
        self._query = self._start()

    def _start(self) -> StreamingQuery:
        rules = build_rules(self.group.group, self.group.mains, ladder=["1s"], max_reconsume_times=1, name="ship")
        brokers = {"bootstrap.servers": self.group.bootstrap}
        run = for_each_record(rules=rules, kafka=brokers, stop_share=1, report=self.counts.append, **self._handlers)
        writer = self._read(self._spark, rules, brokers).writeStream.foreachBatch(run)
        return writer.option("checkpointLocation", self._checkpoint).trigger(processingTime="1 second").start()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. A query that a busy machine has ended is started again; any other end is a failure."""

        def is_met() -> bool:
            if (fault := self._query.exception()) is not None:
                assert LATE_WORKER in str(fault), f"the query has ended: {fault}"
                self._query = self._start()
            return condition()

        until(is_met, SECONDS, what)


@pytest.fixture
def start(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job with one of the two handlers."""
    for module in (mistakes, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # workers cannot import tests
    yield partial(Job, spark, kafka.bootstrap, tmp_path)
    for query in spark.streams.active:
        with suppress(StreamingQueryException):
            query.stop()


def reasons(group: GroupTopics, read: Any = read_gated) -> dict[str, str]:
    """The reason of each dead letter, by its value. Where nobody reads the levels, also of what waits in them."""
    topics = [group.dlq] if read is read_gated else [*group.retries, group.dlq]
    rows = [row for topic in topics for row in dump(group.bootstrap, topic)]
    return {(row.value or b"").decode(): (dict(row.headers)["RETRY_REASON"] or b"").decode() for row in rows}


def is_as(reason: str, wanted: str) -> bool:
    """Whether a reason is as wanted: `…` stands for anything."""
    begin, _, part = wanted.partition("…")
    return reason.startswith(begin) and part in reason if part else reason == wanted


@pytest.mark.parametrize(
    ("read", "handlers"),
    [(read_relay, {"handler": handle}), (read_relay, {"batch_handler": handle_all}), (read_gated, {"handler": handle})],
    ids=["handler", "batch_handler", "handler-gated"],
)
def test_each_kind_of_answer_comes_to_its_end_and_says_why(
    start: Callable[..., Job], read: Any, handlers: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    names = [name for name in KINDS if "batch_handler" not in handlers or name != "a mistake that is raised"]
    job, times = start(read, names, **handlers), 2 if read is read_gated else 1
    wanted = {name: KINDS[name][1] for name in names if KINDS[name][1]}
    if read is not read_gated:
        wanted["taken at last"] = "busy"
    job.until(lambda: reasons(job.group, read).keys() == wanted.keys(), "each record is done, waits or is dead")
    assert {name: why for name, why in reasons(job.group, read).items() if not is_as(why, wanted[name])} == {}
    events = [json.loads(row.value or b"") for row in dump(job.group.bootstrap, job.group.names.events)]
    waiting = [event for event in events if event["state"] == "WAITING_RETRY"]
    assert {event["text"] for event in waiting if event["reason"] == "ValueError"} == {
        "invalid literal for int() with base 10: 'three'"
    }
    wrong = {name for name in names if name in MISTAKES}
    assert len({event["id"] for event in waiting if event["reason"] == "verdict-error"}) == len(wrong)

    def odd(kind: str) -> int:
        return sum(counts.odd_kinds.get(kind, 0) for counts in job.counts)

    job.until(lambda: odd("verdict-error") >= times * len(wrong), "all are counted, and no mistake has ended the query")
    assert odd("delay") >= times
    lines = [record.getMessage() for record in caplog.records if record.name == "reconsume.spark"]
    assert any(line.startswith("odd verdicts (verdict-error) of ") for line in lines)
    [failed, *_] = (line for line in lines if line.startswith("a record failed with ValueError: "))
    assert "ValueError: invalid literal for int()" in failed
    assert "in <lambda>" in failed, "it has the stack"


def test_where_a_record_ends_its_process_the_others_of_the_batch_fail_as_usual(start: Callable[..., Job]) -> None:
    job = start(read_relay, [ENDS_ITS_PROCESS, "False", "raises", "refused", "taken"], handler=handle)
    wanted = {
        ENDS_ITS_PROCESS: "crashed-service",
        "False": "verdict-error: …by returning False",
        **{name: KINDS[name][1] for name in ("raises", "refused")},
    }
    job.until(lambda: reasons(job.group, read_relay).keys() == wanted.keys(), "each record is done or dead")
    assert {
        name: reason for name, reason in reasons(job.group, read_relay).items() if not is_as(reason, wanted[name])
    } == {}
