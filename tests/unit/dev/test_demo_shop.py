"""The sample service: one behaviour, said in as many ways as there are to get orders."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from reconsume.sidecar.dev.demo.ledger import Answered, Began, LedgerReader, LedgerWriter, Line, digest_of
from reconsume.sidecar.dev.demo.shop.batch import BatchFront
from reconsume.sidecar.dev.demo.shop.behaviour import BROKEN, OK, answer_to
from reconsume.sidecar.dev.demo.shop.order_log import OrderLog
from reconsume.sidecar.dev.demo.shop.pull import saying
from reconsume.sidecar.dev.demo.shop.push import words_of
from reconsume.sidecar.dev.demo.shop.relay import retry_request_of
from reconsume.sidecar.dev.demo.shop.web import Request

LATER, REFUSED, STUCK = answer_to("later", 0), answer_to("refused", 0), answer_to("stuck", 0)


@pytest.mark.parametrize(
    ("case", "verdicts"),
    [
        ("good", ["commit", "commit"]),
        ("slow", ["commit", "commit"]),
        ("flaky", ["retry", "retry", "commit"]),
        ("later", ["retry", "commit"]),
        ("refused", ["dead-letter"]),
        ("poison", ["retry", "retry", "retry", "retry", "retry"]),
        ("", ["commit"]),
    ],
)
def test_the_service_answers_by_the_case_and_the_retry(case: str, verdicts: list[str]) -> None:
    assert [answer_to(case, times).verdict for times in range(len(verdicts))] == verdicts


def test_a_pushed_order_is_answered_by_its_status_and_a_header_where_that_says_more() -> None:
    assert words_of(OK) == ""
    assert words_of(BROKEN) == "retry; reason=payment-failed", "a bare 500 could be taken for an outage"
    assert words_of(LATER) == "retry; delay=3s; reason=out-of-stock"
    assert words_of(REFUSED) == "dead-letter; reason=unknown-sku"


def test_a_leased_order_is_answered_by_a_call() -> None:
    assert saying(OK, "h") == ("/v1/ack", {"handles": ["h"]})
    assert saying(BROKEN, "h") == ("/v1/reconsume-later", {"handles": ["h"], "reason": "payment-failed"})
    assert saying(LATER, "h") == ("/v1/reconsume-later", {"handles": ["h"], "delay": "3s", "reason": "out-of-stock"})
    assert saying(REFUSED, "h") == ("/v1/dead-letter", {"handles": ["h"], "reason": "unknown-sku"})


def test_of_an_order_that_the_service_read_itself_only_a_failure_is_posted() -> None:
    assert retry_request_of(OK) is None
    assert retry_request_of(BROKEN) == ("retry", "payment-failed", None, None)
    assert retry_request_of(LATER) == ("retry", "out-of-stock", "3s", None)
    assert retry_request_of(REFUSED) == ("dead-letter", "unknown-sku", None, -1)
    assert retry_request_of(STUCK) == ("retry", "timeout", None, None)


def record(number: int, case: str, value: bytes | None = b"v") -> dict[str, Any]:
    """One record of a batch."""
    text = None if value is None else base64.b64encode(value).decode()
    headers = [["trace", None], ["order-case", base64.b64encode(case.encode()).decode()]]
    return {"id": f"orders:0:{number}", "times": 0, "value_base64": text, "headers": headers, "offset": number}


def answer_batch(records: list[dict[str, Any]], tmp_path: Path) -> tuple[dict[str, Any], list[Line], list[int]]:
    """The JSON that a batch is answered with, the ledger after it, and the numbers of those that were answered."""
    writer = LedgerWriter(tmp_path / "ledger")
    with LedgerReader(tmp_path / "ledger") as reader, contextlib.closing(writer):
        body = json.dumps({"group": "billing", "records": records}).encode()
        response = asyncio.run(BatchFront(OrderLog(writer)).answer(Request({}, body)))
        said = json.loads(response.data.partition(b"\r\n\r\n")[2])
        return said, reader.read(), [one.number for one in response.said]


def test_a_batch_gets_a_verdict_for_each_order_and_the_ledger_a_line(tmp_path: Path) -> None:
    said, lines, numbers = answer_batch([record(0, "good"), record(1, "later", None), record(2, "refused")], tmp_path)
    assert said == {
        "verdicts": [
            {"id": "orders:0:0", "verdict": "commit"},
            {"id": "orders:0:1", "verdict": "retry", "delay": "3s", "reason": "out-of-stock"},
            {"id": "orders:0:2", "verdict": "dead-letter", "reason": "unknown-sku"},
        ]
    }
    came = [(line.id, line.case, line.digest) for line in lines if isinstance(line, Began)]
    assert came == [
        ("orders:0:0", "good", digest_of(b"v")),
        ("orders:0:1", "later", digest_of(None)),
        ("orders:0:2", "refused", digest_of(b"v")),
    ]
    assert not any(isinstance(line, Answered) for line in lines), "not before it is sent"
    assert numbers == [0, 1, 2]


def test_an_order_that_is_stuck_is_left_out_of_the_answer_and_holds_up_no_other(tmp_path: Path) -> None:
    said, _, numbers = answer_batch([record(0, "stuck"), record(1, "good")], tmp_path)
    assert said == {"verdicts": [{"id": "orders:0:1", "verdict": "commit"}]}
    assert numbers == [1]
