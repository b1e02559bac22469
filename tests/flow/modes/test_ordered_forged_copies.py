"""Hostile records in the queue topic of a running ordered group: dead letters, and nothing waits for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from confluent_kafka import TopicPartition

from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RETRY_REAL_TIMESTAMP, Headers, RetryState
from reconsume.topics.retry_order import Order
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_ladder import assert_in_order
from tests.flow.modes.test_ordered_park import put
from tests.integration.kafka.test_consumer import commit
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails

LADDER = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["2s"], "max_reconsume_times": 1_000},
}
ODD = (None, b"", b"-1", b"9" * 30, b"1_0", b"\xff\xfe", "\u0661".encode(), b"x" * 5_000)
"""Values that a header of ours may not have: null, empty, negative, too long, not UTF-8, digits of another script."""
YEAR_3000 = 32_503_680_000_000


def copy_of(group: GroupTopics, **more: object) -> Headers:
    """The headers of a copy of the first record of the main partition, which say so much more."""
    base = {"id": f"{group.main}:0:0", "topic": group.main, "times": 1, "reason": "http-500: no", "order": Order(0)}
    state = RetryState(**{**base, **more})  # type: ignore[arg-type]
    return render_retry_headers(state, group.group, group.queues[0])


def forged(group: GroupTopics, timestamp: int) -> Iterator[Headers]:
    """Each header of a copy left out, there twice, and with each odd value; then claims in the right form that are
    untrue. All name a record that waits, which has this timestamp."""
    whole = copy_of(group, timestamp=timestamp)
    for at, (name, value) in enumerate(whole):
        before, after = whole[:at], whole[at + 1 :]
        if name != RETRY_REAL_TIMESTAMP:  # without it a copy is of a record of another log
            yield [*before, *after]
        yield [*whole, (name, value)]
        yield from ([*before, (name, odd), *after] for odd in ODD)
    claims: tuple[dict[str, object], ...] = (
        {},
        {"times": 0},
        {"times": 999_999},
        {"redrives": 3, "order": Order(0, 7)},
        {"order": Order(7)},
        {"order": None},
        {"due_at": YEAR_3000},
        {"behind": True},
        {"behind": True, "times": 0},
        {"parked": True},
        {"parked": True, "due_at": 1},
        {"id": f"{group.main}:1:0"},
        {"id": "payments:0:0", "topic": "payments"},
    )
    for claim in claims:
        yield copy_of(group, **{"timestamp": timestamp, **claim})


def test_forged_copies_are_dead_letters_while_records_wait_and_nothing_waits_for_them(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Their key is none of the waiting record's, so what has the right form is refused as well."""
    group, bad = create_group(replace(new_group(), delays=(), queued=True), 1), BadFails()
    service = start_service(bad)
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    waiting = put(group, (b"bad", b"a"), (b"behind:1", b"a"), (b"behind:2", b"a"))
    sidecar.until(lambda: sidecar.key_count("behind") == 2, 60, "all three wait")
    at = dump(group.bootstrap, group.main)[0].timestamp
    copies = [Out(b"forged", b"z", tuple(headers)) for headers in forged(group, at)]
    produce(group.bootstrap, group.queues[0], copies)
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == len(copies), 120, "all forged ones are dead")
    (free,) = put(group, (b"free", b"z"))
    sidecar.until(lambda: bool(service.ledger.of(free)), 60, "their key goes on")
    assert not service.ledger.of(waiting[1]), "what waits behind the failing record still does"
    bad.well.set()
    sidecar.until(lambda: len(service.ledger.taken()) == 4, 60, "all are taken")
    await_quiet(group, 60)
    assert sidecar.stop().code == 0
    reasons = [dict(row.headers)["RETRY_REASON"] or b"" for row in dump(group.bootstrap, group.dlq)]
    assert [reason for reason in reasons if not reason.startswith(b"bad-header")] == []
    first, *behind = (service.ledger.of(ident) for ident in waiting)
    assert [d.times for d in first] == list(range(len(first))), "each attempt is counted once"
    assert [[d.times for d in deliveries] for deliveries in behind] == [[0], [0]]
    assert {d.value for d in service.ledger.deliveries()} == {b"bad", b"behind:1", b"behind:2", b"free"}
    for before, after in itertools.pairwise((first, *behind)):
        assert after[0].received >= (before[-1].answered or 0)
    assert_in_order(group, service.ledger)


def test_of_copies_that_disagree_before_a_new_owner_none_is_gone_without_a_word(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Each genuine copy lies behind a forged one: under its key with more attempts, and under another key."""
    group = create_group(replace(new_group(), delays=(), queued=True), 1)
    service = start_service(BadFails())
    first, second = put(group, (b"first", b"a"), (b"second", b"b"))
    at = [row.timestamp for row in dump(group.bootstrap, group.main)]

    def copy(number: int, key: bytes, value: bytes, times: int) -> Out:
        ident, order = (first, second)[number], Order(number)
        headers = copy_of(group, id=ident, order=order, times=times, timestamp=at[number], due_at=1)
        return Out(value, key, tuple(headers))

    copies = [copy(0, b"a", b"forged", 9), copy(1, b"z", b"forged", 1), copy(0, b"a", b"first", 2)]
    produce(group.bootstrap, group.queues[0], [*copies, copy(1, b"b", b"second", 1)])
    commit(group.bootstrap, group.group, TopicPartition(group.main, 0, 2))
    (free,) = put(group, (b"free", b"a"))
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    sidecar.until(lambda: bool(service.ledger.of(free)), 60, "the key goes on")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 2, 60, "the genuine copies are dead letters")
    await_quiet(group, 60)
    assert sidecar.stop().code == 0
    dead = {row.value: dict(row.headers)["RETRY_REASON"] or b"" for row in dump(group.bootstrap, group.dlq)}
    assert b"it says fewer attempts than" in dead[b"first"]
    assert b"its key is not the one of" in dead[b"second"]
    assert {d.value for ident in (first, second) for d in service.ledger.of(ident)} == {b"forged"}
