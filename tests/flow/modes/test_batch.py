"""Push in batches on a real broker: sizes and waits, verdicts for all and for each, and a partition that moves."""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Copy, Evidence, collect
from tests.support.proof.ledger import FAILED, THROTTLED, Delivery
from tests.support.service.behaviours import FAIL, HANG, OK, Answer, Behaviour, by_name, verdict
from tests.support.service.envelopes import LEFT_OUT, Said, Told, batches_of, sizes_of
from tests.support.sidecar.config import Config
from tests.support.sidecar.owned import owned

SIZE = 16
GOOD = 300
WAIT = 4_000
"""ms. Three producers, one after another, are done sooner."""
PARTITIONS = 4
CASES: dict[str, tuple[Behaviour, ...]] = {
    "says-retry": (verdict("retry"), OK),
    "delay": (verdict("retry; delay=2s"), OK),
    "left-out": (LEFT_OUT, OK),
    "unreadable": (verdict("perhaps"), OK),
    "dead-letter": (verdict("dead-letter; reason=bad-sku"),),
    "poison": (FAIL,),
}
DEAD = {"dead-letter": (0, b"bad-sku"), "poison": (2, b"retry-asked")}
RETRIED = {"says-retry": "1s", "delay": "2s", "left-out": "1s", "unreadable": "1s"}


def batched(**batch: object) -> Config:
    """Few requests, so that batches fill; no outage, where failing is the test."""
    return {"deliver": {"concurrency": 2, "outage_failures": None, "batch": {"max_size": SIZE, **batch}}}


class Run(NamedTuple):
    """One sidecar's work, seen from outside."""

    evidence: Evidence
    report: Report

    def deliveries(self, name: str) -> list[Delivery]:
        return [d for d in self.evidence.deliveries if (d.value or b"").startswith(name.encode() + b":")]

    def copies(self, name: str) -> list[Copy]:
        ids = {delivery.id for delivery in self.deliveries(name)}
        lives = sorted((key, life) for key, life in self.evidence.lives.items() if key[0] in ids)
        return [copy for _, life in lives for _, chain in sorted(life.items()) for copy in chain]


def named(name: str, count: int) -> list[Out]:
    return [Out(b"%s:%d" % (name.encode(), number), b"k%d" % number, (("a", None),)) for number in range(count)]


@pytest.fixture(scope="module")
def each(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    """Every verdict a few times among good records; one sidecar, lists of verdicts."""
    group = create_group(new_group(), partitions=PARTITIONS)
    service = start_service(by_name(CASES))
    records = [record for name in CASES for record in named(name, 3)] + named("good", GOOD)
    produce(group.bootstrap, group.main, records)
    sidecar = start_sidecar(group, service.url, overrides=batched())
    wanted = len(records) - 3 * len(DEAD)
    sidecar.until(lambda: len(service.ledger.taken()) == wanted, 30, f"{wanted} records are taken")
    ended = "poison is dead"
    sidecar.until(lambda: sum(d.times == 2 for d in service.ledger.deliveries()) == 3, 15, ended)
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    return Run(evidence, check(evidence))


def test_every_record_is_counted_once_and_none_is_delivered_twice(each: Run) -> None:
    total = GOOD + 3 * len(CASES)
    assert (each.report.committed, each.report.dead_lettered) == (total - 6, 6)
    assert (each.report.waiting, each.report.duplicates) == (0, 0)


def test_requests_are_filled_and_never_over_filled(each: Run) -> None:
    sizes = sizes_of(each.evidence.deliveries)
    assert max(sizes) == SIZE
    assert sizes[SIZE] >= (GOOD + 3 * len(CASES)) // SIZE // 2


@pytest.mark.parametrize("case", RETRIED)
def test_a_record_s_own_verdict_is_its_alone(each: Run, case: str) -> None:
    copies = each.copies(case)
    assert [copy.topic.rpartition("-")[2] for copy in copies] == [RETRIED[case]] * 3
    assert sorted(delivery.times for delivery in each.deliveries(case)) == [0] * 3 + [1] * 3


def test_a_record_that_the_list_leaves_out_says_why_it_is_retried(each: Run) -> None:
    reasons = {copy.ours[wire.RETRY_REASON].partition(b":")[0] for copy in each.copies("left-out")}
    assert reasons == {b"missing-verdict"}


@pytest.mark.parametrize("case", DEAD)
def test_a_refused_record_of_a_batch_is_dead_alone(each: Run, case: str) -> None:
    times, reason = DEAD[case]
    ids = {delivery.id for delivery in each.deliveries(case)}
    dead = [copy for copy in each.evidence.dead if copy.id in ids]
    assert [(copy.times, copy.ours[wire.RETRY_REASON]) for copy in dead] == [(times, reason)] * 3


def one_after_another(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, told: Told, count: int
) -> Run:
    """A sidecar that sends one batch at a time of `count` records in all."""
    group = create_group(new_group())
    service = start_service(lambda _request: OK)
    service.batch_script = told
    produce(group.bootstrap, group.main, named("good", count))
    overrides = batched(max_wait="1s")
    settings = {"deliver": {**overrides["deliver"], "concurrency": 1, "timeout": "1s"}}
    sidecar = start_sidecar(group, service.url, overrides=settings)
    sidecar.until(lambda: len(service.ledger.taken()) == count, 30, "all are taken")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    return Run(evidence, check(evidence))


def test_one_verdict_is_for_all_of_its_batch_and_for_no_other(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Three ways to say that the whole batch failed, then batches that are taken."""
    in_body = Answer(200, (("Content-Type", "application/json"),), b'{"verdict": "retry", "delay": "2s"}', means=FAILED)
    told = Told(Said(verdict("retry; delay=2s")), Said(FAIL), Said(in_body))
    run = one_after_another(new_group, start_service, start_sidecar, told, 4 * SIZE)
    assert (run.report.committed, run.report.duplicates) == (4 * SIZE, 0)
    levels = [copy.topic.rpartition("-")[2] for copy in run.copies("good")]
    assert (levels.count("2s"), levels.count("1s")) == (2 * SIZE, SIZE)


def test_429_makes_the_whole_batch_wait_and_spends_nothing(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    told = Told(Said(Answer(429)), Said(Answer(503, (("Retry-After", "1"),))))
    run = one_after_another(new_group, start_service, start_sidecar, told, 2 * SIZE)
    assert sum(delivery.means == THROTTLED for delivery in run.evidence.deliveries) >= SIZE
    assert (run.report.committed, run.report.retries, run.report.duplicates) == (2 * SIZE, 0, 0)


def test_a_batch_without_an_answer_is_one_failed_attempt_of_each_record(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    told = Told(Said(HANG))
    run = one_after_another(new_group, start_service, start_sidecar, told, 2 * SIZE)
    assert (run.report.committed, run.report.retries, run.report.duplicates) == (2 * SIZE, SIZE, 0)
    assert {copy.ours[wire.RETRY_REASON].partition(b":")[0] for copy in run.copies("good")} == {b"timeout"}


def test_a_batch_waits_for_more_as_long_as_it_may(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Records that come one after another within the wait go in one request, when the first has waited long enough."""
    group = create_group(new_group())
    service = start_service(lambda _request: OK)
    sidecar = start_sidecar(group, service.url, overrides=batched(max_wait=f"{WAIT}ms"))
    for record in named("good", 3):
        produce(group.bootstrap, group.main, [record])
    sidecar.until(lambda: len(service.ledger.taken()) == 3, 15, "all are taken")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    check(evidence)
    (batch,) = batches_of(evidence.deliveries)
    waited = batch[0].received - min(_appended(evidence, delivery) for delivery in batch)
    assert WAIT <= waited < 2 * WAIT


def _appended(evidence: Evidence, delivery: Delivery) -> int:
    return evidence.sources[delivery.id][1].timestamp


def test_a_body_is_no_longer_than_it_may_be_and_a_larger_record_goes_alone(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    service = start_service(lambda _request: OK)
    large = [Out(b"large:" + b"v" * 20_000), *named("good", 60)]
    produce(group.bootstrap, group.main, [*named("good", 60), *large])
    sidecar = start_sidecar(group, service.url, overrides=batched(max_bytes="2KiB"))
    sidecar.until(lambda: len(service.ledger.taken()) == 121, 15, "all are taken")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    assert check(evidence).committed == 121
    for batch in batches_of(evidence.deliveries):
        length = int(dict(batch[0].headers)["content-length"])
        assert length <= 2_048 or (len(batch) == 1 and (batch[0].value or b"").startswith(b"large"))


@pytest.mark.long
def test_a_partition_that_moves_takes_its_records_out_of_the_batch_that_is_forming(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """One sidecar gathers records of all partitions and waits for more; half of them go to a second one, which
    delivers theirs. Without the recall they would come twice, or hold up the rebalance until the lock is over."""
    group = create_group(new_group(), partitions=PARTITIONS)
    service = start_service(lambda _request: OK)
    records = [Out(b"good:%d" % number, partition=number % PARTITIONS) for number in range(PARTITIONS * 3)]
    waiting: Config = {"lock_timeout": "60s", **batched(max_size=1_000, max_wait="450s")}
    first = start_sidecar(group, f"{service.url}/pod-0", "pod-0", waiting)
    produce(group.bootstrap, group.main, records)
    first.until(lambda: first.metric("reconsume_in_flight") == len(records), 15, "all are gathered")
    second = start_sidecar(group, f"{service.url}/pod-1", "pod-1", batched())
    second.until(lambda: len(owned(second)) == PARTITIONS // 2, 20, "the second has half")
    moved = len(records) // 2
    second.until(lambda: len(service.ledger.taken()) == moved, 15, "what moved is taken")
    assert first.metric("reconsume_in_flight") == moved
    produce(group.bootstrap, group.main, records)
    second.until(lambda: len(service.ledger.taken()) == 2 * moved, 15, "and what is new there")
    assert first.stop().code == 0
    second.until(lambda: len(service.ledger.taken()) == 2 * len(records), 20, "the second has taken all")
    assert second.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.duplicates, report.retries) == (2 * len(records), 0, 0)
    assert all(delivery.path.endswith("pod-1") for delivery in service.ledger.deliveries())


def test_what_the_service_has_of_a_partition_that_moves_is_answered_before_it_goes(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """A batch of all partitions is out when half of them are revoked: its answer counts for every record."""
    group = create_group(new_group(), partitions=PARTITIONS)
    let_go = threading.Event()
    service = start_service(lambda _request: OK)
    service.batch_script = lambda requests: Said(Answer(until=let_go)) if not let_go.is_set() else Said(OK)
    records = [Out(b"good:%d" % number, partition=number % PARTITIONS) for number in range(PARTITIONS * 3)]
    patient = {"timeout": "60s", "concurrency": len(records)}  # however they are fetched, and however long that takes
    overrides: Config = {"lock_timeout": "30s", "deliver": {**batched()["deliver"], **patient}}
    first = start_sidecar(group, f"{service.url}/pod-0", "pod-0", overrides)
    produce(group.bootstrap, group.main, records)
    first.until(lambda: len(service.ledger.deliveries()) == len(records), 15, "all are out")
    second = start_sidecar(group, f"{service.url}/pod-1", "pod-1", overrides)
    first.until(lambda: any(p["not_fetched"] == "closing" for p in first.status()["partitions"]), 15, "half is revoked")
    let_go.set()
    second.until(lambda: len(owned(second)) == PARTITIONS // 2, 15, "the second has half")
    assert [first.stop().code, second.stop().code] == [0, 0]
    report = check(collect(group, service.ledger))
    assert (report.committed, report.duplicates) == (len(records), 0)


@pytest.mark.parametrize("mix", [False, True])
def test_a_batch_has_one_topic_unless_topics_are_to_mix(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, mix: bool
) -> None:
    group = create_group(new_group(2), partitions=1)
    for topic in group.mains:
        produce(group.bootstrap, topic, named("good", 4 * SIZE))
    service = start_service(lambda _request: OK)
    sidecar = start_sidecar(group, service.url, overrides=batched(mix=mix, max_wait="3s", max_size=8 * SIZE))
    sidecar.until(lambda: len(service.ledger.taken()) == 8 * SIZE, 30, "all records of both topics are taken")
    assert sidecar.stop().code == 0
    batches = batches_of(collect(group, service.ledger).deliveries)
    assert any(len({delivery.id.split(":")[0] for delivery in batch}) > 1 for batch in batches) is mix
