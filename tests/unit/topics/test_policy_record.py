"""Records of the policy topic: what we write is read back, and whatever else is written stops nobody."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from reconsume.topics.instance_sums import InstanceSums, TopicFailures
from reconsume.topics.policy_record import (
    KEY,
    LARGEST,
    LARGEST_HEARTBEAT,
    MOST_SUBSCRIBED,
    BadRecord,
    InstanceHeard,
    ObeysTold,
    PaceTold,
    PolicyHeard,
    PolicyRecord,
    RefusedTold,
    ReleaseTold,
    SettlementHeard,
    SettlementRecord,
    SubscriptionRecord,
    fitted,
    heartbeat_subscription,
    instance_key,
    parse_record,
    render_record,
    settlement_key,
)

NESTED = b'{"v": 1, "who": "ann", "at": 5, "policy": {"ladder": ' + b"[" * 700 + b"]" * 700 + b"}}"
"""Parsers take it; what copies or prints the value does not."""
TOLD = {"v": 1, "subscription": {}, "at": 1}
GOOD = {"v": 1, "policy": {"ladder": ["1s"], "max_reconsume_times": 3}, "who": "ann", "at": 5, "was": {"ladder": "x"}}


def test_a_policy_is_read_as_the_interface_has_it() -> None:
    policy = parse_record(KEY, json.dumps(GOOD).encode())
    assert policy == PolicyHeard(
        PolicyRecord({"ladder": ["1s"], "max_reconsume_times": 3}, who="ann", at=5, was={"ladder": "x"})
    )


@pytest.mark.parametrize(
    ("key", "record", "heard"),
    [
        (KEY, PolicyRecord({"timeout": None}, "ann", 7), PolicyHeard),
        (instance_key("pod-0"), SubscriptionRecord({"orders": "*"}, 7), lambda record: InstanceHeard("pod-0", record)),
    ],
)
def test_what_is_rendered_is_read_back(key: bytes, record: object, heard: object) -> None:
    data = render_record(record)  # type: ignore[arg-type]
    assert json.loads(data)["v"] == 1
    assert parse_record(key, data) == heard(record)  # type: ignore[operator]


def test_a_pace_is_read_back_and_may_be_missing_or_tell_more() -> None:
    """Versions before did not tell it, and later ones may tell more of it."""
    told = SubscriptionRecord({"orders": "*"}, 7, PaceTold("outage", 5, 1, 1, "refused"), overdue=61_000)
    assert parse_record(b"instance/a", render_record(told)) == InstanceHeard("a", told)
    value = {"v": 1, "subscription": {"orders": "*"}, "at": 7}
    assert parse_record(b"instance/a", json.dumps(value).encode()) == InstanceHeard(
        "a", replace(told, pace=None, overdue=0)
    )
    more = {**value, "pace": {"state": "resting", "since": 5, "more": [1]}}
    beat = parse_record(b"instance/a", json.dumps(more).encode())
    assert beat == InstanceHeard("a", replace(told, pace=PaceTold("resting", 5), overdue=0))


def test_a_heartbeat_says_who_the_group_belongs_to_within_bounds() -> None:
    told = SubscriptionRecord({"orders": "*"}, 7, labels={"team": "payments"})
    assert parse_record(b"instance/a", render_record(told)) == InstanceHeard("a", told)
    for labels in ({f"l{number}": "x" for number in range(9)}, {"team": "x" * 201}, {"x" * 33: "y"}):
        assert isinstance(parse_record(b"instance/a", render_record(replace(told, labels=labels))), BadRecord)


def test_unknown_fields_and_unknown_keys_of_the_policy_are_no_fault() -> None:
    """A newer version may have written them, and its keys are kept."""
    heard = parse_record(KEY, json.dumps({**GOOD, "more": 1, "policy": {"new_key": 1}}).encode())
    assert isinstance(heard, PolicyHeard)
    assert heard.record is not None
    assert heard.record.policy == {"new_key": 1}


def test_null_withdraws_a_policy_and_a_subscription() -> None:
    assert parse_record(KEY, None) == PolicyHeard(None)
    assert parse_record(b"instance/pod-0", None) == InstanceHeard("pod-0", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, b""),
        (KEY, b"{}"),
        (KEY, b"null"),
        (KEY, b"\xff\xfe"),
        (KEY, b"[" * 60_000),
        (KEY, b'{"x":' * 10_000),
        (KEY, NESTED),
        (KEY, json.dumps({**GOOD, "policy": {"ladder": [[[[["1s"]]]]]}}).encode()),
        (b"instance/a", json.dumps({**TOLD, "more": [[[[[[1]]]]]]}).encode()),
        (KEY, json.dumps({**GOOD, "v": 0}).encode()),
        (KEY, json.dumps({**GOOD, "policy": []}).encode()),
        (KEY, json.dumps({**GOOD, "at": -1}).encode()),
        (KEY, json.dumps({**GOOD, "who": "x" * 257}).encode()),
        (KEY, json.dumps({**GOOD, "who": None}).encode()),
        (KEY, json.dumps({**GOOD, "filler": "x" * LARGEST}).encode()),
        (b"instance/a", b'{"v": 1, "subscription": {"orders": 1}, "at": 1}'),
        (b"instance/a", b"{}"),
        (b"instance/a", b'{"v": 1, "subscription": {}, "at": 1, "pace": {"state": 5, "since": 1}}'),
        (b"instance/a", json.dumps({**TOLD, "pace": {"state": "x" * 33, "since": 1}}).encode()),
        (b"instance/a", json.dumps({**TOLD, "pace": {"state": "open", "since": -1}}).encode()),
        (b"instance/", b"{}"),
        (b"instance/\xff", b"{}"),
        (b"instance/a\nb", b"{}"),
        (b"instance/" + b"x" * 300, None),
        (b"Policy", None),
        (b"\xff" * 100, b"{}"),
        (None, b"{}"),
    ],
)
def test_everything_else_is_a_bad_record_and_never_an_exception(key: bytes | None, value: bytes | None) -> None:
    heard = parse_record(key, value)
    assert isinstance(heard, BadRecord)
    assert heard.text
    assert len(heard.text) < 400


SETTLEMENT = SettlementRecord(1, 2, "commit", "cancelled", "ann@host", 7, "00ff", "billing-DLQ:0:17")


def test_a_settlement_is_read_back_and_withdrawn() -> None:
    key = settlement_key("orders:3:1024")
    assert parse_record(key, render_record(SETTLEMENT)) == SettlementHeard("orders:3:1024", SETTLEMENT)
    assert parse_record(key, None) == SettlementHeard("orders:3:1024", None)
    assert b"cycle" not in render_record(SETTLEMENT)
    later = replace(SETTLEMENT, cycle=3)
    assert parse_record(key, render_record(later)) == SettlementHeard("orders:3:1024", later)


BAD_SETTLEMENTS: list[dict[str, object]] = [
    *({name: wrong} for name in ("redrives", "times", "at", "cycle") for wrong in (-1, "1", None, 2**63)),
    *({name: wrong} for name in ("how", "why", "who", "nonce") for wrong in (5, None, "x" * 5_000)),
    *({"why": ""}, {"nonce": ""}, {"v": 2}, {"place": "x" * 400}),
]


@pytest.mark.parametrize("fields", BAD_SETTLEMENTS, ids=str)
def test_a_settlement_of_another_form_is_bad_and_never_a_policy(fields: dict[str, object]) -> None:
    value = json.dumps({**json.loads(render_record(SETTLEMENT)), **fields}).encode()
    assert isinstance(parse_record(settlement_key("orders:3:1024"), value), BadRecord)


@pytest.mark.parametrize("ident", ["", "\x1b[2J", "x" * 301])
def test_a_settlement_of_no_record_is_bad(ident: str) -> None:
    assert isinstance(parse_record(settlement_key(ident), render_record(SETTLEMENT)), BadRecord)


# --- what a heartbeat has room for -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"orders": "A || B"}, {"orders": "B||A"}, True),
        ({"orders": "A", "bills": "*"}, {"bills": "*", "orders": "A"}, True),
        ({"orders": "A"}, {"orders": "A||B"}, False),
        ({f"topic-{number}": "*" for number in range(900)}, {f"topic-{number}": "*" for number in range(899)}, False),
        ({f"topic-{number}": "*" for number in range(900)}, {f"topic-{899 - n}": "*" for n in range(900)}, True),
    ],
)
def test_subscriptions_are_told_apart_however_many_topics_they_have(
    one: dict[str, str], other: dict[str, str], same: bool
) -> None:
    assert (heartbeat_subscription(one) == heartbeat_subscription(other)) is same
    kept, digest = heartbeat_subscription(one)
    assert len(json.dumps(kept)) < MOST_SUBSCRIBED + 100
    assert bool(digest) is (len(kept) < len(one))


def test_a_heartbeat_has_4_kib_whatever_it_has_to_say_and_the_worst_stays() -> None:
    """Given the most that an instance may have to say, then sums go first, and which holds it obeys last."""
    subscription, digest = heartbeat_subscription({f"a-topic-with-a-name-{number}": "TagA" for number in range(1_000)})
    topics = [f"topic-{number}-{'x' * 200}" for number in range(60)]
    reasons = {f"reason-{number}": number for number in range(5)}
    full = SubscriptionRecord(
        subscription,
        1,
        pace=PaceTold("outage", 1, 64, 64, "é" * 300, "unreachable", 5),
        sums=InstanceSums(1, [TopicFailures(topic, 9, 9, reasons) for topic in topics]),
        release=ReleaseTold("0.3.0", "c" * 40, "3.12.1", "2.6.1"),
        all_refused=tuple(RefusedTold(topic, 400, 1, path="/" + "x" * 200) for topic in topics[:16]),
        obeys=ObeysTold(7, tuple(f"{number:08x}" for number in range(100)), 3, "d" * 16),
        settings="d" * 16,
        subscribed=digest,
    )
    short = fitted(full)
    assert len(render_record(short)) <= LARGEST_HEARTBEAT
    assert short.sums is not None
    assert short.sums.omitted == 60
    assert 0 < len(short.all_refused) < 16
    assert short.obeys is not None
    assert len(short.obeys.holds) > 40
    sums = InstanceSums(1, [TopicFailures(topic, 9, 9, reasons) for topic in topics[:30]])
    few = fitted(SubscriptionRecord(subscription, 1, sums=sums))
    assert few.sums is not None
    assert few.sums.failures == sums.failures[: len(few.sums.failures)], "the worst stays"
    assert 0 < len(few.sums.failures) < 30
