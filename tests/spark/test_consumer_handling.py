"""On a worker: one row, one call, and nothing that a handler does ends the batch."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import Row

from reconsume.spark.consumer.handling import handling
from reconsume.spark.consumer.record import Record
from reconsume.spark.consumer.rules import build_rules
from reconsume.spark.consumer.verdict import dead_letter, retry
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState, parse_retry_headers

RULES = build_rules("billing", ["orders"], ladder=["1s"], max_reconsume_times=3)


def now() -> int:
    return time.time_ns() // 1_000_000


def row(topic: str = "orders", headers: Headers | None = None, at: int = 5_000) -> Row:
    plain = None if headers is None else [Row(key=key, value=None if v is None else bytearray(v)) for key, v in headers]
    return Row(topic=topic, partition=0, offset=7, timestamp=1, key=None, value=bytearray(b"v"), headers=plain, now=at)


def due_in(ms: int) -> Row:
    at = now()
    life = RetryState("orders:0:1", "orders", 1, 0, at + ms, 1, 1, "x")
    return row(RULES.names.ready, render_retry_headers(life, "billing", RULES.names.ready), at)


def raises(error: Exception) -> Callable[[Record], object]:
    def handle(_record: Record) -> object:
        raise error

    return handle


@pytest.mark.parametrize("ms", [400, 900])
def test_a_record_that_is_nearly_due_is_handled_when_it_is_due(ms: int) -> None:
    at: list[int] = []
    given = due_in(ms)
    assert handling(lambda _record: at.append(now()), RULES)(given).outcome == "commit"
    assert at[0] >= given["now"] + ms


def test_a_record_that_is_far_from_due_is_not_handled() -> None:
    def handle(_record: Record) -> object:
        raise AssertionError("it was handled")

    result = handling(handle, RULES)(due_in(60_000))
    assert (result.outcome, result.failed, result.fresh, len(result.writes)) == ("hop", False, False, 1)


@pytest.mark.parametrize("answer", [None, True, False, 0, "retry", ["x"], {"verdict": "retry"}], ids=repr)
def test_whatever_is_no_verdict_is_a_success(answer: Any) -> None:
    assert handling(lambda _record: answer, RULES)(row()) == ("commit", False, False, True, [])


def test_an_exception_is_a_failure_and_its_text_is_not_told() -> None:
    result = handling(raises(KeyError("the card number")), RULES)(row())
    assert (result.outcome, result.failed) == ("retry", True)
    assert "the card number" not in repr(result.writes)
    life = parse_retry_headers(result.writes[0][3], RULES.topics, 2**53)
    assert isinstance(life, RetryState)
    assert (life.reason, life.due_at, life.first_failed_at) == ("KeyError", 6_000, 5_000)


def test_a_handler_that_exits_is_a_failure_like_any_other() -> None:
    def handle(_record: Record) -> object:
        sys.exit(3)

    result = handling(handle, RULES)(row())
    life = parse_retry_headers(result.writes[0][3], RULES.topics, 2**53)
    assert isinstance(life, RetryState)
    assert (result.outcome, life.reason) == ("retry", "SystemExit")


def at(offset: int) -> Row:
    return Row(**{**row().asDict(), "offset": offset})


def test_apart_a_handler_that_ends_its_process_is_one_dead_letter_and_the_others_are_handled(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def handle(record: Record) -> object:
        with calls.open("a") as file:
            file.write(f"{record.offset} {os.getpid()}\n")
        if record.offset == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if record.offset == 3:
            raise KeyError
        return dead_letter("no") if record.offset == 4 else None

    work = handling(handle, RULES, isolated=True)
    results = [work(at(offset)) for offset in range(1, 6)]
    assert [result.outcome for result in results] == ["commit", "dead_letter", "retry", "dead_letter", "commit"]
    assert [result.failed for result in results] == [False, True, True, False, False]
    assert dict(results[1].writes[0][3])["RETRY_REASON"] == b"crashed-service"
    told = [line.split() for line in calls.read_text().splitlines()]
    assert [int(offset) for offset, _ in told] == [1, 2, 2, 2, 3, 4, 5]
    assert str(os.getpid()) not in {pid for _, pid in told}


def test_the_process_apart_ends_with_its_task() -> None:
    calls: list[int] = []
    reader, writer = os.pipe()

    def handle(_record: Record) -> object:
        calls.append(1)
        return os.write(writer, b"%d" % os.getpid())

    work = handling(handle, RULES, isolated=True)
    assert work(row()).outcome == "commit"
    child = int(os.read(reader, 20))
    assert (child == os.getpid(), calls) == (False, []), "it was called elsewhere"
    del work
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("verdict", "outcome", "failed", "odd"),
    [
        (retry(delay="90s"), "retry", True, False),
        (retry(level=-1), "dead_letter", True, False),
        (retry(delay="1ms"), "retry", True, True),
        (dead_letter("no"), "dead_letter", False, False),
    ],
    ids=repr,
)
def test_a_verdict_means_the_same_returned_and_raised(
    verdict: Exception, outcome: str, failed: bool, odd: bool
) -> None:
    returned = handling(lambda _record: verdict, RULES)(row())
    assert (returned.outcome, returned.failed, returned.odd) == (outcome, failed, odd)
    assert handling(raises(verdict), RULES)(row()) == returned


def test_a_handler_gets_bytes_and_no_headers_where_there_are_none() -> None:
    seen: list[Record] = []
    handling(seen.append, RULES)(row(headers=[("a", b"1"), ("a", None)]))
    handling(seen.append, RULES)(row())
    assert [type(record.value) for record in seen] == [bytes, bytes]
    assert [record.headers for record in seen] == [[("a", b"1"), ("a", None)], []]
