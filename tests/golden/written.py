"""Samples of every format, written by today's writers: small, and with each field that may be there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import SPAN, LogId, Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.pull.handles import ReceiptHandles
from reconsume.sidecar.dlq.archive import export_line
from reconsume.sidecar.dlq.letters import Filter, Letter
from reconsume.sidecar.dlq.redrive_history import RedriveHistory, RedrivenRange, encode_past
from reconsume.topics.action_record import ActionRecord, action_key, render_action
from reconsume.topics.events import Event, State, encode_event, event_of
from reconsume.topics.instance_sums import InstanceSums, TopicDeadLetters, TopicFailures, TopicLag
from reconsume.topics.policy_record import (
    KEY,
    ObeysTold,
    PaceTold,
    PolicyRecord,
    ReleaseTold,
    SettlementRecord,
    SubscriptionRecord,
    instance_key,
    render_record,
    settlement_key,
)
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.transition_records import Copy, redriven_writes, writes_of
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Requeue, Retry, Written
from reconsume.topics.view_record import ViewRow, encode_row
from tests.sim.samples import policy

NOW = 1_763_690_000_000
POLICY: Policy = policy()
TOPICS = POLICY.topics
LIFE = RetryState(
    *("orders:3:1024", "orders", 2, 1, NOW + 10_000, NOW - 9_000, NOW - 5_000, "http-500: no such sku é"),
    last_failed_at=NOW - 1_000,
    most_times=3,
)
OWN: Headers = [("content-type", b"application/json"), ("n", None), ("n", b"\x00\xff")]
RECORD = Record(Partition("billing-RETRY-10s", 2), 77, 1, NOW, b"key", b"value", [*OWN], None)
EVENT = event_of(LIFE, State.WAITING_RETRY, 10_000, group="billing", instance="billing-0", at=NOW)
ROW = ViewRow(**asdict(EVENT) | {"last_failed_at": NOW, "retries": 3}, updated_at=NOW + 1_000)
INCARNATION, SECRET = bytes(range(8)), bytes(range(32))

HERE = Partition("orders", 3)
PROGRESS: Mapping[str, Progress] = {
    "nothing delivered yet": Progress(0, clean=True),
    "in order, its owner was alive": Progress(1_024, clean=True),
    "in order, something may be out": Progress(1_024),
    "done out of order": Progress(1_024, frozenset({1_025, 1_030, 1_024 + SPAN - 1})),
    "one open far below what is done": Progress(1_024, OffsetRanges([(1_025, 5_001_024), (5_001_026, 5_001_028)])),
    "far off, with a ragged end": Progress(
        1_024, OffsetRanges([(1_025, 60_000), (60_003, 90_000), (90_001, 90_004), (90_010, 90_011)])
    ),
    "a mark far from the next offset": Progress(1_024, deaths=2, mark=1_025 + SPAN, reach=2_000 + SPAN),
    "after one crash": Progress(1_024, frozenset({1_026}), deaths=1),
    "a suspect delivered alone": Progress(1_024, deaths=2, mark=1_025, reach=1_030),
    "no record let go yet": Progress(1_024, clean=True, deaths=2, reach=1_023),
    "begun at the latest record, with six partitions": Progress(1_024, clean=True, width=6),
    "the last record's time": Progress(1_024, clean=True, last_at_ms=NOW),
    "the log": Progress(1_024, log=LogId("0a0b0c0d", "deadbeef")),
    "after two resets, with notes in the policy topic": Progress(1_024, cycle=2, notes=True),
    "all of it": Progress(
        *(1_024, frozenset({1_026})),
        deaths=2,
        mark=1_025,
        reach=1_030,
        width=6,
        last_at_ms=NOW,
        log=LogId("0a0b0c0d", "deadbeef"),
        cycle=2,
    ),
}
PASTS: Mapping[str, RedriveHistory] = {
    "nothing": RedriveHistory("AAAAAAAAAAAAAAAAAAAAAQ", NOW),
    "everything up to an offset": RedriveHistory(
        "AAAAAAAAAAAAAAAAAAAAAQ", NOW, (RedrivenRange(Filter(below=3), 30, ("invoices", "orders")),)
    ),
    "copies that were passed over": RedriveHistory(
        "AAAAAAAAAAAAAAAAAAAAAQ",
        NOW,
        (RedrivenRange(Filter(), 30, ("orders",)),),
        skipped=OffsetRanges([(3, 7), (12, 13)]),
    ),
    "every condition, letters refused, single ids": RedriveHistory(
        "AAAAAAAAAAAAAAAAAAAAAQ",
        NOW,
        (
            RedrivenRange(
                Filter(
                    *((), ("http-500", "timeout"), ("orders",), (("n", None), ("tenant", "7")), NOW - 5, NOW, 3),
                    *(("ann",), ("A-99", "é")),
                ),
                40,
                ("orders",),
                (31, 35),
            ),
        ),
        frozenset({1, 9, 4_711}),
    ),
}
EVENTS: tuple[Event, ...] = (
    EVENT,
    event_of(LIFE, State.COMMIT, None, group="billing", instance="billing-0", at=NOW),
    event_of(LIFE, State.DLQ, None, group="billing", instance="billing-0", at=NOW),
    event_of(LIFE, State.REDRIVEN, None, group="billing", instance="redrive:ann@host", at=NOW),
    event_of(LIFE, State.DISMISSED, None, group="billing", instance="redrive:ann@host", at=NOW),
    event_of(replace(LIFE, reason="http-500"), State.DLQ, None, group="billing", instance="billing-0", at=NOW),
)
PARKED = replace(LIFE, due_at=0, order=Order(1_030, 2), parked=True, settled="00ff")
LATER_CYCLE = replace(LIFE, cycle=3)
DRAINED = replace(LIFE, id="orders-retry-1000:3:1024")
EVENTS = (
    *EVENTS,
    event_of(LATER_CYCLE, State.WAITING_RETRY, 10_000, group="billing", instance="billing-0", at=NOW),
)
EVENTS = (*EVENTS, event_of(PARKED, State.WAITING_RETRY, None, group="billing", instance="billing-0", at=NOW))
QUEUED: Policy = policy(queued=True)
DECISIONS: Mapping[str, Commit | Written] = {
    "retry": Retry(LIFE, 10_000),
    "hop": Hop(LIFE, 10_000),
    "forward": Forward(LIFE),
    "dead letter": DeadLetter(LIFE, LIFE.reason, 3),
    "parked": Requeue(PARKED),
    "retry in a later cycle": Retry(LATER_CYCLE, 10_000),
    "retry of a drained topic": Retry(DRAINED, 10_000),
}
HANDLES = ((1, 1), (3, 4_711), (2**32 - 1, 2**64 - 1))


def progress() -> Any:
    """Metadata of committed offsets, and what they mean."""
    return [
        {"what": what, "offset": one.next, "metadata": encode(HERE, one), "means": meaning(one)}
        for what, one in PROGRESS.items()
    ]


def meaning(one: Progress) -> dict[str, Any]:
    """A progress, as JSON has it."""
    done = OffsetRanges.of(one.done)
    names = {"last_at_ms": "last_at"}  # as the golden files say it
    said = {names.get(name, name): value for name, value in asdict(one).items()}
    said["log"] = None if one.log is None else list(one.log)
    return said | {"done": list(done) if len(done) < 100 else {"ranges": [list(each) for each in done.ranges]}}


def headers() -> Any:
    """Headers of the copies of each decision, and of a redriven letter."""
    forwarded = render_retry_headers(LIFE, "billing", "billing-RETRY-10s")
    found = {
        what: writes_of(
            _record(forwarded if what == "forward" else []), decision, QUEUED if what == "parked" else POLICY, NOW
        )[0]
        for what, decision in DECISIONS.items()
    }
    found["redrive"] = redriven_writes(_record(forwarded), LIFE, POLICY, NOW)[0]
    return [{"what": what, "topic": copy.topic, "headers": shown(copy)} for what, copy in found.items()]


def _record(ours: Headers) -> Record:
    return msgspec.structs.replace(RECORD, headers=[*OWN, *ours])


def shown(copy: Copy) -> list[list[str | None]]:
    """Headers as JSON has them: each byte a character."""
    return [[name, None if value is None else value.decode("latin-1")] for name, value in copy.headers]


def events() -> Any:
    """Values of the events topic."""
    return [encode_event(event).decode() for event in EVENTS]


def policies() -> Any:
    """Records of the policy topic: policies, heartbeats, settlements and an action."""
    values = {"max_reconsume_times": 3, "ladder": ["10s", "1m"], "timeout": "30s"}
    pace = PaceTold("outage", NOW, 1, 1, "connection-refused")
    found = {
        KEY: PolicyRecord(values, "ann@host", NOW, {"max_reconsume_times": 16}),
        instance_key("billing-0.default"): SubscriptionRecord({"orders": "*", "invoices": "A||B"}, NOW, pace),
        instance_key("billing-1.default"): SubscriptionRecord({"orders": "*"}, NOW),
        instance_key("billing-2.default"): SubscriptionRecord(
            {"orders": "*"}, NOW, well=True, release=ReleaseTold("0.3.0", "0123456789ab", "3.13.1", "2.16.1")
        ),
        instance_key("billing-3.default"): SubscriptionRecord(
            {"orders": "*"},
            NOW,
            sums=InstanceSums(
                NOW,
                [TopicFailures("orders", 10, 4, {"http-500": 3, "other": 1})],
                [TopicDeadLetters("orders", {"http-500": 2})],
                [TopicLag("orders", 0, 7_000, 3, grows=True)],
            ),
        ),
        instance_key("billing-4.default"): SubscriptionRecord(
            {"orders": "*"},
            NOW,
            settings="0123456789abcdef",
            mode="push",
            order="key",
            batch=1,
            started=NOW,
            obeys=ObeysTold(7, ("00ff",), 5, "0123456789abcdef"),
            subscribed="fedcba9876543210",
        ),
        settlement_key("orders:3:1024"): SettlementRecord(
            1, 2, "commit", "cancelled", "ann@host", NOW, "00ff", "billing-DLQ:0:17"
        ),
        settlement_key("orders:3:1025"): SettlementRecord(1, 2, "retry-now", "mended", "ann@host", NOW, "00ff"),
        settlement_key("orders:3:1026"): SettlementRecord(
            1, 2, "retry-now", "mended", "ann@host", NOW, "00ff", cycle=3
        ),
    }
    action = ActionRecord("redrive", "ann@host", NOW, "reason bad-sku", ended=NOW + 1_000, records=3)
    return [
        *({"key": key.decode(), "value": render_record(record).decode()} for key, record in found.items()),
        {"key": action_key("00ff").decode(), "value": render_action(action).decode()},
    ]


def view() -> Any:
    """Rows of the view and of the sums."""
    return {
        "view": [
            {"key": row.id, "value": encode_row(row).decode()} for row in (ROW, msgspec.structs.replace(ROW, cycle=3))
        ],
    }


def redrives() -> Any:
    """Metadata of the redrive group's offsets, and what they mean."""
    return [{"what": what, "metadata": encode_past(past), "means": past_meaning(past)} for what, past in PASTS.items()]


def past_meaning(past: RedriveHistory) -> dict[str, Any]:
    """A past, as JSON has it."""
    claims = [{"filter": asdict(claim.filter), "next": claim.next, "left": claim.left} for claim in past.claims]
    kept = {"topic": past.topic, "known_since": past.known_since, "claims": claims, "done": sorted(past.done)}
    plain: dict[str, Any] = json.loads(json.dumps(kept | ({"skipped": past.skipped.ranges} if past.skipped else {})))
    return plain


def handles() -> Any:
    """Handles of a process with a fixed key."""
    ours = ReceiptHandles(INCARNATION, SECRET)
    return [{"handle": ours.encode(epoch, number), "epoch": epoch, "number": number} for epoch, number in HANDLES]


def letters() -> Any:
    """A line of a file of exported dead letters."""
    record = msgspec.structs.replace(
        _record(render_retry_headers(LIFE, "billing", "billing-DLQ")), source=Partition("billing-DLQ", 0)
    )
    return [export_line(Letter(record, LIFE))]


FORMATS: Mapping[str, Callable[[], Any]] = {
    "progress": progress,
    "headers": headers,
    "events": events,
    "policies": policies,
    "view": view,
    "redrives": redrives,
    "handles": handles,
    "letters": letters,
}
