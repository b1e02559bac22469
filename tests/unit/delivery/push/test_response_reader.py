"""Answers from bytes to outcomes: however they are cut into pieces, and whatever they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome, Throttled
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.response_reader import (
    BROKEN,
    LOST,
    PLAIN_REMEMBERED,
    TOO_LONG,
    Judged,
    Plain,
    ResponseReader,
)
from reconsume.sidecar.delivery.verdict import VerdictRules

OK = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 2\r\n\r\nok"
RETRY = b"HTTP/1.1 200 OK\r\nReconsume-Verdict: retry\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
TRAILER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nReconsume-Verdict: retry\r\n\r\n"
JSON = b'HTTP/1.1 500 X\r\ncontent-type: application/json\r\nContent-Length: 21\r\n\r\n{"verdict": "commit"}'
INTERIM = b"HTTP/1.1 103 Early Hints\r\nReconsume-Verdict: retry\r\nContent-Type: application/json\r\n\r\n"


def a_reading(plain: Plain | None = None) -> ResponseReader:
    return ResponseReader(VerdictRules(), lambda: Now(0, 0), {} if plain is None else plain, lambda kinds: None)


def read(reading: ResponseReader, data: bytes, cuts: list[int]) -> Judged | None:
    """The outcome when `data` arrives cut at these places; nothing may be told before its last byte."""
    places = sorted({cut % len(data) for cut in cuts} - {0})
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    for piece in pieces[:-1]:
        assert reading.feed(piece) is None
    return reading.feed(pieces[-1])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (OK, COMMITTED),
        (RETRY, Failed("retry-asked", asked=True)),
        (CHUNKED, COMMITTED),
        (TRAILER, COMMITTED),
        (JSON, COMMITTED),
        (INTERIM + OK, COMMITTED),
        (INTERIM + INTERIM + RETRY, Failed("retry-asked", asked=True)),
    ],
)
@given(cuts=st.lists(st.integers(1, 1000), max_size=6))
def test_an_answer_means_the_same_however_it_is_cut(data: bytes, expected: Outcome, cuts: list[int]) -> None:
    """Given the same answers on one connection, whole, then in pieces, then whole again, then each means the same."""
    reading = a_reading()
    for places in ([], cuts, []):
        assert read(reading, data, places) == expected
        assert reading.keep_alive


def test_answers_before_do_not_colour_the_next() -> None:
    """Given answers of all kinds after one another on one connection, then each stands alone."""
    reading = a_reading()
    found = [reading.feed(data) for data in (RETRY, OK, JSON, RETRY, CHUNKED, OK)]
    assert found == [
        Failed("retry-asked", asked=True),
        COMMITTED,
        COMMITTED,
        Failed("retry-asked", asked=True),
        COMMITTED,
        COMMITTED,
    ]


def test_an_answer_that_is_known_is_not_known_in_the_middle_of_another() -> None:
    """Given a body that looks like a remembered answer, then it is a body."""
    reading = a_reading()
    assert reading.feed(OK) is COMMITTED
    assert reading.feed(b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n" % len(OK)) is None
    assert reading.feed(OK) == Failed("http-500")


def test_remembered_answers_are_bounded_and_only_those_that_their_status_judged() -> None:
    """Given a service whose answers all differ, and one whose header decides, then memory stays small."""
    plain: Plain = {}
    reading = a_reading(plain)
    assert reading.feed(RETRY) == Failed("retry-asked", asked=True)
    assert plain == {}
    for number in range(10 * PLAIN_REMEMBERED):
        assert reading.feed(b"HTTP/1.1 200 OK\r\nX: %d\r\nContent-Length: 0\r\n\r\n" % number) is COMMITTED
    assert 0 < len(plain) <= PLAIN_REMEMBERED


def test_a_remembered_answer_means_the_same_as_when_it_was_read() -> None:
    """Given the same failure twice, then the second reading, which parses nothing, says what the first said."""
    plain: Plain = {}
    answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno"
    first = a_reading(plain).feed(answer)
    assert first == Failed("http-502")
    assert plain == {answer: first}
    assert a_reading(plain).feed(answer) is first


@pytest.mark.parametrize("more", [b"X", OK, OK[:5], b"HTTP/1.1 500 X\r\n\r\n"])
def test_an_answer_with_more_behind_it_counts_and_ends_the_connection(more: bytes) -> None:
    """Given bytes that nobody asked for, then what was answered stands, and nothing more is read."""
    reading = a_reading()
    assert reading.feed(OK + more) is COMMITTED
    assert not reading.keep_alive


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", LOST),
        (b"HTTP/1.1 200 OK\r\n", LOST),
        (OK[:-1], COMMITTED),
        (CHUNKED[:-2], COMMITTED),
        (JSON[:-1], LOST),
        (b"HTTP/1.1 429 X\r\nContent-Length: 9\r\n\r\nslow", Throttled(1_000)),
        (b"HTTP/1.1 200 X\r\nReconsume-Verdict: retry\r\nContent-Length: 9\r\n\r\n", Failed("retry-asked", asked=True)),
        (INTERIM, LOST),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", COMMITTED),
        (b"HTTP/1.0 500 X\r\n\r\n", Failed("http-500")),
        (b'HTTP/1.1 500 X\r\nContent-Type: application/json\r\n\r\n{"verdict": "commit"}', COMMITTED),
    ],
)
def test_the_end_of_the_stream_completes_only_what_nothing_else_ends(data: bytes, expected: Outcome) -> None:
    """Given a service that closes, then its head decides, unless what is cut off could be a verdict."""
    reading = a_reading()
    assert not data or reading.feed(data) is None
    assert reading.end_response() == expected


@pytest.mark.parametrize(
    "data",
    [
        b"220 mail\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
    ],
)
def test_what_is_not_http_1_is_broken(data: bytes) -> None:
    """Given such bytes, then the outcome comes at once and the connection ends."""
    reading = a_reading()
    assert reading.feed(data) == BROKEN
    assert not reading.keep_alive


REPEATED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length:2 \r\nReconsume-Verdict: retry\r\n\r\nok"
LISTED = b"HTTP/1.1 200 OK\r\nReconsume-Verdict: retry\r\nContent-Length: 2, 2\r\n\r\nok"


@pytest.mark.parametrize("data", [REPEATED, LISTED, INTERIM + REPEATED])
@given(cuts=st.lists(st.integers(1, 1000), max_size=6))
def test_a_length_that_is_there_twice_is_one(data: bytes, cuts: list[int]) -> None:
    """Given the same length twice, however the head is cut, then it counts once, and the connection serves again."""
    reading = a_reading()
    for answer, expected in ((data, Failed("retry-asked", asked=True)), (OK, COMMITTED)):
        assert read(reading, answer, cuts if answer is data else []) == expected
        assert reading.keep_alive


@pytest.mark.parametrize("status", [200, 429])
def test_a_long_body_is_dropped_and_the_status_decides(status: int) -> None:
    """Given a body of a megabyte, then the connection serves again; given more, then it ends, and the answer counts."""
    expected: Outcome = COMMITTED if status == 200 else Throttled(1_000)
    for size, keeps in ((64 * 1024 + 1, True), (1 << 20, True), (1 << 21, False)):
        data = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, size) + b"b" * size
        reading = a_reading()
        pieces = (data[at : at + 65_536] for at in range(0, len(data), 65_536))
        assert next(filter(None, map(reading.feed, pieces))) == expected
        assert reading.keep_alive == keeps


def test_a_verdict_may_have_64_kib_in_chunks_of_one_byte() -> None:
    """Given a verdict of the greatest length in the smallest chunks, then their framing costs nothing of the limit."""
    body = b'{"verdict": "retry", "more": "' + b"m" * (64 * 1024 - 32) + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert len(body) == 64 * 1024
    assert read(a_reading(), head + chunks, list(range(0, 6 * len(body), 10_000))) == Failed("retry-asked", asked=True)


def test_a_head_may_have_64_kib_and_not_a_multiple() -> None:
    """Given a head of 60 KiB in pieces, then it is read; given one without end, or trailers without end, then not."""
    line = b"X-Long: " + b"x" * 1_000 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\n" + line * 60 + b"Content-Length: 0\r\n\r\n"
    assert read(a_reading(), head, list(range(0, len(head), 999))) is COMMITTED
    endless, trailers = a_reading(), a_reading()
    endless.feed(b"HTTP/1.1 200 OK\r\n")
    trailers.feed(b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    assert next(filter(None, (endless.feed(line) for _ in range(80)))) == TOO_LONG
    assert next(filter(None, (trailers.feed(line) for _ in range(80)))) == Failed("http-500")
    assert not endless.keep_alive
    assert not trailers.keep_alive


@given(
    pieces=st.lists(st.binary(max_size=60) | st.sampled_from([OK, b"HTTP/1.1 200 ", b"\r\n", b"\r\n\r\n"]), max_size=8)
)
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    """Given any bytes, then there is an outcome or the wish for more, and an end."""
    reading = a_reading()
    for piece in pieces:
        if reading.feed(piece) is not None and not reading.keep_alive:
            return
    assert reading.end_response() is not None
