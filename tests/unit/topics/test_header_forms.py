"""The one strict form of each of our headers: what breaks it is a bad header, never an exception or a guess."""

import pytest

from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import OURS, BadHeader, Headers, RetryState, parse_retry_headers

TOPICS = frozenset({"orders", "invoices"})
LATEST = 1_763_700_000_000
LIFE = RetryState("orders:3:1024", "orders", times=1, redrives=2, due_at=1_763_690_010_000, reason="http-500: no stock")
RENDERED = render_retry_headers(LIFE, "billing", "billing-RETRY-10s")


def with_header(key: str, value: bytes | None) -> Headers:
    return [*without_header(key), (key, value)]


def without_header(key: str) -> Headers:
    return [header for header in RENDERED if header[0] != key]


def test_what_is_optional_has_sensible_defaults() -> None:
    headers: Headers = [("REAL_TOPIC", b"orders"), ("ORIGIN_MESSAGE_ID", b"orders:3:1024"), ("RECONSUMETIMES", b"7")]
    assert parse_retry_headers(headers, TOPICS, LATEST) == RetryState(id="orders:3:1024", topic="orders", times=7)


@pytest.mark.parametrize("key", ["REAL_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUMETIMES"])
def test_what_is_required_must_be_there(key: str) -> None:
    assert parse_retry_headers(without_header(key), TOPICS, LATEST) == BadHeader(f"{key} is missing")


@pytest.mark.parametrize("key", sorted(OURS))
def test_each_of_ours_is_there_at_most_once(key: str) -> None:
    value = dict(RENDERED).get(key, b"orders:3:1024")
    headers = [*with_header(key, value), (key, value)]
    assert parse_retry_headers(headers, TOPICS, LATEST) == BadHeader(f"{key} is there twice")


@pytest.mark.parametrize("key", sorted(OURS))
def test_none_of_ours_is_null(key: str) -> None:
    assert parse_retry_headers(with_header(key, None), TOPICS, LATEST) == BadHeader(f"{key} is null")


TEXTS = ["REAL_TOPIC", "ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "RETRY_REASON", "RETRY_GROUP"]


@pytest.mark.parametrize("key", TEXTS)
def test_none_of_ours_is_anything_but_utf8(key: str) -> None:
    found = parse_retry_headers(with_header(key, b"orders\xff"), TOPICS, LATEST)
    assert isinstance(found, BadHeader)
    assert found.text.startswith(f"{key} is ")


@pytest.mark.parametrize("times", [b"0", b"16", b"000016", b"999999"])
def test_one_to_six_digits_are_a_count(times: bytes) -> None:
    found = parse_retry_headers(with_header("RECONSUMETIMES", times), TOPICS, LATEST)
    assert isinstance(found, RetryState)
    assert found.times == int(times)


NO_NUMBERS = [
    b"",
    b"-1",
    b"+1",
    b"abc",
    b"1" + b"0" * 30,
    "０１".encode(),
    "١".encode(),
    b"\xb2",
    b" 1",
    b"1\n",
    b"1\x00",
    b"1_0",
    b"1.0",
    b"1e3",
    b"0x1",
]


@pytest.mark.parametrize(
    "key",
    [
        *("RECONSUMETIMES", "RETRY_REDRIVES", "RETRY_CYCLE"),
        *("RETRY_DUE_AT", "RETRY_REAL_TIMESTAMP", "RETRY_FIRST_FAILED_AT"),
    ],
)
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_a_number_of_any_other_form_is_a_bad_header(key: str, value: bytes) -> None:
    found = parse_retry_headers(with_header(key, value), TOPICS, LATEST)
    assert isinstance(found, BadHeader)
    assert found.text.startswith(f"{key} is ")


@pytest.mark.parametrize(
    ("key", "longest"),
    [
        ("RECONSUMETIMES", b"9" * 6),
        ("RETRY_REDRIVES", b"9" * 6),
        ("RETRY_CYCLE", b"9" * 6),
        ("RETRY_DUE_AT", b"9" * 16),
        ("RETRY_FIRST_FAILED_AT", b"9" * 16),
        ("RETRY_REAL_TIMESTAMP", b"%d" % (2**63 - 1)),
    ],
)
def test_a_number_has_a_largest_value(key: str, longest: bytes) -> None:
    assert isinstance(parse_retry_headers(with_header(key, longest), TOPICS, 10**16), RetryState)
    assert isinstance(parse_retry_headers(with_header(key, longest + b"0"), TOPICS, 10**17), BadHeader)
    assert isinstance(parse_retry_headers(with_header(key, b"%d" % 2**63), TOPICS, 2**63), BadHeader)


@pytest.mark.parametrize("topic", [b"payments", b"billing-RETRY-10s", b"", b"ORDERS", b"orders "])
def test_a_real_topic_that_is_not_the_groups_is_a_bad_header(topic: bytes) -> None:
    headers = with_header("REAL_TOPIC", topic)
    origin = ("ORIGIN_MESSAGE_ID", topic + b":0:0")
    headers = [origin if header[0] == "ORIGIN_MESSAGE_ID" else header for header in headers]
    found = parse_retry_headers(headers, TOPICS, LATEST)
    assert isinstance(found, BadHeader)
    assert found.text.startswith("REAL_TOPIC is ")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"orders",
        b"orders:3",
        b"orders:3:1024:5",
        b"orders:-3:1024",
        b"orders:3:-1",
        b"orders:03:1024",
        b"orders:3:01024",
        b"orders:3:",
        b"orders::1024",
        b":3:1024",
        b"orders:3:1024 ",
        b"orders:3:1024\n",
        b"or/ders:3:1024",
        b"invoices:3:1024",
        b"orders:2147483648:0",
        b"orders:0:9223372036854775808",
        "orders:３:1024".encode(),
    ],
)
def test_an_origin_id_names_one_record_of_the_real_topic(value: bytes) -> None:
    found = parse_retry_headers(with_header("ORIGIN_MESSAGE_ID", value), TOPICS, LATEST)
    assert isinstance(found, BadHeader)
    assert found.text.startswith("ORIGIN_MESSAGE_ID is ")


def test_an_origin_id_may_be_of_a_topic_that_is_drained_into_the_real_one() -> None:
    """Given a copy that says so itself, whatever the configuration of its reader says of that topic."""
    life = RetryState("orders-retry-1000:3:1024", "orders", times=1)
    headers = render_retry_headers(life, "billing", "billing-RETRY-10s")
    assert dict(headers)["RETRY_DRAINED"] == b"orders-retry-1000"
    assert parse_retry_headers(headers, TOPICS, LATEST) == life
    assert isinstance(parse_retry_headers(headers, {"parcels"}, LATEST), BadHeader)


@pytest.mark.parametrize(
    ("drained", "origin"),
    [
        (b"orders", b"orders:3:1024"),
        (b"orders", b"orders-retry-1000:3:1024"),
        (b"orders-retry-1000", b"orders:3:1024"),
        (b"orders-retry-1000", b"orders-retry-5000:3:1024"),
        (b"", b"orders:3:1024"),
    ],
)
def test_a_drained_topic_is_that_of_the_origin_id_and_not_the_real_one(drained: bytes, origin: bytes) -> None:
    headers: Headers = [*with_header("ORIGIN_MESSAGE_ID", origin), ("RETRY_DRAINED", drained)]
    assert isinstance(parse_retry_headers(headers, TOPICS, LATEST), BadHeader)


def test_a_due_time_further_off_than_allowed_is_a_bad_header() -> None:
    assert parse_retry_headers(RENDERED, TOPICS, LIFE.due_at) == LIFE
    found = parse_retry_headers(RENDERED, TOPICS, LIFE.due_at - 1)
    assert isinstance(found, BadHeader)
    assert "longest delay" in found.text


def test_a_reason_of_more_than_a_kibibyte_is_a_bad_header() -> None:
    assert isinstance(parse_retry_headers(with_header("RETRY_REASON", b"x" * 1024), TOPICS, LATEST), RetryState)
    assert isinstance(parse_retry_headers(with_header("RETRY_REASON", b"x" * 1025), TOPICS, LATEST), BadHeader)


def test_a_reason_that_would_steer_a_terminal_is_read_without_its_controls() -> None:
    found = parse_retry_headers(with_header("RETRY_REASON", "a\x1b[2J\nb\u202e".encode()), TOPICS, LATEST)
    assert isinstance(found, RetryState)
    assert found.reason == "a [2J b "
