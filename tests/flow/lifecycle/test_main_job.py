"""The main job: a failing record waits in its level topic, comes back, and ends as committed or dead; each verdict."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.dead_letter_headers import DLQ_DELIVERY_COUNT, DLQ_MESSAGE
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Copy, Evidence, collect
from tests.support.proof.invariants import GRAIN
from tests.support.proof.ledger import FAILED, TOOK, Delivery
from tests.support.service.behaviours import FAIL, OK, Answer, Behaviour, by_name, verdict
from tests.support.sidecar.process import Exit

GOOD, FLAKY, POISON = 300, 20, 5


def body(
    verdict_of: dict[str, object], status: int = 200, means: str = FAILED, kind: str = "application/json"
) -> Answer:
    return Answer(status, (("Content-Type", kind),), json.dumps(verdict_of).encode(), means=means)


CASES: dict[str, tuple[Behaviour, ...]] = {
    "flaky": (FAIL, OK),
    "poison": (FAIL,),
    "says-commit": (verdict("commit", 500, TOOK),),
    "says-retry": (verdict("retry"), OK),
    "delay": (verdict("retry; delay=2s"), OK),
    "hops": (verdict("retry; delay=3500ms"), OK),
    "level": (verdict("retry; level=2", 503), OK),
    "delay-in-body": (body({"verdict": "retry", "delay": "2s"}), OK),
    "level-minus-one": (body({"verdict": "retry", "level": -1}),),
    "dead-letter": (verdict("dead-letter; reason=bad-sku"),),
    "dead-letter-in-body": (body({"verdict": "dead-letter", "reason": "bad-tax"}, 500),),
    "header-wins": (
        Answer(
            500,
            (("Reconsume-Verdict", "commit"), ("Content-Type", "application/json")),
            b'{"verdict": "dead-letter"}',
            means=TOOK,
        ),
    ),
    "json-says-nothing": (body({"ok": True}, 200, TOOK),),
    "json-says-nothing-500": (body({"ok": True}, 500), OK),
    "no-json": (body({"verdict": "dead-letter"}, 200, TOOK, kind="text/plain"),),
    "unreadable": (verdict("perhaps"), OK),
    "too-far": (verdict("retry; delay=11d"), OK),
    "throttle-429": (Answer(429), Answer(429, (("Retry-After", "1"),)), OK),
    "throttle-503": (Answer(503, (("Retry-After", "1"),)), OK),
    "plain-503": (Answer(503), OK),
    "redirect": (Answer(307, (("Location", "/elsewhere"),)), OK),
    "status-422": (Answer(422),),
}
DEAD = ("level-minus-one", "dead-letter", "dead-letter-in-body", "status-422")
RETRIED = {
    "says-retry": ("1s", b"retry-asked"),
    "delay": ("2s", b"retry-asked"),
    "level": ("2s", b"retry-asked"),
    "delay-in-body": ("2s", b"retry-asked"),
    "json-says-nothing-500": ("1s", b"http-500"),
    "unreadable": ("1s", b"unreadable-verdict"),
    "too-far": ("1s", b"retry-asked"),
    "plain-503": ("1s", b"http-503"),
    "redirect": ("1s", b"http-307"),
}
TAKEN_AT_ONCE = ("says-commit", "header-wins", "json-says-nothing", "no-json")


class Run(NamedTuple):
    """One sidecar's work on all cases, seen from outside."""

    evidence: Evidence
    report: Report
    ids: dict[str, str]
    end: Exit

    def deliveries(self, case: str) -> list[Delivery]:
        return [delivery for delivery in self.evidence.deliveries if delivery.id == self.ids[case]]

    def copies(self, case: str) -> list[Copy]:
        """Its copies on retry topics, in the order of their append times."""
        return [copy for _, chain in sorted(self.evidence.lives.get((self.ids[case], 0), {}).items()) for copy in chain]

    def dead(self, case: str) -> list[Copy]:
        return [copy for copy in self.evidence.dead if copy.id == self.ids[case]]


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    group = create_group(new_group(), partitions=3)
    service = start_service(by_name(CASES))
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"dead_letter_statuses": [422]}})
    single = [name for name in CASES if name not in ("flaky", "poison")]
    many = [f"{name}:{number}" for name, size in (("flaky", FLAKY), ("poison", POISON)) for number in range(size)]
    records = [*(Out(b"good:%d" % number, b"k%d" % (number % 7)) for number in range(GOOD))]
    records += [Out(text.encode(), b"key", (("a", b"1"), ("a", None), ("é", b""))) for text in (*single, *many)]
    places = produce(group.bootstrap, group.main, records)
    ids = {
        (out.value or b"").decode(): f"{group.main}:{partition}:{offset}"
        for out, (partition, offset) in zip(records, places, strict=True)
    }
    wanted = len(records) - POISON - len(DEAD)

    def settled() -> bool:
        done = [d for d in service.ledger.deliveries() if d.times == 2 and (d.value or b"").startswith(b"poison")]
        return len(service.ledger.taken()) == wanted and len(done) == POISON

    sidecar.until(settled, 30, f"{wanted} records are taken and {POISON} have had their last attempt")
    end = sidecar.stop()
    evidence = collect(group, service.ledger)
    return Run(evidence, check(evidence), ids, end)


def test_every_record_is_committed_or_dead_and_counted_exactly(run: Run) -> None:
    total = len(run.ids)
    dead = POISON + len(DEAD)
    assert (run.report.committed, run.report.dead_lettered, run.report.waiting) == (total - dead, dead, 0)


def test_without_faults_nothing_is_delivered_twice(run: Run) -> None:
    assert run.report.duplicates == 0


def test_the_sidecar_ends_with_code_0(run: Run) -> None:
    assert run.end.code == 0
    assert run.end.seconds < 9, "nothing was left that a drain of 10 s would wait for"


@pytest.mark.parametrize("number", range(POISON))
def test_a_poison_record_is_dead_after_its_last_retry(run: Run, number: int) -> None:
    (dead,) = run.dead(f"poison:{number}")
    assert [delivery.times for delivery in run.deliveries(f"poison:{number}")] == [0, 1, 2]
    assert [copy.topic.rpartition("-")[2] for copy in run.copies(f"poison:{number}")] == ["1s", "2s"]
    kip = dict(dead.row.headers)
    assert (dead.times, kip[DLQ_DELIVERY_COUNT], kip[DLQ_MESSAGE]) == (2, b"3", b"http-500")


@pytest.mark.parametrize("case", RETRIED)
def test_an_answer_that_asks_for_a_retry_gets_one(run: Run, case: str) -> None:
    level, reason = RETRIED[case]
    (copy,) = run.copies(case)
    assert copy.topic.endswith(f"-RETRY-{level}")
    assert copy.ours[wire.RETRY_REASON].partition(b":")[0] == reason
    assert [delivery.times for delivery in run.deliveries(case)] == [0, 1]


@pytest.mark.parametrize("case", TAKEN_AT_ONCE)
def test_an_answer_that_says_commit_spends_nothing(run: Run, case: str) -> None:
    assert [delivery.times for delivery in run.deliveries(case)] == [0]
    assert not run.copies(case)
    assert not run.dead(case)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("level-minus-one", b"dead-letter-asked"),
        ("dead-letter", b"bad-sku"),
        ("dead-letter-in-body", b"bad-tax"),
        ("status-422", b"http-422"),
    ],
)
def test_an_answer_that_refuses_a_record_sends_it_to_the_dlq_at_once(run: Run, case: str, reason: bytes) -> None:
    (dead,) = run.dead(case)
    assert (dead.times, dead.ours[wire.RETRY_REASON]) == (0, reason)
    assert len(run.deliveries(case)) == 1
    assert not run.copies(case)


@pytest.mark.parametrize(("case", "deliveries"), [("throttle-429", 3), ("throttle-503", 2)])
def test_throttling_delivers_again_and_spends_no_retry(run: Run, case: str, deliveries: int) -> None:
    assert [delivery.times for delivery in run.deliveries(case)] == [0] * deliveries
    assert not run.copies(case)
    last, before = run.deliveries(case)[-1], run.deliveries(case)[-2]
    assert before.answered is not None
    assert last.received >= before.answered + 990  # Retry-After: 1; clocks are read in whole ms on both sides


def test_a_delay_that_no_level_has_is_made_of_hops(run: Run) -> None:
    hops = [copy.topic.rpartition("-")[2] for copy in run.copies("hops")]
    assert hops in (["2s", "1s"], ["2s"]), "the second is left out if the first was read half a second late"
    first, second = run.deliveries("hops")
    assert first.answered is not None
    assert second.times == 1
    assert second.received >= first.answered + 3_500 - GRAIN
