"""Events: what is written is read back, what is hostile is a value, and order makes repeats harmless."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.events import BadEvent, Event, State, decode_event, encode_event, event_of, latest, order
from reconsume.topics.retry_headers import RetryState

EVENT = Event(
    group="billing",
    id="orders:3:1024",
    state=State.WAITING_RETRY,
    times=1,
    redrives=0,
    level="10s",
    due=1_763_690_010_000,
    at=1_763_690_000_000,
    reason="http-500",
    topic="orders",
    partition=3,
    offset=1_024,
    timestamp=1_763_689_999_000,
    first_failed_at=1_763_690_000_000,
    instance="billing-7c9f-x2x",
)
FIELDS = json.loads(encode_event(EVENT))
LONG = st.integers(0, 2**63 - 1)
COUNT = st.integers(0, 2**31 - 1)
EVENTS = st.builds(
    Event,
    group=st.text(),
    id=st.text(),
    state=st.sampled_from(State),
    times=COUNT,
    redrives=COUNT,
    level=st.none() | st.text(),
    due=LONG,
    at=LONG,
    reason=st.text(),
    topic=st.text(),
    partition=COUNT,
    offset=LONG,
    timestamp=st.integers(-1, 2**63 - 1),
    first_failed_at=LONG,
    instance=st.text(),
    text=st.text() | st.none() | st.just(msgspec.UNSET),
    cycle=COUNT,
)
# Few values, so that lives cross and places are shared.
CROWDED = st.builds(
    lambda state, times, redrives, cycle, at, level, instance: msgspec.structs.replace(
        EVENT, state=state, times=times, redrives=redrives, cycle=cycle, at=at, level=level, instance=instance
    ),
    st.sampled_from(State),
    st.integers(0, 2),
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from([None, "10s", "1m"]),
    st.sampled_from(["a", "b"]),
)


def changed(**fields: object) -> bytes:
    return json.dumps({**FIELDS, **fields}).encode()


def test_an_event_is_the_json_of_the_interface() -> None:
    assert FIELDS == {
        "v": 1,
        "group": "billing",
        "id": "orders:3:1024",
        "state": "WAITING_RETRY",
        "times": 1,
        "redrives": 0,
        "level": "10s",
        "due": 1763690010000,
        "at": 1763690000000,
        "reason": "http-500",
        "topic": "orders",
        "partition": 3,
        "offset": 1024,
        "timestamp": 1763689999000,
        "first_failed_at": 1763690000000,
        "instance": "billing-7c9f-x2x",
    }


def test_an_event_names_its_cycle_unless_it_is_0() -> None:
    assert json.loads(encode_event(msgspec.structs.replace(EVENT, cycle=2))) == {**FIELDS, "cycle": 2}


@given(EVENTS)
def test_an_event_is_read_back(event: Event) -> None:
    assert decode_event(encode_event(event)) == event


REASONS = {
    "http-500": None,
    "http-400: Bad sku: no sku 7": "Bad sku: no sku 7",
    "http-400: " + "é" * 500: "é" * 200,
    "http-400: a\nb\x1b[31m\u202ec": "a b [31m c",
    "http-400:  ": None,
    "no class at all": None,
}


@pytest.mark.parametrize(("reason", "text"), REASONS.items(), ids=range(len(REASONS)))
def test_the_text_of_a_reason_is_in_the_event_and_never_in_its_class(reason: str, text: str | None) -> None:
    """Given a reason, then its event has the text in 200 characters on one line, and no field where there is none."""
    life = RetryState("orders:3:1024", "orders", 1, 0, 0, 1, 1, reason)
    written = json.loads(encode_event(event_of(life, State.DLQ, None, group="g", instance="i", at=1)))
    assert written.get("text") == text
    assert ("text" in written) == (text is not None)
    assert written["reason"] == reason.partition(": ")[0][:64]


def test_an_event_may_have_a_text_or_null_or_none() -> None:
    assert decode_event(changed(text="no sku")) == msgspec.structs.replace(EVENT, text="no sku")
    assert decode_event(changed(text=None)) == msgspec.structs.replace(EVENT, text=None)
    assert isinstance(decode_event(changed(text=5)), BadEvent)
    assert isinstance(decode_event(changed(text=["x"])), BadEvent)


def test_unknown_fields_are_ignored() -> None:
    assert decode_event(changed(more={"a": [1]})) == EVENT


def test_no_level_is_null() -> None:
    assert decode_event(changed(level=None)) == msgspec.structs.replace(EVENT, level=None)


HOSTILE_FIELDS: list[dict[str, object]] = [
    {"v": 2},
    {"v": 0},
    {"v": "1"},
    {"state": "WAITING"},
    {"state": None},
    {"state": 1},
    {"times": -1},
    {"times": "1"},
    {"times": 1.5},
    {"times": True},
    {"times": 2**31},
    {"redrives": -1},
    {"cycle": -1},
    {"cycle": 2**31},
    {"cycle": "1"},
    {"offset": 2**63},
    {"offset": -1},
    {"partition": 10**30},
    {"due": -1},
    {"due": None},
    {"at": 10**400},
    {"id": None},
    {"id": 5},
    {"level": 10},
    {"reason": ["x"]},
    {"instance": "\ud800"},
]


@pytest.mark.parametrize("fields", HOSTILE_FIELDS, ids=str)
def test_a_field_of_another_form_is_a_bad_event(fields: dict[str, object]) -> None:
    assert isinstance(decode_event(changed(**fields)), BadEvent)


def test_what_is_said_of_a_bad_event_stays_short() -> None:
    found = decode_event(changed(state="x" * 10_000))
    assert isinstance(found, BadEvent)
    assert len(found.text) <= 300


@pytest.mark.parametrize("field", sorted(FIELDS.keys() - {"v"}))
def test_a_missing_field_is_a_bad_event(field: str) -> None:
    data = json.dumps({key: value for key, value in FIELDS.items() if key != field}).encode()
    assert isinstance(decode_event(data), BadEvent)


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"null",
        b"1",
        b"[]",
        b"{}",
        b"{",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        encode_event(EVENT) + b"x",
        encode_event(EVENT)[:-1],
        encode_event(EVENT).replace(b"http-500", b"\xff"),
        b"[" * 100_000,
        b'{"x":' + b"[" * 200_000,
        b'{"x":' * 200_000,
    ],
    ids=lambda data: repr(data)[:20],
)
def test_bytes_that_are_no_event_are_a_bad_event(data: bytes | None) -> None:
    found = decode_event(data)
    assert isinstance(found, BadEvent)
    assert 0 < len(found.text) <= 300


@given(
    st.binary(max_size=100)
    | st.integers(0, 300).map(lambda at: encode_event(EVENT)[:at] + encode_event(EVENT)[at + 1 :])
)
def test_no_bytes_raise(data: bytes) -> None:
    found = decode_event(data)
    if isinstance(found, Event):
        assert decode_event(encode_event(found)) == found


def test_the_states_of_one_retry_rise_from_redriven_to_dlq() -> None:
    rising = [State.REDRIVEN, State.WAITING_RETRY, State.COMMIT, State.DLQ]
    events = [msgspec.structs.replace(EVENT, state=state, at=100 - rank) for rank, state in enumerate(rising)]
    assert sorted(events, key=order) == events


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"redrives": 3, "times": 16, "state": State.DLQ}, {"cycle": 1, "redrives": 0, "times": 1}),
        ({"redrives": 0, "times": 16, "state": State.DLQ}, {"redrives": 1, "times": 0, "state": State.REDRIVEN}),
        ({"times": 1, "state": State.DLQ, "at": 9}, {"times": 2, "state": State.WAITING_RETRY, "at": 1}),
        ({"state": State.WAITING_RETRY, "at": 9}, {"state": State.COMMIT, "at": 1}),
        ({"at": 1}, {"at": 2}),
    ],
)
def test_cycles_come_before_redrives_before_times_before_state_before_event_time(
    earlier: dict[str, object], later: dict[str, object]
) -> None:
    first, second = (msgspec.structs.replace(EVENT, **fields) for fields in (earlier, later))
    assert order(first) < order(second)
    assert latest([first, second]) == latest([second, first]) == second


def test_no_events_have_no_latest() -> None:
    assert latest([]) is None


def test_two_events_of_one_place_are_decided_alike_by_all_readers() -> None:
    one = msgspec.structs.replace(EVENT, level=None)
    other = msgspec.structs.replace(EVENT, level="1m")
    assert order(one) == order(other)
    assert latest([one, other]) == latest([other, one])


@given(st.lists(CROWDED, min_size=1, max_size=6), st.data())
def test_any_order_and_repetition_of_events_gives_the_same_latest(events: list[Event], data: st.DataObject) -> None:
    repeated = data.draw(st.lists(st.sampled_from(events), max_size=6))
    shuffled = data.draw(st.permutations(events + repeated))
    found = latest(shuffled)
    assert found == latest(events)
    assert found is not None
    assert order(found) == max(order(event) for event in events)
    folded: Event | None = None
    for event in shuffled:  # a view keeps the greater of what it has and what comes
        folded = latest([event] if folded is None else [folded, event])
    assert folded == found
