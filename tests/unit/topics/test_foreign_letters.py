"""The dead letters of other systems: the bytes that each writes, what breaks their form, and anything at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.foreign_letters import (
    ForeignSystem,
    class_in_kebab_case,
    foreign_dead_letter,
    foreign_reason,
)
from reconsume.topics.reasons import LONGEST_REASON
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState, parse_retry_headers

SPRING, CONNECT, ROCKETMQ = ForeignSystem
PRODUCED, DIED, NOW = 1_786_864_805_192, 1_786_864_865_192, 1_786_950_000_000
POSITION = ("orders-dlt", 2, 11)


def int32(number: int) -> bytes:
    return number.to_bytes(4, signed=True)


def int64(number: int) -> bytes:
    return number.to_bytes(8, signed=True)


def spring(prefix: str = "kafka_dlt-", offset: bytes = int64(3_352)) -> Headers:
    return [
        (f"{prefix}original-topic", b"orders"),
        (f"{prefix}original-partition", int32(63)),
        (f"{prefix}original-offset", offset),
        (f"{prefix}original-timestamp", int64(PRODUCED)),
        (f"{prefix}original-timestamp-type", b"CreateTime"),
        (f"{prefix}exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
        (f"{prefix}exception-cause-fqcn", b"com.example.OutOfStockException"),
        (f"{prefix}exception-message", b"Listener failed;\nno stock"),
    ]


CONNECTED: Headers = [
    ("__connect.errors.topic", b"orders"),
    ("__connect.errors.partition", b"3"),
    ("__connect.errors.offset", b"1024"),
    ("__connect.errors.connector.name", b"orders-sink"),
    ("__connect.errors.stage", b"VALUE_CONVERTER"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    ("__connect.errors.exception.message", b"Converting byte[] failed"),
]
BRIDGED: Headers = [("RECONSUME_TIME", b"16"), ("ORIGIN_MESSAGE_ID", b"7F00"), ("BORN_TIMESTAMP", b"%d" % PRODUCED)]


def read(headers: Headers, system: ForeignSystem) -> RetryState | str:
    return foreign_dead_letter(headers, system, POSITION, DIED, NOW)


@pytest.mark.parametrize("prefix", ["kafka_dlt-", "kafka_"])
def test_spring_names_the_record_and_the_cause_of_the_listeners_exception(prefix: str) -> None:
    assert read(spring(prefix), SPRING) == RetryState(
        id="orders:63:3352",
        topic="orders",
        times=1,
        timestamp=PRODUCED,
        first_failed_at=DIED,
        reason="out-of-stock-exception: Listener failed; no stock",
    )


def test_spring_counts_the_retries_of_its_retry_topics_and_the_first_topic_is_the_origin() -> None:
    later = [("kafka_original-topic", b"orders-retry-1000"), ("retry_topic-attempts", int32(4))]
    state = read([*spring("kafka_"), *later], SPRING)
    assert isinstance(state, RetryState)
    assert (state.id, state.times) == ("orders:63:3352", 3)


def test_connect_writes_the_origin_as_text() -> None:
    assert read(CONNECTED, CONNECT) == RetryState(
        id="orders:3:1024",
        topic="orders",
        timestamp=DIED,
        first_failed_at=DIED,
        reason="data-exception: Converting byte[] failed",
    )


def test_a_record_of_rocketmq_has_its_position_in_the_bridged_topic_as_id() -> None:
    assert read(BRIDGED, ROCKETMQ) == RetryState(
        id="orders-dlt:2:11",
        topic="orders-dlt",
        times=16,
        timestamp=PRODUCED,
        first_failed_at=DIED,
        reason="imported-from-rocketmq",
    )


@pytest.mark.parametrize(
    "offset",
    [b"", b"3352", int64(-1), int32(5), b"\xff" * 9],
    ids=["empty", "digits", "negative", "four-bytes", "nine-bytes"],
)
def test_an_origin_with_one_malformed_number_is_no_origin(offset: bytes) -> None:
    assert read(spring(offset=offset), SPRING) == "it has no headers of spring with a topic, a partition and an offset"


def test_origins_of_two_stages_are_never_mixed() -> None:
    """The retry topics' set has no usable partition: the other set counts as a whole."""
    mixed = [("kafka_original-topic", b"payments"), ("kafka_original-offset", int64(1)), *spring()]
    state = read(mixed, SPRING)
    assert isinstance(state, RetryState)
    assert state.id == "orders:63:3352"


@pytest.mark.parametrize(
    ("headers", "system"),
    [
        ([(name, None) for name, _ in spring()], SPRING),
        (CONNECTED, SPRING),
        (spring(), CONNECT),
        ([("__connect.errors.topic", b"../etc"), *CONNECTED[1:]], CONNECT),
        ([CONNECTED[0], ("__connect.errors.partition", b"-1"), *CONNECTED[2:]], CONNECT),
        ([*CONNECTED[:2], ("__connect.errors.offset", "\u0663".encode())], CONNECT),
        (CONNECTED, ROCKETMQ),
        ([("RECONSUME_TIME", b"0")], ROCKETMQ),
    ],
    ids=["null", "connects", "springs", "path", "signed", "other-digits", "no-count", "count-0"],
)
def test_headers_of_no_such_dead_letter_give_a_sentence(headers: Headers, system: ForeignSystem) -> None:
    assert isinstance(read(headers, system), str)


def test_a_time_in_the_future_counts_as_now() -> None:
    state = foreign_dead_letter(CONNECTED, CONNECT, POSITION, NOW + 1, NOW)
    assert isinstance(state, RetryState)
    assert (state.timestamp, state.first_failed_at) == (NOW, NOW)


@pytest.mark.parametrize(
    ("name", "kebab"),
    [
        (b"com.example.OutOfStockException", "out-of-stock-exception"),
        (b"HTTPError", "http-error"),
        (b"com.example.Orders$Refused", "refused"),
        (b"com.example.Orders$1", "orders"),
        (b"java.sql.SQLException", "sql-exception"),
        (b"Net_Down", "net-down"),
        (b"A" * 200, "a" * 64),
        (b"", ""),
        (b"$", ""),
        (b"no class: a text", ""),
        (b"\x1b[31mRed", ""),
        (b"x" * 2_000, ""),
    ],
)
def test_the_class_is_the_simple_name_in_kebab_case(name: bytes, kebab: str) -> None:
    assert class_in_kebab_case(name) == kebab


def test_without_a_usable_class_the_reason_names_the_system() -> None:
    odd: Headers = [
        ("__connect.errors.exception.class.name", b"\xff"),
        ("__connect.errors.exception.message", b"\x1b[2J"),
    ]
    assert foreign_reason(odd, CONNECT) == "imported-from-connect: [2J"
    assert len(foreign_reason([(odd[1][0], b"x" * 10**6)], CONNECT)) < LONGEST_REASON


NAMES = st.sampled_from([name for name, _ in (*spring(), *spring("kafka_"), *CONNECTED, *BRIDGED)])
VALUES = st.none() | st.binary(max_size=20) | st.sampled_from([value for _, value in (*spring(), *CONNECTED, *BRIDGED)])


@given(headers=st.lists(st.tuples(NAMES, VALUES)), system=st.sampled_from(ForeignSystem), at=st.integers(0, NOW * 2))
def test_whatever_the_headers_are_what_is_read_can_be_written_and_read_again(
    headers: Headers, system: ForeignSystem, at: int
) -> None:
    state = foreign_dead_letter(headers, system, POSITION, at, NOW)
    if isinstance(state, RetryState):
        written = render_retry_headers(state, "billing", "billing-DLQ")
        assert parse_retry_headers(written, {state.topic}, NOW) == state
