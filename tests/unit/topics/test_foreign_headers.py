"""The retry headers of other systems: real examples of each, what breaks their form, and anything at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.foreign_headers import SYSTEMS, Foreign, foreign_life, read_foreign
from reconsume.topics.render_headers import render_retry_headers, without_ours
from reconsume.topics.retry_headers import BadHeader, Headers, RetryState, parse_retry_headers

AT = 1_786_864_805_192
"""Epoch ms; as a BigInteger of Java it has six bytes."""
LATER = AT + 60_000
ALL = tuple(SYSTEMS)


def int32(number: int) -> bytes:
    return number.to_bytes(4, signed=True)


def int64(number: int) -> bytes:
    return number.to_bytes(8, signed=True)


def spring(*attempts: int) -> Headers:
    """What Spring's retry topics carry after so many deliveries: one more set each time, the origin once."""
    sets: Headers = [
        ("kafka_original-topic", b"orders"),
        ("kafka_original-partition", int32(63)),
        ("kafka_original-offset", int64(3_352)),
        ("kafka_original-timestamp", int64(AT)),
        ("kafka_original-timestamp-type", b"CreateTime"),
        ("kafka_dlt-original-consumer-group", b"billing"),
        ("kafka_exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ]
    for attempt in attempts:
        sets += [
            ("retry_topic-original-timestamp", bytes.fromhex("01a009712548")),
            ("retry_topic-attempts", int32(attempt)),
            ("retry_topic-backoff-timestamp", (AT + attempt * 1_000).to_bytes(6)),
        ]
    return sets


PULSAR: Headers = [
    ("DELAY_TIME", b"10000"),
    ("ORIGIN_MESSAGE_ID", b"12033:201:0"),
    ("ORIGIN_MESSAGE_IDY_TIME", b"12033:201:0"),
    ("REAL_TOPIC", b"persistent://shop/ns/orders"),
    ("RECONSUMETIMES", b"3"),
    ("RETRY_TOPIC", b"persistent://shop/ns/orders-billing-RETRY"),
]
SMALLRYE: Headers = [
    ("delayed-retry-exception-class-name", b"java.lang.IllegalStateException"),
    ("delayed-retry-reason", b"no stock"),
    ("delayed-retry-topic", b"orders_retry_10000"),
    ("delayed-retry-partition", b"1"),
    ("delayed-retry-offset", b"7"),
    ("delayed-retry-topic", b"orders"),
    ("delayed-retry-partition", b"3"),
    ("delayed-retry-offset", b"1024"),
    ("delayed-retry-original-timestamp", b"%d" % AT),
    ("delayed-retry-first-processing-timestamp", b"%d" % (AT + 5)),
    ("delayed-retry-count", b"0"),
    ("delayed-retry-count", b"1"),
]
ROCKETMQ: Headers = [
    ("RETRY_TOPIC", b"orders"),
    ("RECONSUME_TIME", b"2"),
    ("MAX_RECONSUME_TIMES", b"16"),
    ("DELAY", b"4"),
    ("REAL_TOPIC", b"%RETRY%billing"),
    ("ORIGIN_MESSAGE_ID", b"7F000001000012A4A2B4C6D8E0F20001"),
    ("BORN_TIMESTAMP", b"%d" % AT),
]
DEAD_IN_SPRING: Headers = [
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", int32(3)),
    ("kafka_dlt-original-offset", int64(1_024)),
    ("kafka_dlt-original-timestamp", int64(AT)),
    ("kafka_dlt-original-topic", b"orders.DLT"),
    ("kafka_dlt-original-partition", int32(0)),
    ("kafka_dlt-original-offset", int64(5)),
    ("kafka_dlt-original-timestamp", int64(LATER)),
]
DEAD_IN_SMALLRYE: Headers = [
    ("dead-letter-exception-class-name", b"java.lang.IllegalStateException"),
    ("dead-letter-reason", b"Something went wrong"),
    ("dead-letter-topic", b"movies"),
    ("dead-letter-partition", b"0"),
    ("dead-letter-offset", b"0"),
]

EXAMPLES: dict[str, tuple[Headers, Foreign]] = {
    "spring": (spring(2, 3), Foreign("spring", 2, AT, 0, "orders", 63, 3_352)),
    "spring, one set": (spring(2), Foreign("spring", 1, AT, 0, "orders", 63, 3_352)),
    "spring before 2.8": ([("retry_topic-attempts", b"\x05")], Foreign("spring", 4)),
    "spring's dead letter": (DEAD_IN_SPRING, Foreign("spring", 1, AT, 0, "orders", 3, 1_024)),
    "pulsar": (PULSAR, Foreign("pulsar", 3, topic="persistent://shop/ns/orders", id="12033:201:0")),
    "pulsar's old key": (
        [("RECONSUMETIMES", b"1"), ("ORIGIN_MESSAGE_IDY_TIME", b"123:4:-1")],
        Foreign("pulsar", 1, id="123:4:-1"),
    ),
    "smallrye": (SMALLRYE, Foreign("smallrye", 2, AT, AT + 5, "orders", 3, 1_024)),
    "smallrye's first retry": ([("delayed-retry-count", b"0")], Foreign("smallrye", 1)),
    "smallrye's dead letter": (DEAD_IN_SMALLRYE, Foreign("smallrye", 1, 0, 0, "movies", 0, 0)),
    "rocketmq": (
        ROCKETMQ,
        Foreign("rocketmq", 2, AT, 0, "orders", id="7F000001000012A4A2B4C6D8E0F20001"),
    ),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_what_a_system_writes_is_read(case: str) -> None:
    headers, expected = EXAMPLES[case]
    assert read_foreign([("a", b"1"), *headers, ("a", None)], ALL) == expected


@pytest.mark.parametrize("case", EXAMPLES)
def test_nothing_is_read_of_a_system_that_was_not_named(case: str) -> None:
    headers, expected = EXAMPLES[case]
    assert read_foreign(headers, [name for name in ALL if name != expected.system]) is None
    assert read_foreign(headers, ()) is None


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("a", b"1"), ("RETRY_TOPIC", b"orders"), ("DELAY", b"4")],
        [("RECONSUME_TIME", b"0"), ("BORN_TIMESTAMP", b"%d" % AT)],  # what RocketMQ's proxy puts on first messages
        [("RECONSUMETIMES", b"0"), ("REAL_TOPIC", b"orders")],
        [("retry_topic-attempts", int32(1)), ("kafka_original-topic", b"orders")],
        [("kafka_dlt-original-consumer-group", b"billing")],
    ],
)
def test_a_record_that_was_never_retried_is_not_foreign(headers: Headers) -> None:
    assert read_foreign(headers, ALL) is None


TEXT_COUNTS = {"pulsar": "RECONSUMETIMES", "smallrye": "delayed-retry-count", "rocketmq": "RECONSUME_TIME"}


@pytest.mark.parametrize(
    "value", [None, b"", b"-1", b"+1", b"1_0", b" 1", b"1.0", b"abc", b"1000000", b"1" + b"0" * 30, "١".encode()]
)
@pytest.mark.parametrize("system", TEXT_COUNTS)
def test_a_count_that_is_no_number_counts_as_none(system: str, value: bytes | None) -> None:
    origin: Headers = [("dead-letter-topic", b"orders")]
    assert read_foreign([*origin, (TEXT_COUNTS[system], value)], [system]) is None


@pytest.mark.parametrize(
    "value",
    [None, b"", b"\x00", b"\x00\x03", int64(3), int32(0), int32(-1), int32(32_768), int32(2**31 - 1)],
)
def test_springs_attempts_are_a_number_that_spring_itself_takes(value: bytes | None) -> None:
    assert read_foreign([("kafka_original-topic", b"orders"), ("retry_topic-attempts", value)], ["spring"]) is None


def test_a_later_count_that_is_broken_hides_an_earlier_good_one() -> None:
    """As in their clients, which look at the last value alone."""
    assert read_foreign([*spring(2, 3), ("retry_topic-attempts", b"3 ")], ALL) is None


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("delayed-retry-original-timestamp", b"-5", "timestamp"),
        ("delayed-retry-original-timestamp", b"9" * 19, "timestamp"),
        ("delayed-retry-first-processing-timestamp", b"soon", "first_failed_at"),
        ("delayed-retry-topic", b"or ders", "topic"),
        ("delayed-retry-topic", b"\xff", "topic"),
        ("delayed-retry-partition", b"%d" % 2**31, "partition"),
        ("delayed-retry-offset", b"%d" % 2**63, "offset"),
    ],
)
def test_what_is_broken_beside_a_good_count_is_absent(key: str, value: bytes, field: str) -> None:
    found = read_foreign([*SMALLRYE, (key, value)], ["smallrye"])
    assert found is not None
    default = getattr(Foreign("smallrye", 2), field)
    assert (found.times, getattr(found, field)) == (2, default)


def test_an_original_timestamp_of_springs_that_is_negative_gives_way_to_the_next_header() -> None:
    headers = [*spring(2), ("retry_topic-original-timestamp", b"\xff")]
    assert read_foreign(headers, ALL) == Foreign("spring", 1, AT, 0, "orders", 63, 3_352)


def test_the_system_named_first_wins() -> None:
    assert [
        found.system
        for systems in (("spring", "pulsar"), ("pulsar", "spring"))
        if (found := read_foreign([*spring(2), *PULSAR], systems)) is not None
    ] == ["spring", "pulsar"]


PLACE = ("orders-retry-0", 2, 9)


def test_the_life_has_their_count_and_times_and_our_place() -> None:
    foreign = Foreign("smallrye", 2, AT, AT + 5, "orders", 3, 1_024)
    assert foreign_life(foreign, PLACE, LATER, LATER) == RetryState(
        id="orders-retry-0:2:9",
        topic="orders-retry-0",
        times=2,
        timestamp=AT,
        first_failed_at=AT + 5,
        reason="retried-by-smallrye",
    )


@pytest.mark.parametrize("said", [0, LATER + 1, 2**63 - 1])
def test_a_time_that_is_not_past_is_not_believed(said: int) -> None:
    life = foreign_life(Foreign("smallrye", 2, said, said), PLACE, AT, LATER)
    assert (life.timestamp, life.first_failed_at) == (AT, 0)


KEYS = st.sampled_from([rule.header for system in SYSTEMS.values() for rule in system.rules]) | st.text(max_size=8)
NUMBERS = st.integers(0, 2**64).map(lambda number: b"%d" % number)
VALUES = st.none() | st.binary(max_size=12) | NUMBERS | st.sampled_from([b"orders", b"3", int32(3)])


@given(st.lists(st.tuples(KEYS, VALUES), max_size=30), st.permutations(ALL))
def test_whatever_the_headers_a_life_that_we_can_write_and_read_comes_of_them(
    headers: Headers, systems: list[str]
) -> None:
    foreign = read_foreign(headers, systems)
    if foreign is None:
        return
    life = foreign_life(foreign, PLACE, AT, LATER)
    assert life.times >= 1
    assert 0 <= life.first_failed_at <= LATER
    assert 0 < life.timestamp <= LATER
    copy = [*without_ours(headers), *render_retry_headers(life, "billing", "billing-RETRY-10s")]
    read_back = parse_retry_headers(copy, ["orders-retry-0"], LATER)
    assert not isinstance(read_back, BadHeader)
    assert read_back == life
