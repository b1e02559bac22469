"""Handlers can be tested without Spark, Kafka and Java, and no mistake of theirs is a success or the record's fault."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reconsume.spark.consumer import Record, build_rules, dead_letter, retry
from reconsume.spark.testing import Tried, record, try_batch
from tests.spark.mistakes import MISTAKES
from tests.support.python_path import python_path

if TYPE_CHECKING:  # each worker collects all tests, and few use it
    import pandas as pd

PAGES = Path(__file__).parents[2] / "docs"
RULES = build_rules(
    "billing", ["orders"], ladder=["30s", "1h"], levels=["30s", "5m", "1h"], max_reconsume_times=2, name="ship"
)
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def stable(value: object) -> str:
    """A value as it prints in each process."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def handle(one: Record) -> object:
    """A handler as a user writes it."""
    if one.value is None:
        return dead_letter("no-value")
    if one.value == b"sold out":
        return retry(delay="10m", reason="out-of-stock")
    return int(one.value)


# --- verdicts are values ----------------------------------------------------------------------------------------------


class Reason(str, Enum):  # noqa: UP042 - as users of Python 3.10 write it
    BUSY = "busy"


SAME = [
    (retry(), retry(delay=None)),
    (retry(90), retry(delay="90s")),
    (retry(delay="1m30s"), retry(delay=timedelta(seconds=90))),
    (retry(delay=1.5), retry(delay="1s500ms")),
    (retry(level=3, reason="busy"), retry(reason=Reason.BUSY, level=3)),
    (dead_letter("no-value"), dead_letter(reason="no-value")),
]
DIFFERENT = [
    retry(),
    retry(delay="20s"),
    retry(delay="20s", reason="busy"),
    retry(level=0),
    retry(expires="6h"),
    dead_letter(),
    dead_letter("busy"),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_two_verdicts_that_ask_for_the_same_are_equal(one: Exception, other: Exception) -> None:
    assert one == other
    assert len({one, other}) == 1


def test_verdicts_that_ask_for_something_else_differ() -> None:
    assert len(set(DIFFERENT)) == len(DIFFERENT)
    assert all((one == other) == (one is other) for one in DIFFERENT for other in DIFFERENT)


@pytest.mark.parametrize(
    "written",
    [
        "retry()",
        'retry(delay="20s", reason="x")',
        "retry(delay=90)",
        "retry(delay=datetime.timedelta(seconds=90))",
        'retry(level=-1, expires="6h")',
        'dead_letter("no-value")',
    ],
)
def test_a_verdict_prints_as_it_was_written(written: str) -> None:
    assert (
        repr(eval(written, {"retry": retry, "dead_letter": dead_letter, "datetime": __import__("datetime")})) == written
    )


@pytest.mark.parametrize("verdict", [*DIFFERENT, retry(delay=lambda: 3)], ids=stable)  # type: ignore[arg-type]
def test_a_verdict_is_readable_in_another_process(verdict: Exception) -> None:
    copied = pickle.loads(pickle.dumps(verdict))
    assert repr(copied) == repr(verdict) == repr(copy.copy(verdict))
    assert (copied == verdict) == ("verdict" not in repr(verdict) and "lambda" not in repr(verdict))


def test_a_test_that_repeats_a_mistake_does_not_pass_and_says_why() -> None:
    assert retry(delay="20 sec") != retry(delay="20 sec")
    assert repr(retry(delay="20 sec")) == (
        '<retry(delay="20 sec"): delay must be seconds, a timedelta, or a text such as 500ms, 90s or 1h30m, '
        'not "20 sec">'
    )


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("handler", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_a_failure_verdict_error_by_the_ladder_that_names_the_mistake(
    handler: Callable[[Record], object], text: str
) -> None:
    [tried] = try_batch(handler, [record()], RULES, now=NOW)
    assert tried[1:] == ("verdict-error", "30s", NOW + timedelta(seconds=30), True)
    assert tried.verdict is not None
    assert tried.verdict.reason.startswith("verdict-error: ")
    assert text in tried.verdict.reason


OF_ONE_ROW = {name: mistake for name, mistake in MISTAKES.items() if name != "a mistake that is raised"}
"""A verdict that a batch handler raises is that of all rows."""


@pytest.mark.parametrize(("handler", "text"), OF_ONE_ROW.values(), ids=OF_ONE_ROW)
def test_in_an_answer_to_many_rows_a_mistake_is_that_rows_alone(handler: Callable[[Record], object], text: str) -> None:
    def handle_all(table: pd.DataFrame) -> list[object]:
        return [handler(one) if one.offset == 1 else None for one in table.itertuples()]  # type: ignore[arg-type]

    records = [record(offset=offset) for offset in range(3)]
    first, second, third = try_batch(None, records, RULES, batch_handler=handle_all, now=NOW)
    assert (first, third) == (Tried(None), Tried(None))
    assert tried_reason(second).startswith("verdict-error: ")
    assert text in tried_reason(second)


@pytest.mark.parametrize(
    "answers", [False, True, "retry", retry, 3, "abc", b"abc", {}, {1, 2, 3}, [], [None]], ids=stable
)
def test_what_cannot_be_the_answers_to_the_rows_is_a_mistake_for_each_row(answers: Any) -> None:
    calls: list[int] = []

    def handle_all(table: pd.DataFrame) -> Any:
        calls.append(len(table))
        return answers

    tried = try_batch(None, [record()] * 3, RULES, batch_handler=handle_all, now=NOW)
    assert {(one.reason, one.odd) for one in tried} == {("verdict-error", True)}
    assert calls == [3], "the rows are not to blame, and none is handled alone"


def test_a_table_in_place_of_the_answers_is_a_mistake() -> None:
    tried = try_batch(None, [record()] * 3, RULES, batch_handler=lambda table: table[["key", "value", "id"]], now=NOW)
    assert {one.reason for one in tried} == {"verdict-error"}


def tried_reason(tried: Tried) -> str:
    assert tried.verdict is not None
    return tried.verdict.reason


# --- what a record comes to -------------------------------------------------------------------------------------------


def test_a_batch_is_tried_as_it_would_be_handled() -> None:
    tried = try_batch(handle, map(record, ("3", None, "sold out", "three")), RULES, now=NOW)
    assert tried == [
        Tried(None),
        Tried(dead_letter("no-value"), "no-value", "dlq"),
        Tried(retry(delay="10m", reason="out-of-stock"), "out-of-stock", "5m", NOW + timedelta(minutes=10)),
        Tried(
            retry(reason="ValueError: invalid literal for int() with base 10: b'three'"),
            *("ValueError", "30s", NOW + timedelta(seconds=30)),
        ),
    ]


def test_a_record_that_was_retried_goes_up_the_ladder_and_then_to_the_dlq() -> None:
    records = [record("x", times=times) for times in range(3)]
    assert [tried.level for tried in try_batch(handle, records, RULES)] == ["30s", "1h", "dlq"]


@pytest.mark.parametrize("fields", [{"delay": "20d"}, {"delay": 0}, {"delay": -5}, {"delay": float("inf")}])
def test_a_number_that_is_not_allowed_is_replaced_by_the_ladder_and_odd(fields: dict[str, Any]) -> None:
    [tried] = try_batch(lambda _: retry(**fields), [record()], RULES, now=NOW)
    assert tried == Tried(retry(**fields), "retry-asked", "30s", NOW + timedelta(seconds=30), odd=True)


def test_a_rule_of_the_group_may_name_the_class_before_a_text() -> None:
    rules = build_rules(
        "billing", ["orders"], rules=[{"name": "bad", "reasons": ["bad-sku"], "dead_letter": True}], name="ship"
    )
    [tried] = try_batch(lambda _: retry(reason="bad-sku: A-99"), [record()], rules)
    assert (tried.reason, tried.level) == ("bad-sku", "dlq")


def test_a_record_is_made_of_what_is_told_of_it() -> None:
    assert record() == ("test:0:0", "test", 0, 0, -1, None, b"", [], 0, 0, 0)
    given = record("v", key="k", headers={"a": "1", "b": None}, topic="orders", partition=3, offset=1024, times=2)
    assert given == ("orders:3:1024", "orders", 3, 1024, -1, b"k", b"v", [("a", b"1"), ("b", None)], 2, 0, 0)
    assert record(None).value is None


def test_there_is_one_handler() -> None:
    for handlers in ({"handler": None}, {"handler": handle, "batch_handler": lambda _: None}):
        with pytest.raises(ValueError, match="either a handler or a batch_handler"):
            try_batch(records=[], rules=RULES, **handlers)  # type: ignore[arg-type]


def test_the_example_of_the_pages_passes_for_the_handler_of_the_pages() -> None:
    pages = "".join(page.read_text("utf-8") for page in sorted(PAGES.glob("*.md")))
    blocks = re.findall(r"^```python\n(.*?)^```", pages, re.DOTALL | re.MULTILINE)
    [example] = (block for block in blocks if "reconsume.spark.testing" in block)
    [handler] = (block for block in blocks if "def handle(record)" in block)
    names: dict[str, object] = {}
    for code in (handler, example):
        exec(compile(code, "docs", "exec"), names)


WITHOUT_PYSPARK = """
import sys

sys.modules |= dict.fromkeys(("pyspark", "py4j", "pandas", "confluent_kafka"))  # an import of these raises
from reconsume.spark.consumer import build_rules, retry
from reconsume.spark.testing import record, try_batch

[tried] = try_batch(lambda one: retry(90), [record(b"v")], build_rules("billing", ["orders"], name="ship"))
print(tried.verdict, tried.level)
"""


def test_a_handler_can_be_tested_where_there_is_no_pyspark() -> None:
    environ = {**os.environ, "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", WITHOUT_PYSPARK]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "retry(delay=90) 1m"), done.stderr
