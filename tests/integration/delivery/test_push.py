"""The push client against a service on real sockets that answers in whatever way a service may."""

from __future__ import annotations

import time

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome, Rejected, Throttled
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import Behaviour, StubService
from tests.support.sidecar.push_client import SHORT_MS, a_push, a_record, deliver, outcomes, run, settled


@pytest.mark.parametrize(
    "behaviour",
    [
        stub.ok,
        stub.answer(204),
        stub.answer(202, "Content-Type: text/html", body=b"<p>taken</p>"),
        stub.continue_then_ok,
        stub.chunked,
        stub.read_to_close,
        stub.connection_close,
        stub.answer(200, body=b"b" * 65 * 1024),
        stub.answer(200, "X-Long: " + "x" * 60 * 1024),
        stub.drip(b"HTTP/1.1 200 \r\nContent-Length:0\r\n\r\n"),
        stub.answer(500, "Reconsume-Verdict: commit"),
        stub.answer(418, "Content-Type: application/json", body=b'{"verdict": "commit"}'),
    ],
)
def test_a_whole_answer_that_takes_the_record_commits(behaviour: Behaviour) -> None:
    """Given any way to write a 2xx or a commit, when two records are pushed, then both are committed."""
    found, service = outcomes([behaviour], count=2)
    assert found == [COMMITTED, COMMITTED]
    assert found[0] is COMMITTED
    assert len(service.requests) == 2


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (stub.answer(500), Failed("http-500")),
        (stub.answer(404, body=b"not a verdict"), Failed("http-404")),
        (stub.answer(503), Failed("http-503")),
        (stub.answer(429), Throttled(1_000)),
        (stub.answer(503, "Retry-After: 7"), Throttled(7_000)),
        (stub.answer(410), Rejected("http-410")),
        (stub.answer(200, "Reconsume-Verdict: retry; delay=90s"), Failed("retry-asked", delay=90_000, asked=True)),
        (stub.answer(200, "reconsume-verdict: dead-letter; reason=bad-sku"), Rejected("bad-sku")),
    ],
)
def test_a_whole_answer_that_does_not_take_the_record_says_what_comes_next(
    behaviour: Behaviour, expected: Outcome
) -> None:
    """Given such an answer, then its outcome is as contract 1.5 says, and the connection is used again."""
    found, service = outcomes([behaviour], count=2, dead_letter_statuses=frozenset({410}))
    assert found == [expected, expected]
    assert service.connections == 1


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (stub.close_before, "connection-lost"),
        (stub.close_mid_head, "connection-lost"),
        (stub.close_mid_json, "connection-lost"),
        (stub.garbage, "broken-answer"),
        (stub.upgrade, "broken-answer"),
        (stub.endless_headers, "broken-answer"),
        (stub.endless_interim, "broken-answer"),
    ],
)
def test_no_whole_answer_is_a_failed_attempt_and_the_end_of_the_connection(behaviour: Behaviour, reason: str) -> None:
    """Given a request that was sent, when its answer is cut off, no HTTP or too long, then one retry is spent."""
    found, service = outcomes([behaviour, stub.ok], count=2)
    first = found[0]
    assert isinstance(first, Failed)
    assert (first.reason, first.label) == (reason, "broken_answer")
    assert found[1] is COMMITTED
    assert service.carrying == 2


@pytest.mark.parametrize("behaviour", [stub.close_mid, stub.close_mid_chunk, stub.endless_body, stub.head_then_hang])
def test_a_complete_head_decides_where_no_body_could_change_it(behaviour: Behaviour) -> None:
    """Given a 2xx whose body is cut off, never ends or never comes, then it is done, and the connection is not used."""
    found, service = outcomes([behaviour, stub.ok], count=2, timeout_ms=SHORT_MS)
    assert found == [COMMITTED, COMMITTED]
    assert service.connections == 2


@pytest.mark.parametrize("behaviour", [stub.hang, stub.drip(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100)])
def test_an_answer_that_is_late_is_a_failed_attempt_and_is_never_taken_for_the_next(behaviour: Behaviour) -> None:
    """Given a service that hangs or drips, then the timeout is total, and the next record has its own connection."""
    began = time.monotonic()
    found, service = outcomes([behaviour, stub.ok], count=2, timeout_ms=SHORT_MS)
    first = found[0]
    assert isinstance(first, Failed)
    assert (first.reason, first.label) == ("timeout", "timeout")
    assert time.monotonic() - began >= SHORT_MS / 1000
    assert found[1] is COMMITTED
    assert service.connections == 2


@pytest.mark.parametrize(
    "behaviour",
    [
        stub.answer(200, "Content-Type: application/json", body=b"OK"),
        stub.answer(200, "Content-Type: application/json", "Connection: close", body=b"OK"),
        stub.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\nOK", keep=False),
    ],
)
def test_an_odd_verdict_is_counted_once_however_the_connection_ends(behaviour: Behaviour) -> None:
    """Given JSON that is none, then each answer is counted, with the end of its connection or without."""
    with StubService([behaviour]) as service:

        async def work() -> None:
            push = a_push(service.url)
            assert [await deliver(push, a_record(number)) for number in range(2)] == [COMMITTED, COMMITTED]
            push.close()
            await settled(lambda: push.connections == 0)
            assert push.odd_verdicts.counts == {"not-json": 2}

        run(work)


def test_a_redirect_is_not_followed() -> None:
    """Given a service that redirects to another one, then that is a failure, and the other one hears nothing."""
    with StubService([stub.ok]) as other:
        found, service = outcomes([stub.answer(307, f"Location: {other.url}")])
        assert found == [Failed("http-307", "redirects to /events")]
        assert len(service.requests) == 1
        assert other.connections == 0


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given proxy variables that point to another service, then records still go to the push URL."""
    with StubService([stub.ok]) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        found, service = outcomes([stub.ok])
        assert found == [COMMITTED]
        assert service.connections == 1
        assert proxy.connections == 0


def test_the_envelope_is_answered_for_its_own_record_alone() -> None:
    """Given envelopes, when the answer names another record, then nothing is known of this one, and it is retried."""
    said = b'{"verdicts": [{"id": "orders:3:0", "verdict": "commit"}]}'
    behaviour = stub.answer(200, "Content-Type: application/vnd.reconsume+json", body=said)
    found, service = outcomes([behaviour], count=2, envelope=True)
    assert found[0] is COMMITTED
    assert isinstance(found[1], Failed)
    assert found[1].reason == "unreadable-verdict"
    assert b"\r\nContent-Type: application/vnd.reconsume+json\r\n" in service.requests[0]


PAGE = "Content-Type: text/html; charset=utf-8"


def odd(behaviour: Behaviour, count: int) -> dict[str, int]:
    """What is odd about so many responses, each of which commits its record."""
    with StubService([behaviour]) as service:
        push = None

        async def work() -> None:
            nonlocal push
            push = a_push(service.url)
            assert [await deliver(push, a_record(number)) for number in range(count)] == [COMMITTED] * count
            push.close()
            await settled(lambda: push.connections == 0)

        run(work)
        assert push is not None
        return dict(push.odd_verdicts.counts)


@pytest.mark.parametrize(
    "page",
    [
        stub.answer(200, PAGE, body=b"<!doctype html><title>Sign in</title>"),
        stub.answer(203, "content-type: Text/HTML", body=b" \r\n <html>"),
        stub.answer(200, PAGE, "Connection: close", body=b"<html>"),
        stub.drip(b"HTTP/1.1 200 \r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n <p"),
    ],
)
def test_a_page_of_html_with_a_2xx_is_done_counted_each_time_and_named_once(
    page: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    """Given the same page three times, byte for byte, then its records are done, and one line names their topic."""
    with caplog.at_level("WARNING", "reconsume.verdict"):
        assert odd(page, 3) == {"html": 3}
    [line] = [record.getMessage() for record in caplog.records if record.name == "reconsume.verdict"]
    assert line.startswith("a response for orders has a 2xx status and a page of HTML")


@pytest.mark.parametrize(
    "accepted",
    [
        stub.answer(202),
        stub.answer(202, "Content-Type: application/json", body=b'{"job": 7}'),
        stub.answer(202, "Content-Type: text/plain", body=b"later"),
    ],
)
def test_a_202_without_a_verdict_is_done_counted_each_time_and_named_once(
    accepted: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "reconsume.verdict"):
        assert odd(accepted, 3) == {"accepted": 3}
    [line] = [record.getMessage() for record in caplog.records if record.name == "reconsume.verdict"]
    assert line.startswith("a response for orders has the status 202 and no verdict")


@pytest.mark.parametrize(
    "behaviour",
    [
        stub.answer(202, "Reconsume-Verdict: commit"),
        stub.answer(202, "Content-Type: application/json", body=b'{"verdict": "commit"}'),
        stub.answer(201),
        stub.answer(200, PAGE, body=b"ok"),
        stub.answer(200, PAGE, body=b" \n"),
        stub.answer(204, PAGE),
        stub.answer(200, "Content-Type: text/plain", body=b"<b>"),
        stub.answer(200, PAGE, "Reconsume-Verdict: commit", body=b"<html>"),
        stub.answer(200, PAGE, "Content-Encoding: gzip", body=b"\x1f\x8b<"),
    ],
)
def test_a_202_with_a_verdict_and_what_a_framework_labels_as_html_are_not_odd(behaviour: Behaviour) -> None:
    """Given a plain "ok" as HTML, no body, or a verdict, then nothing is odd about it."""
    assert odd(behaviour, 2) == {}
