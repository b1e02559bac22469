"""What a service may ask for with a retry, on a real broker: any delay, made of hops, or a level, or none of them."""

from __future__ import annotations

import json

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Copy, Evidence, collect
from tests.support.proof.invariants import GRAIN
from tests.support.proof.ledger import Delivery
from tests.support.proof.way import check_way, levels_of
from tests.support.service.behaviours import OK, by_name, verdict

LEVELS = (1_000, 5_000)
CASES = {
    "seven": "retry; delay=7s",
    "one": "retry; delay=1s",
    "level-2": "retry; level=2",
    "level-0": "retry; level=0",
    "level-minus-1": "retry; level=-1",
    "short": "retry; delay=999ms",
    "far": "retry; delay=864001s",
    "level-9": "retry; level=9",
    "no-delay": "retry; delay=soon",
}
ODD = ("short", "far")
"""What is out of bounds; what cannot be read at all is as if it were not said."""


class Run:
    """One sidecar's work on all cases."""

    def __init__(self, evidence: Evidence, ids: dict[str, str], odd: float) -> None:
        self.evidence, self.ids, self.odd = evidence, ids, odd
        self.report: Report = check(evidence)

    def deliveries(self, case: str) -> list[Delivery]:
        return [delivery for delivery in self.evidence.deliveries if delivery.id == self.ids[case]]

    def copies(self, case: str) -> list[Copy]:
        return [copy for chain in self.evidence.lives.get((self.ids[case], 0), {}).values() for copy in chain]

    def levels(self, case: str) -> list[str]:
        return levels_of(self.copies(case))


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    group = create_group(new_group(1, LEVELS), partitions=1)
    service = start_service(by_name({name: (verdict(said), OK) for name, said in CASES.items()}))
    sidecar = start_sidecar(group, service.url, overrides={"retry": {"ladder": ["1s"]}})
    places = produce(group.bootstrap, group.main, [Out(name.encode(), b"key") for name in CASES])
    ids = {name: f"{group.main}:{place[0]}:{place[1]}" for name, place in zip(CASES, places, strict=True)}
    sidecar.until(lambda: len(service.ledger.taken()) == len(CASES) - 1, 30, "all but one are taken")
    odd = sidecar.metric("reconsume_odd_requests_total")
    assert sidecar.stop().code == 0
    return Run(collect(group, service.ledger), ids, odd)


def test_seven_seconds_are_five_and_one_and_another_or_what_is_left_of_it(run: Run) -> None:
    """If the two hops were together more than 100 ms late, then what is left is no level's, and waits in memory."""
    copies = run.copies("seven")
    assert run.levels("seven") in (["5s", "1s"], ["5s", "1s", "1s"])
    check_way(run.evidence, copies, 7_000)
    assert {copy.times for copy in copies} == {1}
    assert len({copy.due for copy in copies}) == 1


def test_hops_are_no_events(run: Run) -> None:
    events = [json.loads(row.value or b"") for row in run.evidence.events]
    mine = [(event["state"], event["level"]) for event in events if event["id"] == run.ids["seven"]]
    assert mine == [("WAITING_RETRY", "5s"), ("COMMIT", None)]


@pytest.mark.parametrize(("case", "delay"), [("seven", 7_000), ("one", 1_000), ("level-2", 5_000)])
def test_what_was_asked_for_is_waited_exactly_and_never_short(run: Run, case: str, delay: int) -> None:
    first, second = run.deliveries(case)
    assert first.answered is not None
    due = run.copies(case)[0].due
    assert 0 <= due + GRAIN - (first.answered + delay) < 1_500
    assert 0 <= second.received - due < 3_000
    assert (first.times, second.times) == (0, 1)


@pytest.mark.parametrize("case", ["level-0", "no-delay", *ODD])
def test_what_is_no_wish_or_out_of_bounds_goes_by_the_ladder(run: Run, case: str) -> None:
    assert run.levels(case) == ["1s"]
    assert [delivery.times for delivery in run.deliveries(case)] == [0, 1]


def test_what_is_out_of_bounds_is_counted(run: Run) -> None:
    assert run.odd == len(ODD)


def test_level_minus_one_is_the_dlq_at_once(run: Run) -> None:
    (dead,) = run.evidence.dead
    assert (dead.id, dead.times) == (run.ids["level-minus-1"], 0)
    assert len(run.deliveries("level-minus-1")) == 1
