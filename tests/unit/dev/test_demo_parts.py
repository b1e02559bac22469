"""The demo's orders, ladder, ledger and sample service, each by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.dev.demo.lateness import Spread
from reconsume.sidecar.dev.demo.ledger import (
    Answered,
    Began,
    Closed,
    LedgerReader,
    LedgerWriter,
    Line,
    Opened,
    Outage,
    deliveries_of,
    digest_of,
    outages_of,
)
from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.demo.orders import CASE_HEADER, Case, make_orders
from reconsume.sidecar.dev.demo.plan import make_plan
from reconsume.sidecar.dev.demo.record_histories import Finding
from reconsume.sidecar.dev.demo.run import judge
from reconsume.sidecar.dev.demo.screen import Screen
from reconsume.sidecar.dev.demo.verify import Report
from reconsume.topics.retry_headers import OURS


def test_every_case_is_among_a_few_orders_and_most_are_good() -> None:
    assert {order.case for order in make_orders(20)} == set(Case)
    many = make_orders(400)
    assert len(many) == 400
    assert sum(order.case is Case.GOOD for order in many) > 200


def test_the_orders_look_as_if_somebody_else_had_made_them() -> None:
    orders = [order for order in make_orders(400) if order.case is not Case.GOOD]
    names = [[name for name, _ in order.headers] for order in orders]
    assert {None, b""} <= {order.key for order in orders}
    assert {None, b""} <= {order.value for order in orders}
    assert bytes(range(256)) in {order.value for order in orders}, "binary"
    assert any(len(set(each)) < len(each) for each in names), "doubled headers"
    assert any(OURS & set(each) for each in names), "headers that look like ours"
    assert any(None in dict(order.headers).values() for order in orders), "null headers"


def test_each_order_says_how_the_service_shall_behave() -> None:
    assert all((CASE_HEADER, order.case.encode()) in order.headers for order in make_orders(50))


def test_the_same_orders_are_made_on_every_run() -> None:
    assert make_orders(50) == make_orders(50)


def test_the_ledger_gives_back_what_was_written_line_by_line(tmp_path: Path) -> None:
    with LedgerReader(tmp_path / "ledger") as reader:
        assert reader.read() == []
        writer = LedgerWriter(tmp_path / "ledger")
        began = Began(1.5, 0, "orders:0:1", 2, "good", digest_of(b"x"))
        for line in (Opened(0.5, 80), began):
            writer.write(line)
        writer.close()
        assert reader.read() == [Opened(0.5, 80), began]
        assert reader.read() == []


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with LedgerReader(path) as reader, path.open("ab", buffering=0) as file:
        file.write(b'{"type":"Closed",')
        assert reader.read() == []
        file.write(b'"at":2.0}\n')
        assert reader.read() == [Closed(2.0)]


def test_a_request_without_an_answer_is_a_delivery_without_a_verdict() -> None:
    lines: list[Line] = [Began(1, 0, "a", 0, "", "d"), Began(2, 1, "b", 0, "", "d"), Answered(3, 1, 200, "commit")]
    assert [(one.verdict, one.ended) for one in deliveries_of(lines)] == [("none", None), ("commit", 3)]


def test_an_outage_lasts_until_a_request_comes_through() -> None:
    first, second = Began(1, 0, "a", 0, "", ""), Began(9, 1, "a", 0, "", "")
    assert outages_of([first, Closed(2), Opened(7, 80), second]) == (Outage(2, 9),)
    assert outages_of([first, Closed(2)]) == (Outage(2, float("inf")),)
    assert outages_of([first]) == ()


def test_null_is_not_empty() -> None:
    assert digest_of(None) != digest_of(b"")


def judged(findings: tuple[Finding, ...] = (), *, orders: int = 5, drained: bool = True) -> int:
    """The exit code of a demo of 5 orders."""
    report = Report(orders, 5, 0, (5,), 0, 0, 0, Spread(), Spread(), Spread(), 5, findings)
    return judge(report, make_plan(Mode.PUSH, None, 5), drained, Screen(color=False))


def test_a_demo_without_findings_ends_with_0_and_says_what_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged() == 0
    assert capsys.readouterr().out.startswith("checked: 5 records of all topics against 5 deliveries")


def test_a_demo_with_findings_ends_with_1_and_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged((Finding("lost", "orders:0:1", "neither taken nor in the [DLQ]"),)) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "lost orders:0:1: neither taken nor in the [DLQ]\n" in out
    assert "checked:" not in out


def test_orders_that_never_reached_the_topic_are_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(orders=4) == 1
    assert "5 orders were produced, and the topic has 4" in capsys.readouterr().out


def test_a_sidecar_that_did_not_drain_is_a_failure() -> None:
    assert judged(drained=False) == 1
