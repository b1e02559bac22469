"""A group that moves here: records that another system has retried before, read from a main topic.

The count goes on where the other system stopped, so the checker, which knows only our own counts, is not asked.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.dead_letter_headers import DLQ_DELIVERY_COUNT
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.evidence import Copy, Evidence, collect
from tests.support.proof.ledger import Delivery
from tests.support.service.behaviours import OK, Answer, Behaviour, Request

RETRIES = 4
FAILED_AT = 1_763_690_000_000
ORIGINAL = FAILED_AT - 86_400_000
Headers = tuple[tuple[str, bytes | None], ...]


def spring(attempts: bytes) -> Headers:
    """As Spring writes them on its retry topics, among headers of the record's own."""
    return (
        ("a", b"1"),
        ("kafka_original-topic", b"orders"),
        ("kafka_original-offset", (3_352).to_bytes(8)),
        ("a", None),
        ("retry_topic-original-timestamp", ORIGINAL.to_bytes(6)),
        ("retry_topic-attempts", (2).to_bytes(4)),
        ("retry_topic-attempts", attempts),
        ("retry_topic-backoff-timestamp", (FAILED_AT + 10_000).to_bytes(6)),
        ("é", b""),
    )


SMALLRYE: Headers = (
    ("delayed-retry-original-timestamp", b"%d" % ORIGINAL),
    ("delayed-retry-first-processing-timestamp", b"%d" % FAILED_AT),
    ("delayed-retry-count", b"0"),
)
CASES: dict[str, Headers] = {
    "fail: spring": spring((3).to_bytes(4)),
    "fail: spring forged": spring((2**31 - 1).to_bytes(4)),
    "fail: spring had its retries": spring((6).to_bytes(4)),
    "smallrye": SMALLRYE,
    "fail: pulsar is not named": (("RECONSUMETIMES", b"3"), ("REAL_TOPIC", b"persistent://shop/ns/orders")),
    "good": (("a", b"1"),),
}


class Run(NamedTuple):
    """One sidecar's work on all cases."""

    evidence: Evidence
    ids: dict[str, str]

    def times(self, case: str) -> list[int]:
        """The count of each delivery, in order."""
        return [delivery.times for delivery in self.deliveries(case)]

    def deliveries(self, case: str) -> list[Delivery]:
        return [delivery for delivery in self.evidence.deliveries if delivery.id == self.ids[case]]

    def copies(self, case: str) -> list[Copy]:
        life = self.evidence.lives.get((self.ids[case], 0), {})
        return [copy for _, chain in sorted(life.items()) for copy in chain]

    def dead(self, case: str) -> list[Copy]:
        return [copy for copy in self.evidence.dead if copy.id == self.ids[case]]

    def events(self, case: str) -> list[dict[str, Any]]:
        events = [json.loads(row.value or b"") for row in self.evidence.events]
        return [event for event in events if event["id"] == self.ids[case]]


def script(request: Request) -> Behaviour:
    return Answer(500) if (request.value or b"").startswith(b"fail") else OK


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    group = create_group(new_group(), partitions=1)
    service = start_service(script)
    retry = {"max_reconsume_times": RETRIES, "ladder": ["1s"], "understand": ["spring", "smallrye"]}
    sidecar = start_sidecar(group, service.url, overrides={"retry": retry})
    outs = [Out(case.encode(), b"key", headers) for case, headers in CASES.items()]
    places = produce(group.bootstrap, group.main, outs)
    ids = {case: f"{group.main}:{p}:{offset}" for case, (p, offset) in zip(CASES, places, strict=True)}
    failing = [ident for case, ident in ids.items() if case.startswith("fail")]

    def settled() -> bool:
        last = [service.ledger.of(ident)[-1:] for ident in failing]
        return len(service.ledger.taken()) == 2 and all(d and d[0].times >= RETRIES for d in last)

    sidecar.until(settled, 30, "two records are taken and the others have had their last attempt")
    assert sidecar.stop().code == 0
    return Run(collect(group, service.ledger), ids)


def test_a_record_gets_the_retries_that_spring_left_and_then_the_dlq(run: Run) -> None:
    assert run.times("fail: spring") == [2, 3, 4]
    assert [copy.times for copy in run.copies("fail: spring")] == [3, 4]
    (dead,) = run.dead("fail: spring")
    assert (dead.times, dict(dead.row.headers)[DLQ_DELIVERY_COUNT]) == (4, b"5")
    assert [event["state"] for event in run.events("fail: spring")] == ["WAITING_RETRY", "WAITING_RETRY", "DLQ"]


def test_what_had_all_its_retries_is_delivered_once_more(run: Run) -> None:
    assert run.times("fail: spring had its retries") == [5]
    assert not run.copies("fail: spring had its retries")
    (dead,) = run.dead("fail: spring had its retries")
    assert dead.times == 5


@pytest.mark.parametrize("case", ["fail: spring forged", "fail: pulsar is not named"])
def test_what_is_not_understood_begins_at_0(run: Run, case: str) -> None:
    assert run.times(case) == [0, 1, 2, 3, 4]
    assert [dead.times for dead in run.dead(case)] == [4]


def test_their_headers_stay_byte_for_byte_and_ours_name_the_place_where_it_was_read(run: Run) -> None:
    case = "fail: spring"
    theirs = CASES[case]
    for copy in (*run.copies(case), *run.dead(case)):
        assert copy.row.headers[: len(theirs)] == theirs
        assert copy.ours[wire.ORIGIN_MESSAGE_ID] == run.ids[case].encode()
        assert copy.ours[wire.REAL_TOPIC] == run.evidence.group.main.encode()
        assert copy.ours[wire.RETRY_REAL_TIMESTAMP] == b"%d" % ORIGINAL


def test_success_at_last_is_told_with_what_the_other_system_said(run: Run) -> None:
    assert run.times("smallrye") == [1]
    (event,) = run.events("smallrye")
    told = {key: event[key] for key in ("state", "times", "timestamp", "first_failed_at", "reason")}
    assert told == {
        "state": "COMMIT",
        "times": 1,
        "timestamp": ORIGINAL,
        "first_failed_at": FAILED_AT,
        "reason": "retried-by-smallrye",
    }


def test_a_record_without_such_headers_leaves_no_trace(run: Run) -> None:
    assert run.times("good") == [0]
    assert not run.events("good")
