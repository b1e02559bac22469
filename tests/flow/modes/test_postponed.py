"""A postponed record on a real broker: it comes again when it was asked for, uncounted, and a kill loses none.

In push, in a batch, and in pull mode, where `change-invisible` says the same.
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Copy, Evidence, collect
from tests.support.proof.invariants import GRAIN
from tests.support.proof.ledger import POSTPONED, Delivery, Ledger
from tests.support.proof.quiet import await_quiet
from tests.support.proof.way import check_way, levels_of
from tests.support.rings import inner
from tests.support.service.behaviours import FAIL, OK, Answer, Behaviour, by_name, verdict
from tests.support.service.puller import PULL, Got, Puller
from tests.support.sidecar.config import Config

GOOD = 200
LIMIT = 4_000
SHORT, LONG = 2_000, 10_000
"""ms. The first waits in memory, the second in level topics."""
QUIET = 40.0
LEASE = 1
"""Seconds."""


def postpone(wanted: str) -> Answer:
    """The verdict as a header."""
    return verdict(f"postpone; delay={wanted}", means=POSTPONED)


def in_body(wanted: str) -> Answer:
    """The verdict as a body."""
    body = json.dumps({"verdict": "postpone", "delay": wanted}).encode()
    return Answer(200, (("Content-Type", "application/json"),), body, means=POSTPONED)


CASES: dict[str, tuple[Behaviour, ...]] = {
    "short": (postpone("2s"), OK),
    "body": (in_body("2s"), OK),
    "long": (postpone("10s"), OK),
    "fails-first": (FAIL, postpone("2s"), OK),
    "long-after-a-failure": (FAIL, postpone("10s"), OK),
    "without-end": (postpone("1s"),),
}
IN_A_BATCH = {name: steps for name, steps in CASES.items() if name != "body"}
"""In a batch each verdict is in the one body."""
SENT: dict[str, Config] = {
    "each alone": {"deliver": {"concurrency": 16}},
    "in batches": {"deliver": {"concurrency": 2, "batch": {"max_size": 16}}},
}


class Run(NamedTuple):
    """A sidecar's work on all cases, seen from outside."""

    evidence: Evidence
    report: Report
    ids: dict[str, str]

    def deliveries(self, case: str) -> list[Delivery]:
        return [delivery for delivery in self.evidence.deliveries if delivery.id == self.ids[case]]

    def times(self, case: str) -> list[int]:
        return [delivery.times for delivery in self.deliveries(case)]

    def copies(self, case: str) -> list[Copy]:
        lives = self.evidence.lives.get((self.ids[case], 0), {})
        return [copy for _, chain in sorted(lives.items()) for copy in chain]

    def waited(self, case: str, number: int) -> int:
        """ms from the answer of one delivery to the next."""
        before, after = self.deliveries(case)[number : number + 2]
        assert before.answered is not None
        return after.received - before.answered


def produced(group: GroupTopics, names: list[str]) -> dict[str, str]:
    """The records' ids by name."""
    records = [Out(name.encode(), b"key") for name in names] + [Out(b"good:%d" % n, b"%d" % n) for n in range(GOOD)]
    places = produce(group.bootstrap, group.main, records)
    return {
        (record.value or b"").decode(): f"{group.main}:{partition}:{offset}"
        for record, (partition, offset) in zip(records, places, strict=True)
    }


@pytest.fixture(scope="module", params=inner("each alone", SENT))
def run(
    request: pytest.FixtureRequest, new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> Run:
    group = create_group(new_group(), partitions=2)
    cases = CASES if request.param == "each alone" else IN_A_BATCH
    service = start_service(by_name(cases))
    ids = produced(group, list(cases))
    retry = {"postpone_limit": f"{LIMIT}ms", "max_reconsume_times": 1}
    sidecar = start_sidecar(group, service.url, overrides={**SENT[request.param], "retry": retry})
    await_quiet(group, QUIET)
    assert sidecar.metric("reconsume_odd_verdicts_total") == 0
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    return Run(evidence, check(evidence), ids)


def test_all_are_done_but_the_one_that_is_postponed_without_end(run: Run) -> None:
    """Given failures of two records, and a limit that a third reaches twice, then those are all the retries spent."""
    assert (run.report.committed, run.report.dead_lettered, run.report.waiting) == (len(run.ids) - 1, 1, 0)
    assert (run.report.retries, run.report.duplicates) == (3, 0)


def test_postponed_records_come_again_when_they_were_asked_for_and_are_not_counted(run: Run) -> None:
    """Given a short wait, a long one, and one that the body asks for (a batch has one body, so not there)."""
    cases = {"short": SHORT, "body": SHORT, "long": LONG}
    for case, wanted in cases.items() if "body" in run.ids else {"short": SHORT, "long": LONG}.items():
        assert run.times(case) == [0, 0], case
        assert wanted - GRAIN <= run.waited(case, 0) < wanted + 3_000, case


def test_only_a_long_wait_is_a_copy_and_it_tells_since_when(run: Run) -> None:
    assert run.copies("short") == []
    copies = run.copies("long")
    levels = levels_of(copies)
    assert levels[0] == "5s"
    assert 2 <= len(levels) <= 3, "5s again, or two shorter ones if the first was more than half a second late"
    check_way(run.evidence, copies, LONG)
    assert {copy.times for copy in copies} == {0}
    assert len({(copy.due, copy.ours[wire.RETRY_POSTPONED_AT]) for copy in copies}) == 1


@pytest.mark.parametrize("case", ["fails-first", "long-after-a-failure"])
def test_a_postponed_retry_keeps_its_count(run: Run, case: str) -> None:
    assert run.times(case) == [0, 1, 1]
    assert {copy.times for copy in run.copies(case)} == {1}


def test_a_record_that_is_postponed_for_longer_than_the_limit_has_failed(run: Run) -> None:
    """Given a postponement each second, then after the limit it is a retry, and after it again a dead letter."""
    (dead,) = run.evidence.dead
    assert (dead.id, dead.times) == (run.ids["without-end"], 1)
    assert dead.ours[wire.RETRY_REASON].startswith(b"postponed")
    (retry,) = run.copies("without-end")
    assert (retry.times, wire.RETRY_POSTPONED_AT in retry.ours) == (1, False)
    first, *_, last = [delivery for delivery in run.deliveries("without-end") if delivery.times == 0]
    assert LIMIT - GRAIN <= last.received - first.received < LIMIT + 3_000


@pytest.mark.long  # as in pull mode in every run
@pytest.mark.parametrize("sent", inner("each alone", SENT))
def test_a_kill_loses_no_postponed_record_and_counts_none(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, sent: str
) -> None:
    """Given one that waits in memory and one in a level topic, then the successor delivers both, still uncounted."""
    cases = {"short": (postpone("9s"), OK), "long": (postpone("10s"), OK)}
    group = create_group(new_group(), partitions=2)
    service = start_service(by_name(cases))
    ids = produced(group, list(cases))
    first = start_sidecar(group, service.url, overrides=SENT[sent])
    first.until(lambda: dump(group.bootstrap, group.names.level(5_000, group.main)), 15, "the long one is a copy")
    first.until(lambda: len(service.ledger.taken()) == GOOD, 15, "all others are done")
    first.kill()
    start_sidecar(group, service.url, overrides=SENT[sent])
    await_quiet(group, QUIET)
    evidence = collect(group, service.ledger)
    report = check(evidence)
    assert (report.committed, report.dead_lettered, report.retries) == (GOOD + 2, 0, 0)
    of = {name: [d.times for d in evidence.deliveries if d.id == ids[name]] for name in cases}
    assert of == {"short": [0, 0], "long": [0, 0]}


def test_in_pull_mode_change_invisible_postpones_and_a_kill_counts_nothing(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    """Given a lease that is made longer, then its first end is no expiry; the successor hands the record out again."""
    group = create_group(new_group(), partitions=1)
    produce(group.bootstrap, group.main, [b"waits"])
    first = start_sidecar(group, "", overrides=PULL)
    puller = Puller(first, ledger)
    [got] = puller.receive(2, f"{LEASE}s", "15s")
    assert isinstance(puller.change(got, "30s"), Got)
    over = time.monotonic() + 2 * LEASE
    first.until(lambda: time.monotonic() > over, 2 * LEASE, "the first lease would be over")
    assert puller.receive() == []
    first.kill()
    second = Puller(start_sidecar(group, "", overrides=PULL), ledger)
    [again] = second.receive(2, "10s", "20s")
    assert (again.id, again.times) == (got.id, 0)
    assert second.ack(again) == ["ok"]
    await_quiet(group, QUIET)
    report = check(collect(group, ledger))
    assert (report.committed, report.retries, report.dead_lettered) == (1, 0, 0)
