"""Pull mode on a real broker: what each verdict and each expiry leaves behind (contract 6.4 to 6.9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Copy, Evidence, collect
from tests.support.proof.invariants import GRAIN
from tests.support.proof.ledger import Delivery, Ledger
from tests.support.proof.quiet import await_quiet
from tests.support.service.puller import PULL, Got, Puller
from tests.support.sidecar.process import Exit

GOOD = 300
LEASE = "2s"
NACK_DELAY = 1_000
ON_ITS_WAY = 500
"""ms at most: a lease runs from the sidecar's answer on, the ledger from its arrival."""
CASES = (
    "expires",
    "expires-always",
    "nacks",
    "nacks-always",
    "nacks-then-expires",
    "releases",
    "changes",
    "delay",
    "hops",
    "level",
    "ladder",
    "level-minus-one",
    "dead-letter",
)
DEAD = ("expires-always", "nacks-always", "level-minus-one", "dead-letter")


class Worker:
    """Receives and answers each record by its name. `kept`: what it does not answer at once, and when it will."""

    def __init__(self, puller: Puller) -> None:
        self.puller = puller
        self.kept: list[tuple[float, Got]] = []

    def work(self, done: Callable[[], bool], seconds: float) -> None:
        until(lambda: self._turn() or done(), seconds, "all records have got their last verdict")

    def _turn(self) -> bool:
        got = self.puller.receive(128, LEASE, "100ms")
        good = [one for one in got if one.name == "good"]
        if good:
            assert set(self.puller.ack(*good)) == {"ok"}
        for one in got:
            if one.name != "good":
                self._answer(one)
        for at, one in [kept for kept in self.kept if kept[0] <= time.monotonic()]:
            assert self.puller.ack(one) == ["ok"]
            self.kept.remove((at, one))
        return False

    def _answer(self, one: Got) -> None:
        match one.name, one.times:
            case ("expires-always", _) | ("expires", 0):
                return
            case "nacks-then-expires", 0 if one.nacks == 1:
                return
            case name, 0 if name == "nacks-always" or (name.startswith("nacks") and not one.nacks):
                told = self.puller.nack(one)[0]
            case "releases", 0:
                told = self.puller.release(one)[0]
            case "changes", 0:
                changed = self.puller.change(one, "20s")
                assert isinstance(changed, Got)
                self.kept.append((time.monotonic() + 4, changed))
                told = "ok"
            case "delay", 0:
                told = self.puller.later(one, delay="2s")
            case "hops", 0:
                told = self.puller.later(one, delay="3500ms")
            case "level", 0:
                told = self.puller.later(one, level=2)
            case "ladder", 0:
                told = self.puller.later(one)
            case _:
                told = self._end(one)
        assert told == "ok", one

    def _end(self, one: Got) -> str:
        if one.name == "level-minus-one":
            return self.puller.later(one, level=-1)
        return self.puller.dead_letter(one, "bad-sku") if one.name == "dead-letter" else self.puller.ack(one)[0]


class Run(NamedTuple):
    """One sidecar's work on all cases, seen from outside."""

    evidence: Evidence
    report: Report
    ids: dict[str, str]
    end: Exit

    def deliveries(self, case: str) -> list[Delivery]:
        return [delivery for delivery in self.evidence.deliveries if delivery.id == self.ids[case]]

    def times(self, case: str) -> list[int]:
        return [delivery.times for delivery in self.deliveries(case)]

    def copies(self, case: str) -> list[Copy]:
        """Its copies on retry topics, in the order of their counts."""
        return [copy for _, chain in sorted(self.evidence.lives.get((self.ids[case], 0), {}).items()) for copy in chain]

    def dead(self, case: str) -> list[Copy]:
        return [copy for copy in self.evidence.dead if copy.id == self.ids[case]]


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_sidecar: StartSidecar, folder: Path) -> Run:
    group = create_group(new_group(), partitions=3)
    ledger = Ledger(folder / "pull-ledger.jsonl")
    overrides = {
        **PULL,
        "retry": {"nack_redelivery_delay": f"{NACK_DELAY}ms"},
        "pull": {**PULL["pull"], "nack_max_times": 2},
    }
    sidecar = start_sidecar(group, "", overrides=overrides)
    records = [Out(b"good:%d" % number, b"k%d" % (number % 7)) for number in range(GOOD)]
    records += [Out(name.encode(), b"key", (("a", b"1"), ("a", None), ("é", b""))) for name in CASES]
    places = produce(group.bootstrap, group.main, records)
    ids = {
        (out.value or b"").decode(): f"{group.main}:{partition}:{offset}"
        for out, (partition, offset) in zip(records, places, strict=True)
    }
    wanted = len(records) - len(DEAD)
    final = {(ids["expires-always"], 2)}

    def done() -> bool:
        deliveries = ledger.deliveries()
        nacked = sum(delivery.id == ids["nacks-always"] for delivery in deliveries)
        return len(ledger.taken()) == wanted and nacked == 3 and final <= {(d.id, d.times) for d in deliveries}

    Worker(Puller(sidecar, ledger)).work(done, 40)
    await_quiet(group, 20)
    end = sidecar.stop()
    evidence = collect(group, ledger)
    ledger.close()
    return Run(evidence, check(evidence), ids, end)


def test_every_record_is_committed_or_dead_and_counted_exactly(run: Run) -> None:
    total = len(run.ids)
    assert (run.report.committed, run.report.dead_lettered, run.report.waiting) == (total - len(DEAD), len(DEAD), 0)
    assert run.report.duplicates == 4, "nacked records come back with the same count"
    assert run.end.code == 0


def test_an_expired_lease_is_one_failure_and_due_at_once_on_the_ready_topic(run: Run) -> None:
    (copy,) = run.copies("expires")
    first, second = run.deliveries("expires")
    assert (copy.topic, copy.times) == (run.evidence.group.names.ready, 1)
    assert copy.ours[wire.RETRY_REASON] == b"lease-expired"
    assert first.received + 2_000 - ON_ITS_WAY <= copy.due <= second.received
    assert run.times("expires") == [0, 1]


def test_a_lease_that_expires_each_time_ends_in_the_dlq_after_the_last_retry(run: Run) -> None:
    (dead,) = run.dead("expires-always")
    assert run.times("expires-always") == [0, 1, 2]
    assert (dead.times, dead.ours[wire.RETRY_REASON]) == (2, b"lease-expired")


def test_a_nack_writes_nothing_and_comes_back_after_its_delay_at_the_next_third(run: Run) -> None:
    assert run.copies("nacks") == []
    first, second = run.deliveries("nacks")
    assert (first.times, second.times) == (0, 0)
    assert first.answered is not None
    assert second.received >= first.answered + NACK_DELAY - GRAIN


def test_nacks_have_a_limit_of_their_own_and_use_up_no_retry(run: Run) -> None:
    (dead,) = run.dead("nacks-always")
    assert run.times("nacks-always") == [0, 0, 0]
    assert run.copies("nacks-always") == []
    assert (dead.times, dead.ours[wire.RETRY_REASON]) == (0, b"nacked")


def test_a_failure_behind_a_nack_is_the_first_one(run: Run) -> None:
    (copy,) = run.copies("nacks-then-expires")
    assert copy.times == 1
    assert run.times("nacks-then-expires") == [0, 0, 1]


def test_a_released_record_is_a_failure_and_due_when_its_lease_would_have_ended(run: Run) -> None:
    (copy,) = run.copies("releases")
    first, second = run.deliveries("releases")
    assert (copy.times, copy.ours[wire.RETRY_REASON]) == (1, b"released")
    assert first.received + 2_000 - ON_ITS_WAY <= copy.due <= second.received
    assert run.times("releases") == [0, 1]


def test_a_lease_that_was_prolonged_outlives_its_first_end(run: Run) -> None:
    (only,) = run.deliveries("changes")
    assert only.answered is not None
    assert only.answered > only.received + 2_000
    assert run.copies("changes") == []


@pytest.mark.parametrize(
    ("case", "levels", "delay"),
    [
        ("delay", ["2s"], 2_000),
        ("hops", ["2s", "1s"], 3_500),
        ("level", ["2s"], 2_000),
        ("ladder", ["1s"], 1_000),
    ],
)
def test_reconsume_later_waits_by_delay_level_or_ladder(run: Run, case: str, levels: list[str], delay: int) -> None:
    hops = [copy.topic.rpartition("-")[2] for copy in run.copies(case)]
    assert hops in (levels, levels[:1]), "the second is left out if the first was read half a second late"
    assert {copy.ours[wire.RETRY_REASON] for copy in run.copies(case)} == {b"retry-asked"}
    assert run.times(case) == [0, 1]
    first, second = run.deliveries(case)
    assert first.answered is not None
    assert second.received >= first.answered + delay - GRAIN


@pytest.mark.parametrize(("case", "reason"), [("level-minus-one", b"dead-letter-asked"), ("dead-letter", b"bad-sku")])
def test_a_record_that_is_refused_for_good_is_dead_at_once(run: Run, case: str, reason: bytes) -> None:
    (dead,) = run.dead(case)
    assert (dead.times, dead.ours[wire.RETRY_REASON]) == (0, reason)
    assert run.copies(case) == []
