"""Headers: what our own say is read strictly, what is not ours passes untouched, and nothing hostile raises."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.topics.dead_letter_headers import DEAD_LETTER, dead_letter_headers
from reconsume.topics.reasons import LONGEST_REASON, reason_class, reason_text
from reconsume.topics.render_headers import render_retry_headers, without_ours
from reconsume.topics.retry_headers import OURS, BadHeader, Headers, RetryState, parse_retry_headers
from reconsume.topics.retry_order import Order

TOPICS = frozenset({"orders", "invoices"})
LATEST = 1_763_700_000_000
LIFE = RetryState(
    id="orders:3:1024",
    topic="orders",
    times=1,
    redrives=2,
    due_at=1_763_690_010_000,
    timestamp=1_763_689_999_000,
    first_failed_at=1_763_690_000_000,
    reason="http-500: no stock",
)
RENDERED = render_retry_headers(LIFE, "billing", "billing-RETRY-10s")

PRINTABLE = st.text(max_size=250).filter(str.isprintable)  # at most four bytes a character
LIVES = st.builds(
    lambda topic, partition, offset, **rest: RetryState(id=f"{topic}:{partition}:{offset}", topic=topic, **rest),
    topic=st.sampled_from(sorted(TOPICS)),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    times=st.integers(0, 999_999),
    redrives=st.integers(0, 999_999),
    cycle=st.just(0) | st.integers(0, 999_999),
    due_at=st.integers(0, LATEST),
    timestamp=st.integers(0, 2**63 - 1),
    first_failed_at=st.integers(0, 10**16 - 1),
    reason=PRINTABLE,
    order=st.none() | st.builds(Order, st.integers(0, 2**63 - 1), st.integers(0, 999_999_999)),
    behind=st.booleans(),
)
OWN_KEYS = st.sampled_from(sorted(OURS | DEAD_LETTER))
# Lone surrogates too: the client can hand over any `str`.
KEYS = st.text(st.characters(), max_size=8)
VALUES = st.none() | st.binary(max_size=20)
GOOD_VALUES = st.sampled_from([value for _, value in RENDERED] + [b"orders:0:0", b"0", b"-1"])
HOSTILE = st.lists(st.tuples(OWN_KEYS | KEYS, VALUES | GOOD_VALUES), max_size=14)


def test_what_copies_have_in_common_is_one_object_for_all_of_them() -> None:
    """Thousands of copies wait for a transaction."""
    other = render_retry_headers(replace(LIFE, id="orders:3:1025", timestamp=7), "billing", "billing-RETRY-10s")
    apart = {name for (name, _), two in zip(RENDERED, other, strict=True) if not any(two is one for one in RENDERED)}
    assert apart == {"ORIGIN_MESSAGE_ID", "RETRY_DUE_AT", "RETRY_REAL_TIMESTAMP", "RETRY_FIRST_FAILED_AT"}


def test_the_rendered_headers_are_those_of_the_contract() -> None:
    assert RENDERED == [
        ("REAL_TOPIC", b"orders"),
        ("ORIGIN_MESSAGE_ID", b"orders:3:1024"),
        ("RETRY_TOPIC", b"billing-RETRY-10s"),
        ("RECONSUMETIMES", b"1"),
        ("RETRY_REDRIVES", b"2"),
        ("RETRY_DUE_AT", b"1763690010000"),
        ("RETRY_REAL_TIMESTAMP", b"1763689999000"),
        ("RETRY_FIRST_FAILED_AT", b"1763690000000"),
        ("RETRY_REASON", b"http-500: no stock"),
        ("RETRY_GROUP", b"billing"),
    ]


def test_a_copy_names_its_cycle_unless_it_is_0() -> None:
    """Given a reset, then RETRY_CYCLE is a header more; without one the bytes are those of before."""
    added = [
        header
        for header in render_retry_headers(replace(LIFE, cycle=3), "billing", "billing-RETRY-10s")
        if header not in RENDERED
    ]
    assert added == [("RETRY_CYCLE", b"3")]


@given(LIVES)
def test_a_rendered_life_is_read_back(life: RetryState) -> None:
    headers = [("a", None), *render_retry_headers(life, "billing", "billing-RETRY"), ("a", b"")]
    assert parse_retry_headers(headers, TOPICS, LATEST) == life


def test_kafkas_missing_timestamp_does_not_make_our_own_copy_unreadable() -> None:
    life = RetryState(id="orders:0:0", topic="orders", timestamp=-1)
    assert parse_retry_headers(render_retry_headers(life, "billing", "billing-RETRY"), TOPICS, LATEST) == RetryState(
        "orders:0:0", "orders"
    )


@given(HOSTILE)
@example([("RECONSUMETIMES", "²".encode()), ("REAL_TOPIC", b"orders"), ("ORIGIN_MESSAGE_ID", b"orders:0:0")])
def test_no_headers_raise_and_what_is_read_is_within_its_bounds(headers: Headers) -> None:
    found = parse_retry_headers(headers, TOPICS, LATEST)
    if isinstance(found, BadHeader):
        found.text.encode()
        assert 0 < len(found.text) < 500
        return
    assert found.topic in TOPICS
    assert found.id.startswith(f"{found.topic}:")
    assert 0 <= found.times <= 999_999
    assert 0 <= found.redrives <= 999_999
    assert 0 <= found.cycle <= 999_999
    assert 0 <= found.due_at <= LATEST
    assert len(found.reason.encode()) <= LONGEST_REASON
    assert parse_retry_headers(render_retry_headers(found, "billing", "billing-RETRY"), TOPICS, LATEST) == found


@given(st.sampled_from(range(len(RENDERED))), VALUES)
def test_one_broken_header_of_ours_is_refused_or_read_again_as_it_was(index: int, value: bytes | None) -> None:
    headers = list(RENDERED)
    headers[index] = (headers[index][0], value)
    found = parse_retry_headers(headers, TOPICS, LATEST)
    if isinstance(found, RetryState):
        assert parse_retry_headers(render_retry_headers(found, "billing", "billing-RETRY"), TOPICS, LATEST) == found


@given(st.lists(st.tuples(KEYS, VALUES), max_size=8), LIVES)
def test_the_records_own_headers_stay_as_they_were(own: Headers, life: RetryState) -> None:
    ours = render_retry_headers(life, "billing", "billing-DLQ") + dead_letter_headers(life, "billing", 17)
    mixed = own[:3] + ours + own[3:]
    assert without_ours(mixed) == [header for header in own if header[0] not in OURS | DEAD_LETTER]
    assert without_ours(without_ours(mixed)) == without_ours(mixed)


def test_order_duplicates_and_nulls_of_the_records_own_headers_are_kept() -> None:
    own: Headers = [("b", b"1"), ("a", None), ("b", b"1"), ("a", b""), ("traceparent", b"00-x"), ("retry_topic", b"x")]
    assert without_ours([*RENDERED, *own]) == own


def test_our_headers_are_replaced_and_never_grow() -> None:
    headers: Headers = [("a", b"1")]
    for times in range(5):
        headers = without_ours(headers) + render_retry_headers(
            RetryState("orders:0:0", "orders", times), "billing", "billing-RETRY"
        )
    assert len(headers) == 1 + len(RENDERED)


def test_a_dead_letter_carries_the_six_headers_of_kip_1191() -> None:
    assert dead_letter_headers(LIFE, "billing", 17) == [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"1024"),
        ("__dlq.errors.group", b"billing"),
        ("__dlq.errors.delivery.count", b"17"),
        ("__dlq.errors.message", b"http-500: no stock"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("timeout", "", "timeout"),
        ("http-500", "no stock", "http-500: no stock"),
        ("http-500", "a\r\nb\x00\x1b[0m\x85", "http-500: a b [0m"),
        ("http-500", "\udcff", "http-500"),
    ],
)
def test_a_reason_is_its_class_and_a_printable_text(name: str, text: str, reason: str) -> None:
    assert reason_text(name, text) == reason


def test_a_long_reason_is_cut_between_characters() -> None:
    assert reason_text("c", "é" * 600) == "c: " + "é" * 200
    assert len(reason_text("c" * 5_000, "x")) == LONGEST_REASON


@given(st.text(st.characters(), max_size=20), st.text(st.characters(), max_size=1_500))
def test_every_reason_is_printable_and_at_most_a_kibibyte(name: str, text: str) -> None:
    reason = reason_text(name, text)
    assert reason.isprintable()
    assert len(reason.encode()) <= LONGEST_REASON
    life = RetryState("orders:0:0", "orders", reason=reason)
    found = parse_retry_headers(render_retry_headers(life, "billing", "billing-RETRY"), TOPICS, LATEST)
    assert isinstance(found, RetryState)
    assert found.reason == reason


@given(st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True), st.text(max_size=50))
def test_the_class_of_a_reason_comes_back(name: str, text: str) -> None:
    assert reason_class(reason_text(name, text)) == name
