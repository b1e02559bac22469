"""What an answer means, and that no answer whatever is too much."""

from __future__ import annotations

import gzip
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Committed, Failed, Outcome, Postponed, Rejected, Throttled
from reconsume.sidecar.delivery.push.batch_verdicts import read_envelope_answer
from reconsume.sidecar.delivery.verdict import UNREADABLE, OddAnswer, VerdictRules, verdict_from_response
from reconsume.topics.expiry import Expiry

WALL = 1_763_690_000_000
"""Fri, 21 Nov 2025 01:53:20 GMT"""
JSON = (b"content-type", b"application/json; charset=utf-8")
RULES = VerdictRules(frozenset({410, 429}))
SIX_HOURS, EVENING = Expiry(after=21_600_000), Expiry(at=1_795_716_000_000)


def header(verdict: bytes, status: int = 500) -> Outcome:
    return meant(verdict_from_response(status, [(b"reconsume-verdict", verdict)], b"", RULES, WALL))


def body(text: bytes, status: int = 500, identity: str = "") -> Outcome:
    if identity:
        return meant(read_envelope_answer(identity, status, [JSON], text, RULES, WALL))
    return meant(verdict_from_response(status, [JSON], text, RULES, WALL))


def meant(judged: Outcome | OddAnswer) -> Outcome:
    """The outcome of an answer, be it odd or not."""
    found: Outcome = judged.judged if isinstance(judged, OddAnswer) else judged
    return found


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"commit", COMMITTED),
        (b" Commit ; what=ever", COMMITTED),
        (b"retry", Failed("retry-asked", asked=True)),
        (b"retry; delay=90s", Failed("retry-asked", delay=90_000, asked=True)),
        (b"RETRY;DELAY=1h30m;level=3", Failed("retry-asked", delay=5_400_000, level=3, asked=True)),
        (b"retry; level=-1; reason=busy", Failed("busy", level=-1, asked=True)),
        (b"retry; level=-1", Failed("dead-letter-asked", level=-1, asked=True)),
        (b"retry; level=0", Failed("retry-asked", level=0, asked=True)),
        (b"retry; delay=90; level=high; dely=1s", Failed("retry-asked", asked=True)),
        (b"retry; delay=", Failed("retry-asked", asked=True)),
        (b"retry; expires=6h", Failed("retry-asked", asked=True, expires=SIX_HOURS)),
        (b'retry;Expires="2026-11-26T18:00:00Z"', Failed("retry-asked", asked=True, expires=EVENING)),
        (b"retry; expires=soon", Failed("retry-asked", asked=True)),
        (b"commit; expires=6h", COMMITTED),
        (b"dead-letter", Rejected("dead-letter-asked")),
        (b"dead-letter; reason=bad-sku", Rejected("bad-sku")),
        (b'dead-letter; reason="no such sku"', Rejected("dead-letter-asked", "no such sku")),
        (b"dead-letter; reason=a\x1b[31mb", Rejected("dead-letter-asked", "a [31mb")),
        (b"", UNREADABLE),
        (b"drop", UNREADABLE),
        (b"commit, retry", UNREADABLE),
        (b"\xff\xfe", UNREADABLE),
    ],
)
@pytest.mark.parametrize("status", [200, 429, 500])
def test_the_verdict_header_decides_whatever_the_status(said: bytes, expected: Outcome, status: int) -> None:
    """Given a Reconsume-Verdict header, then it is what counts; an unknown word is a retry by the ladder."""
    assert header(said, status) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"verdict": "commit"}', COMMITTED),
        (b'{"verdict": "retry", "delay": "90s"}', Failed("retry-asked", delay=90_000, asked=True)),
        (b'{"verdict": "retry", "level": 3, "more": [1, {}]}', Failed("retry-asked", level=3, asked=True)),
        (b'{"verdict": "retry", "expires": "6h"}', Failed("retry-asked", asked=True, expires=SIX_HOURS)),
        (b'{"verdict": "retry", "expires": {"at": 6}}', Failed("retry-asked", asked=True)),
        (b'{"verdict": "retry", "level": true, "delay": 90}', Failed("retry-asked", asked=True)),
        (b'{"verdict": "retry", "level": 1e300, "delay": {"a": 1}}', Failed("retry-asked", asked=True)),
        (b'{"verdict": "dead-letter", "reason": "bad-sku"}', Rejected("bad-sku")),
        (b'{"verdict": "dead-letter", "reason": "bad \\ud800 sku"}', Failed("http-500")),
        (b'{"verdict": "Commit"}', Failed("http-500")),
        (b'{"verdict": 1}', Failed("http-500")),
        (b'{"verdict": ["commit"]}', Failed("http-500")),
        (b'{"verdict": "commit"', Failed("http-500")),
        (b"[" * 60_000, Failed("http-500")),
        (b'{"verdict": ' * 5_000, Failed("http-500")),
        (b"", Failed("http-500")),
        (b"{}", Failed("http-500")),
        (b'"ok"', Failed("http-500")),
        (b'{"verdict": null}', Failed("http-500")),
        (b'{"verdicts": [{"id": "a", "verdict": "commit"}]}', Failed("http-500")),
    ],
)
def test_a_json_body_decides_where_it_has_a_verdict(text: bytes, expected: Outcome) -> None:
    """Given a JSON body, then its verdict counts; without one, or where it cannot be read, the status does."""
    assert body(text) == expected


SAID_BY_FRAMEWORKS = {
    "the text OK": (b"OK", "not-json"),
    "NaN": (b"NaN", "not-json"),
    "JSON behind a byte order mark": (b'\xef\xbb\xbf{"status": "ok"}', "not-json"),
    "JSON in UTF-16": ('{"status": "ok"}'.encode("utf-16"), "not-json"),
    "JSON that is cut": (b'{"status": "o', "not-json"),
    "JSON behind a prefix against scripts": (b')]}\',\n{"status": "ok"}', "not-json"),
    "JSON by lines": (b'{"a": 1}\n{"b": 2}\n', "not-json"),
    "Python's own form": (b"{'status': 'ok'}", "not-json"),
    "packed without a word": (gzip.compress(b'{"status": "ok"}', mtime=0), "not-json"),
    "a page of an error": (b"<html>oops</html>", "not-json"),
    "a key that is there twice": (b'{"status": 1, "status": 2}', ""),
    "a word of its own": (b'{"verdict": "approved"}', "unknown-word"),
    "a verdict that is a number": (b'{"verdict": 1}', "unknown-word"),
    "our word in another case": (b'{"verdict": "Retry"}', "unknown-word"),
    "a verdict deeper inside": (b'{"result": {"verdict": "retry"}}', ""),
    "a verdict in a list": (b'[{"verdict": "retry"}]', ""),
    "a number": (b"7", ""),
    "nothing but space": (b"  \r\n", "not-json"),
}


@pytest.mark.parametrize("what", SAID_BY_FRAMEWORKS)
def test_what_a_framework_says_in_its_own_json_changes_no_outcome(what: str) -> None:
    """Given a service that did its work, or asks for time, or refuses for good, then its status decides."""
    text, odd = SAID_BY_FRAMEWORKS[what]
    for status, retry_after, outcome in (
        (200, [], COMMITTED),
        (201, [], COMMITTED),
        (429, [], Rejected("http-429")),
        (410, [], Rejected("http-410")),
        (503, [(b"retry-after", b"7")], Throttled(7_000)),
        (500, [], Failed("http-500")),
    ):
        found = verdict_from_response(status, [JSON, *retry_after], text, RULES, WALL)
        assert found == (OddAnswer(outcome, (odd,)) if odd else outcome), status
    assert meant(verdict_from_response(429, [JSON], text, VerdictRules(), WALL)) == Throttled(1_000)


def test_a_2xx_with_other_json_commits() -> None:
    """Given the usual small JSON of a framework, then nothing is lost and nothing retried."""
    assert body(b'{"status": "ok"}', 200) is COMMITTED
    assert body(b"null", 200) is COMMITTED
    assert body(b"", 204) is COMMITTED


def test_the_header_wins_over_the_body_and_only_json_is_read() -> None:
    """Given both, then the header counts; given another content type, then the body says nothing."""
    both = [(b"reconsume-verdict", b"commit"), JSON]
    assert verdict_from_response(500, both, b'{"verdict": "retry"}', RULES, WALL) is COMMITTED
    plain = [(b"content-type", b"text/plain")]
    assert verdict_from_response(200, plain, b'{"verdict": "retry"}', RULES, WALL) is COMMITTED


@pytest.mark.parametrize(("encoding", "read"), [(b"identity", True), (b" Identity", True), (b"", True), (b"br", False)])
def test_a_body_counts_unless_it_is_encoded(encoding: bytes, read: bool) -> None:
    """Given a header that names no encoding, then the verdict under it is no loss."""
    noted = [JSON, (b"content-encoding", encoding)]
    found = meant(verdict_from_response(200, noted, b'{"verdict": "retry"}', RULES, WALL))
    assert found == (Failed("retry-asked", asked=True) if read else COMMITTED)


def test_two_verdict_headers_count_once_if_they_are_alike() -> None:
    """Given two that differ, then which one counts is not guessed; given the same twice, then it is one."""
    twice = [(b"reconsume-verdict", b"retry"), (b"reconsume-verdict", b" retry ")]
    assert meant(verdict_from_response(200, twice, b"", RULES, WALL)) == Failed("retry-asked", asked=True)
    clash = [(b"reconsume-verdict", b"commit"), (b"reconsume-verdict", b"commit; reason=x")]
    assert meant(verdict_from_response(200, clash, b"", RULES, WALL)) == UNREADABLE


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (b"/login", "redirects to /login"),
        (b"https://user:pass@example.org/login?token=secret#x", "redirects to /login"),
        (b"https://example.org", ""),
        (b"http://[broken", ""),
        (b"/\xff\x00", "redirects to /\xff"),
    ],
)
def test_a_redirect_is_a_failure_that_names_its_path_alone(location: bytes, text: str) -> None:
    """Given a 3xx, then it is not followed, and neither host nor query of its target is told."""
    assert verdict_from_response(301, [(b"location", location)], b"", RULES, WALL) == Failed("http-301", text)
    assert verdict_from_response(500, [(b"location", location)], b"", RULES, WALL) == Failed("http-500")


@pytest.mark.parametrize(
    ("status", "retry_after", "expected"),
    [
        (429, None, 1_000),
        (429, b"0", 100),
        (429, b"2", 2_000),
        (503, b"301", 300_000),
        (503, b"999999999999", 300_000),
        (503, b"soon", 1_000),
        (503, b"Fri, 21 Nov 2025 01:53:30 GMT", 10_000),
        (503, b"Fri, 21 Nov 99999999999999999999 01:53:30 GMT", 1_000),
        (503, b"Fri, 21 Nov 2025 01:53:00 GMT", 100),
        (503, b"Fri, 21 Nov 2035 01:53:00 GMT", 300_000),
        (503, b"Fri, 99 Nov 99999 99:99:99 GMT", 1_000),
    ],
)
def test_a_throttle_waits_as_asked_between_100_ms_and_5_minutes(
    status: int, retry_after: bytes | None, expected: int
) -> None:
    """Given 429, or 503 with Retry-After in seconds or as a date, then no retry is spent."""
    noted = [] if retry_after is None else [(b"retry-after", retry_after)]
    assert verdict_from_response(status, noted, b"", VerdictRules(), WALL) == Throttled(expected)


def test_a_date_without_a_zone_is_utc_wherever_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a sidecar in another zone, then the date means the same."""
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    try:
        noted = [(b"retry-after", b"Fri, 21 Nov 2025 01:53:30 -0000")]
        assert verdict_from_response(429, noted, b"", VerdictRules(), WALL) == Throttled(10_000)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_503_without_retry_after_is_a_failure() -> None:
    """Given a plain 503, then it is a retry; and Retry-After beside a 500 changes nothing."""
    assert verdict_from_response(503, [], b"", VerdictRules(), WALL) == Failed("http-503")
    assert verdict_from_response(500, [(b"retry-after", b"5")], b"", VerdictRules(), WALL) == Failed("http-500")


def test_a_full_server_s_plain_503_asks_for_time_where_it_is_named() -> None:
    """Given `throttle_statuses` with 503, then a plain one spends no retry; without 429 in it, that one does."""
    rules = VerdictRules(throttle_statuses=frozenset({503}))
    assert verdict_from_response(503, [], b"", rules, WALL) == Throttled(1_000)
    assert verdict_from_response(429, [], b"", rules, WALL) == Failed("http-429")
    assert verdict_from_response(503, [(b"retry-after", b"7")], b"", VerdictRules(), WALL) == Throttled(7_000)


@pytest.mark.parametrize(
    ("said", "after"),
    [
        (b"postpone", 10_000),
        (b"postpone; delay=5s", 5_000),
        (b"Postpone;delay=15m", 900_000),
        (b"postpone; delay=1ms", 1_000),
        (b"postpone; delay=1d", 900_000),
        (b"postpone; delay=soon", 10_000),
    ],
)
def test_a_postponement_is_between_a_second_and_a_quarter_of_an_hour(said: bytes, after: int) -> None:
    """Given the word, then the delay is brought within its bounds; one that is not within them is odd."""
    found = verdict_from_response(200, [(b"reconsume-verdict", said)], b"", RULES, WALL)
    odd = said.endswith((b"1ms", b"1d", b"soon"))
    assert found == (OddAnswer(Postponed(after), ("delay",)) if odd else Postponed(after))


def test_dead_letter_statuses_win_over_a_throttle_and_a_2xx_over_them() -> None:
    """Given a list with 429 and 200 in it, then 429 is refused for good and 200 is taken."""
    rules = VerdictRules(frozenset({200, 429}))
    assert verdict_from_response(429, [(b"retry-after", b"5")], b"", rules, WALL) == Rejected("http-429")
    assert verdict_from_response(200, [], b"", rules, WALL) is COMMITTED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"verdicts": [{"id": "b", "verdict": "retry"}, {"id": "a", "verdict": "commit"}]}', COMMITTED),
        (b'{"verdicts": [{"id": "a", "verdict": "retry", "level": 2}]}', Failed("retry-asked", level=2, asked=True)),
        (b'{"verdicts": [{"id": "b", "verdict": "commit"}, 1, {}]}', COMMITTED),
        (b'{"verdicts": []}', COMMITTED),
        (b'{"verdicts": [{"id": "a", "verdict": "commit"}, {"id": "a", "verdict": "retry"}]}', UNREADABLE),
        (b'{"verdicts": [{"id": "a", "verdict": "commit"}, {"id": "a", "verdict": "commit"}]}', COMMITTED),
        (b'{"verdicts": [{"id": "a"}]}', UNREADABLE),
        (b'{"verdict": "commit", "verdicts": []}', COMMITTED),
        (b'{"verdicts": 1}', COMMITTED),
        (b"", COMMITTED),
    ],
)
def test_an_envelope_s_answer_may_be_a_list_with_this_record_in_it(text: bytes, expected: Outcome) -> None:
    """Given record `a` in an envelope, then its own entry counts; a list without it says nothing."""
    assert body(text, 200, "a") == expected


def test_the_text_of_a_failure_never_holds_the_body() -> None:
    """Given an error page with a secret, then no outcome tells it."""
    secret = b"secret-of-the-body"
    for text in (secret, b'{"verdict": "' + secret + b'"}', b'{"error": "' + secret + b'"}', b'{"delay": ' + secret):
        assert "secret" not in repr(body(text))


names = st.sampled_from([b"reconsume-verdict", b"content-type", b"retry-after"])
words = st.binary(max_size=80) | st.sampled_from([b"application/json", b"retry; delay=1s", b"commit", b"12"])
texts = st.binary(max_size=300) | st.from_regex(r'\{"verdicts?": .{0,60}\}').map(str.encode)


@given(
    status=st.integers(100, 999),
    noted=st.lists(st.tuples(names, words), max_size=4),
    text=texts,
    wall=st.integers(0, 2**45),
    identity=st.sampled_from(["", "a"]),
)
def test_no_answer_raises(status: int, noted: list[tuple[bytes, bytes]], text: bytes, wall: int, identity: str) -> None:
    """Given any bytes in headers and body, then there is an outcome, within its bounds."""
    if identity:
        outcome = meant(read_envelope_answer(identity, status, noted, text, RULES, wall))
    else:
        outcome = meant(verdict_from_response(status, noted, text, RULES, wall))
    assert isinstance(outcome, Committed | Failed | Rejected | Throttled)
    if isinstance(outcome, Throttled):
        assert 100 <= outcome.after_ms <= 300_000
    if isinstance(outcome, Failed | Rejected):
        assert len(outcome.text) <= 256
        assert outcome.reason.isascii()
