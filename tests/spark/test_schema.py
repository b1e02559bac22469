"""What is an event and what is not: Spark takes what Reconsume writes, and nothing that `decode_event` refuses."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from reconsume.spark import schema
from reconsume.topics.events import AHEAD, Event, decode_event, encode_event
from tests.spark.frames import batch
from tests.spark.histories import few, randoms
from tests.support.event_histories import BASE, EVENT, TOPIC, Record, changed

TEXT = encode_event(EVENT).decode()
BUILTINS = msgspec.to_builtins(EVENT)
NUMBERS = (-1, 0, 1, 1.0, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**40)
ODD: tuple[Any, ...] = (*NUMBERS, None, True, "", "5", 'x\0|"é😀', [], [1], {}, {"a": 1})
COUNTS = ("1.0", "1e0", "-0", "01", "+1", "NaN", "0x1", "1" * 2000)
PAIR = r"\ud83d\ude00"
ESCAPES = (r"\ud800", r"\udc00", PAIR, r"\\ud800", r"\\\ud800", r"\u0000", rf"\\{PAIR}", r"\ude00\ud83d", r"\q", r"\/")
UNKNOWN = ('"x":NaN', '"x":-Infinity', '"x":1e999', '"x":"\x01"', '"x":01', "x:1", "'x':1", '"x":1,', '"x":{"v":2}')
CUTS = (b"", b'"', b"0", b"-", b"\\u", b"}", b"\xc3")


def replaced(old: str, new: str) -> bytes:
    """EVENT's JSON with one change."""
    assert old in TEXT
    return TEXT.replace(old, new, 1).encode("utf-8", "surrogatepass")


def added(more: str) -> bytes:
    """EVENT's JSON and something behind its last field."""
    return f"{TEXT[:-1]},{more}}}".encode()


VALUES: list[bytes | None] = [
    *(msgspec.json.encode({**BUILTINS, name: odd}) for name in BUILTINS for odd in ODD),
    *(msgspec.json.encode({key: BUILTINS[key] for key in BUILTINS if key != name}) for name in BUILTINS),
    *(None, b"", b" ", b"null", b"[]", b"{}", b"5", b'"x"', b"\xff", b"\xef\xbb\xbf" + TEXT.encode()),
    *(f"[{TEXT}]".encode(), f"{TEXT}{TEXT}".encode(), f"{TEXT},{TEXT}".encode(), f"{TEXT} x".encode()),
    *(f" \n{TEXT}\t ".encode(), f"{TEXT}]".encode(), f'{TEXT},"z":1}}'.encode(), TEXT[:-1].encode()),
    *(replaced('"times":1', f'"times":{number}') for number in COUNTS),
    *(replaced("http-500", text) for text in (*ESCAPES, "\ud800", "\x01")),
    *(added(more) for more in (*UNKNOWN, '"x":"\\ud800"', '"\\ud800":1', '"z":1,"e":2')),
    *(added(f'"x":{"[" * depth}{"]" * depth}') for depth in (3, 4, 50)),
    *(added(more) for more in (r'"x":"[[[[{{{{\"[[["', '"x":[[[{}]]]', '"x":[{"a":[]},{"b":[]}]')),
    *(
        added(f'"text":{text}')
        for text in ('"no such sku"', '""', "null", "5", "true", "[]", "{}", r'"\u0000é"', r'"\ud800"')
    ),
    *(
        added(f'"{name}":{number}')
        for name in ("retries", "last_failed_at")
        for number in ("1", "null", "-1", "2147483648", "9223372036854775808", '"1"', "true", "1.0", "[]", "1e0")
    ),
    *(
        added(f'"cycle":{number}')
        for number in ("0", "1", "null", "-1", "2147483647", "2147483648", '"1"', "true", "1.0", "[]", "1e0")
    ),
    *(added(f'"parked":{value}') for value in ("true", "false", "null", "1", '"true"', "[]")),
    *(added(f'"text":null,"retries":{number},"last_failed_at":7') for number in ("1", "null", '"1"')),
    TEXT.replace("{", '{"retries":7,"text":"in another place",', 1).encode(),
    replaced("{", '{"times":"no",'),
    *(replaced('"times"', '"t\\u0069mes"'), replaced('"times"', '"Times"'), TEXT.replace('"', "'").encode()),
]
"""Values of which Spark takes none that `decode_event` refuses, and reads the others as that does."""

TAKEN: list[bytes | None] = [
    *(encode_event(changed(**change)) for change in ({}, {"level": None}, {"text": 'é"\\/\u2028'}, {"cycle": 3})),
    encode_event(changed(text="x", retries=3, last_failed_at=BASE, parked=True, due=0)),
    *(
        added(more)
        for more in (
            '"x":1',
            '"x":"a plain text","y":null',
            '"x":2.5e3,"z":true',
            '"text":null,"retries":3,"parked":null',
            '"x":"é"',
        )
    ),
]
"""Values that Spark takes: what Reconsume writes, and what a newer release may add."""
UNLIKE = "not an event as Reconsume writes it"
REFUSED = {
    f" {TEXT}".encode(): UNLIKE,
    replaced('"times":1,"redrives":0', '"redrives":0,"times":1'): UNLIKE,
    added('"x":{"a":1}'): UNLIKE,
    added(f'"x":{"[" * 5_000}{"]" * 5_000}'): UNLIKE,
    replaced('"http-500"', "[" * 900 + "]" * 900): UNLIKE,
    replaced('"http-500"', '{"a":' * 900 + "1" + "}" * 900): UNLIKE,
    added('"times":7'): UNLIKE,
    f"{TEXT}}}".encode(): UNLIKE,
    replaced('"v":1', '"v":2'): "not version 1",
    encode_event(changed(reason="x" * schema.LONGEST)): "longer than 65536 bytes",
    encode_event(changed(group="payroll")): "not of this topic's group",
}
"""Values that Spark does not take, and why."""


def verdicts(spark: SparkSession, values: list[bytes | None]) -> list[Event | str]:
    """For each value the event, or the fault."""
    parsed = schema.events(batch(spark, [Record(value, number) for number, value in enumerate(values)]))
    found: dict[int, Event | str] = {}
    for row in parsed.good.collect():
        history = {name: row[name] for name in schema.HISTORY if row[name] is not None}
        fields = {name: row[name] for name in (*schema.FIELDS, schema.CYCLE)}
        found[row.from_offset] = msgspec.convert(fields | history, Event)
    for row in parsed.bad.collect():
        assert row.offset not in found, "both good and bad"
        found[row.offset] = row.fault
    return [found[number] for number in range(len(values))]


def expect_no_more(values: list[bytes | None], told: list[Event | str]) -> None:
    """What Spark takes `decode_event` takes, too, with the same fields."""
    for value, verdict in zip(values, told, strict=True):
        if isinstance(verdict, Event):
            event = decode_event(value)
            assert isinstance(event, Event), (value, event)
            # Rows do not carry its text, and have null where an event lacks a field.
            told_of = {name: getattr(event, name) or msgspec.UNSET for name in schema.HISTORY}
            assert verdict == msgspec.structs.replace(event, text=msgspec.UNSET, parked=msgspec.UNSET, **told_of), value


def test_spark_takes_what_reconsume_writes_and_nothing_that_decode_event_refuses(spark: SparkSession) -> None:
    told = verdicts(spark, [*VALUES, *TAKEN, *REFUSED])
    expect_no_more([*VALUES, *TAKEN], told[: len(VALUES) + len(TAKEN)])
    assert [one for one in told[len(VALUES) : len(VALUES) + len(TAKEN)] if isinstance(one, str)] == []
    assert told[len(VALUES) + len(TAKEN) :] == list(REFUSED.values())


def test_events_are_the_same_bytes_when_spark_has_read_and_written_them(spark: SparkSession) -> None:
    history = {"retries": 3, "last_failed_at": BASE}
    texts = [EVENT, changed(text='no such sku: é"\\/\u2028'), changed(level=None, text="x"), changed(reason="é")]
    events = [*texts, *(msgspec.structs.replace(event, **history) for event in texts), changed(retries=1)]
    events += [changed(due=0, parked=True), changed(text="x", retries=3, last_failed_at=BASE, parked=True)]
    raw = batch(spark, [Record(encode_event(event), number) for number, event in enumerate(events)])
    read = raw.select("value", fn.from_json(fn.col("value").cast("string"), schema.EVENT).alias("event"))
    again = read.select(schema.written_again(fn.col("event"), schema.OPTIONAL).alias("again"), "value").collect()
    assert [row.again.encode() for row in again] == [bytes(row.value) for row in again]


def edited(random: Random) -> bytes:
    """EVENT's JSON with up to two cuts and insertions."""
    value = TEXT.encode()
    for _ in range(random.randint(1, 2)):
        start = random.randint(0, len(value))
        value = value[:start] + random.choice(CUTS) + value[start + random.choice([0, 0, 1, 8]) :]
    return value


@settings(few, max_examples=1)  # each example is compiled anew, and has many values
@given(randoms)
def test_spark_takes_no_event_that_was_cut_or_changed_into_none(spark: SparkSession, random: Random) -> None:
    values: list[bytes | None] = [edited(random) for _ in range(1_500)]
    expect_no_more(values, verdicts(spark, values))


def clock(**times: int) -> bytes:
    return encode_event(changed(**times))


def test_a_clock_that_is_ahead_is_a_fault_and_a_record_without_a_time_is_not(spark: SparkSession) -> None:
    """By the job's clock and the record's time; the broker's time is trusted although the job's clock is behind."""
    now, edge = time.time_ns() // 1_000_000, AHEAD
    later = now + 10 * edge
    cases: list[tuple[bytes, int, bool]] = [
        (clock(at=BASE + edge), BASE, True),
        (clock(at=BASE + edge + 1), BASE, False),
        (clock(first_failed_at=BASE + edge + 1), BASE, False),
        (clock(at=2**63 - 1), BASE, False),
        (clock(first_failed_at=2**63 - 1), BASE, False),
        (clock(at=now + 2 * edge), now + 2 * edge, False),  # the record's own clock is ahead too
        (clock(at=BASE), -1, True),
        (clock(at=now + 2 * edge), -1, False),
    ]
    by_the_broker = [(clock(at=later), later, True), (clock(at=later + edge + 1), later, False)]
    records = [Record(value, number, timestamp=at) for number, (value, at, _) in enumerate(cases)]
    records += [
        Record(value, number, timestamp=at, appended=True)
        for number, (value, at, _) in enumerate(by_the_broker, len(cases))
    ]
    cases += by_the_broker
    parsed = schema.events(batch(spark, records))
    assert {row.from_offset for row in parsed.good.collect()} == {n for n, case in enumerate(cases) if case[2]}
    assert {row.fault for row in parsed.bad.collect()} == {"its clock is ahead"}


def test_records_without_the_kind_of_their_timestamp_are_held_against_the_jobs_clock(spark: SparkSession) -> None:
    later = time.time_ns() // 1_000_000 + 2 * AHEAD
    records = [Record(clock(at=BASE)), Record(clock(at=later), 1, timestamp=later)]
    parsed = schema.events(batch(spark, records).drop("timestampType"))
    assert [row.from_offset for row in parsed.good.collect()] == [0]


def test_a_bad_event_is_told_with_its_place(spark: SparkSession) -> None:
    bad: Any = schema.events(batch(spark, [Record(b"{", 7, 3, BASE)])).bad.collect()[0]
    assert (bad.topic, bad.partition, bad.offset, bad.fault) == (TOPIC, 3, 7, UNLIKE)
    assert bad.timestamp.timestamp() * 1000 == pytest.approx(BASE)
