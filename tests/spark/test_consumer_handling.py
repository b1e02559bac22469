"""On a worker: one row, one call, and nothing that a handler does ends the batch."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import Row

from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.handling import Handler, Judge, Result, ask_each, handle_rows
from reconsume.spark.consumer.record import Record
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import dead_letter, retry
from reconsume.spark.consumer.workers import ChildProcess
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState, parse_retry_headers

RULES = build_rules("billing", ["orders"], ladder=["1s"], max_reconsume_times=3, name="ship")


def handling(handler: Handler, rules: Rules, *, isolated: bool = False) -> Callable[[Row], Result]:
    """The function that Spark calls for each row."""
    ask = ask_each(handler, Judge(rules))
    asked = ChildProcess(ask) if isolated else ask
    return lambda row: handle_rows(asked, [row], rules)[0]


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


@pytest.mark.parametrize("answer", [None, True, 0, "done", "", ["x"], {"verdict": "retry"}], ids=repr)
def test_whatever_is_neither_a_verdict_nor_meant_as_one_is_a_success(answer: Any) -> None:
    taken = Result("commit", ("orders", ""), fresh=True, waited=4_999, writes=[])
    assert handling(lambda _record: answer, RULES)(row()) == taken


def state_of(result: Result) -> RetryState:
    state = parse_retry_headers(result.writes[0][3], RULES.topics, 2**53)
    assert isinstance(state, RetryState)
    return state


def test_an_exception_is_a_failure_and_its_message_is_the_failures_text() -> None:
    result = handling(raises(ValueError("cannot ship\tto\nhttps://bob:secret@host/a " + "x" * 300)), RULES)(row())
    state, event = state_of(result), json.loads(result.writes[1][2] or b"")
    assert (result.outcome, result.failed, state.due_at, state.first_failed_at) == ("retry", True, 6_000, 5_000)
    assert state.reason.startswith("ValueError: cannot ship to https://********@host/a xxx")
    assert (event["reason"], event["text"]) == ("ValueError", state.reason.removeprefix("ValueError: "))
    assert len(event["text"]) == 200


def test_with_failure_text_none_neither_the_record_nor_the_log_has_the_message() -> None:
    rules = build_rules("billing", ["orders"], ladder=["1s"], failure_text="none", name="ship")
    for handler in (raises(KeyError("the card number")), lambda _record: retry(delay="the card number")):
        result = handling(handler, rules)(row())
        assert result.failed
        assert "the card number" not in repr(result)
        assert result.note is not None
        assert result.note.text.startswith("orders:0:7 (attempt 1): ")


def test_the_first_failure_of_each_class_takes_its_stack_along() -> None:
    def ship_nothing(_record: Record) -> None:
        raise LookupError("no stock\nWARN forged")

    work = handling(ship_nothing, RULES)
    first, second = work(row()), work(row())
    assert first.note is not None
    assert (first.note.key, second.note) == ("LookupError", None)
    lines = first.note.text.splitlines()
    assert lines[0] == "orders:0:7 (attempt 1): LookupError"
    assert all(line.startswith("    ") for line in lines[1:])
    assert "in ship_nothing" in first.note.text
    assert "answer_of" not in first.note.text


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_exception_that_cannot_say_what_it_is_is_a_failure_like_any_other() -> None:
    assert state_of(handling(raises(MuteError()), RULES)(row())).reason == "MuteError"


def test_a_handler_that_exits_is_a_failure_like_any_other() -> None:
    def handle(_record: Record) -> object:
        sys.exit(3)

    result = handling(handle, RULES)(row())
    assert (result.outcome, state_of(result).reason) == ("retry", "SystemExit: 3")


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
        (retry(delay="90s"), "retry", True, ""),
        (retry(level=-1), "dead_letter", True, ""),
        (retry(delay="1ms"), "retry", True, "delay"),
        (retry(level=99), "retry", True, ""),
        (retry(delay=float("nan")), "retry", True, "delay"),
        (retry(delay=[90]), "retry", True, "verdict-error"),  # type: ignore[arg-type]
        (dead_letter("no"), "dead_letter", False, ""),
    ],
    ids=repr,
)
def test_a_verdict_means_the_same_returned_and_raised(verdict: Exception, outcome: str, failed: bool, odd: str) -> None:
    returned = handling(lambda _record: verdict, RULES)(row())
    assert (returned.outcome, returned.failed, returned.odd) == (outcome, failed, odd)
    assert handling(raises(verdict), RULES)(row()) == returned


def test_a_handler_gets_bytes_and_no_headers_where_there_are_none() -> None:
    seen: list[Record] = []
    handling(seen.append, RULES)(row(headers=[("a", b"1"), ("a", None)]))
    handling(seen.append, RULES)(row())
    assert [type(record.value) for record in seen] == [bytes, bytes]
    assert [record.headers for record in seen] == [[("a", b"1"), ("a", None)], []]
