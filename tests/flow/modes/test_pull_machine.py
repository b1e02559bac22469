"""A client of pull mode that does anything in any order, against a real sidecar and broker, beside a model of leases.

What each handle was told must be what it is worth: at the end the topics and the ledger must agree with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import Ledger
from tests.support.proof.quiet import await_quiet
from tests.support.service.puller import PULL, Got, Puller

pytestmark = pytest.mark.long

SHORT, LONG = "100ms", "10m"
EXAMPLES, STEPS = 6, 20
STOP_AFTER = 25.0
"""Seconds after which no further example does anything: a busy machine must not make the run longer."""


class Stage(NamedTuple):
    """What all examples share."""

    group: GroupTopics
    puller: Puller
    settled: set[str]
    """Records that were acked or condemned: they must never be received again."""
    begun: float


class Client(RuleBasedStateMachine):
    """`live`: leases that cannot have run out; `short`: those that may have; `spent`: handles and what ended them."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.puller = stage.puller
        self.live: list[Got] = []
        self.short: list[Got] = []
        self.spent: list[tuple[Got, str]] = []
        self.over = time.monotonic() - stage.begun > STOP_AFTER

    @rule(count=st.integers(1, 8))
    def records_come(self, count: int) -> None:
        if not self.over:
            produce(self.stage.group.bootstrap, self.stage.group.main, [Out(b"x")] * count)

    @rule(most=st.integers(1, 6), short=st.booleans())
    def receive(self, most: int, short: bool) -> None:
        if not self.over:
            got = self.puller.receive(most, SHORT if short else LONG, "200ms")
            assert not {one.id for one in got} & self.stage.settled
            (self.short if short else self.live).extend(got)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), verdict=st.sampled_from(["ack", "nack", "later", "dead"]))
    def answer(self, data: st.DataObject, verdict: str) -> None:
        one = self._drawn(data, self.live)
        assert self._say(one, verdict) == "ok"
        self._note(one, verdict)

    @precondition(lambda self: self.short)
    @rule(data=st.data(), verdict=st.sampled_from(["ack", "nack", "later", "dead"]))
    def answer_perhaps_too_late(self, data: st.DataObject, verdict: str) -> None:
        one = self._drawn(data, self.short)
        told = self._say(one, verdict)
        assert told in ("ok", "expired")
        self._note(one, verdict if told == "ok" else "expired")

    @precondition(lambda self: self.live)
    @rule(data=st.data(), short=st.booleans())
    def change(self, data: st.DataObject, short: bool) -> None:
        one = self._drawn(data, self.live)
        changed = self.puller.change(one, SHORT if short else LONG)
        assert isinstance(changed, Got)
        (self.short if short else self.live).append(changed)
        self.spent.append((one, "replaced"))

    @precondition(lambda self: self.spent)
    @rule(data=st.data(), verdict=st.sampled_from(["ack", "nack"]))
    def say_it_again(self, data: st.DataObject, verdict: str) -> None:
        """A handle that is over: the same verdict is harmless, any other is refused. It is not a delivery's answer."""
        one, fate = data.draw(st.sampled_from(self.spent))
        reply = self.puller.call(verdict, {"handles": [one.handle]})
        wanted = "ok" if verdict == fate else "expired" if fate == "expired" else "fenced"
        assert (reply.status, reply.json["handles"][0]["status"]) == (200 if wanted == "ok" else 409, wanted)

    def teardown(self) -> None:
        """Leave nothing leased for ever: what can be acked is."""
        for one in self.live:
            assert self.puller.ack(one) == ["ok"]
            self._note(one, "ack")

    def _drawn(self, data: st.DataObject, leases: list[Got]) -> Got:
        one: Got = data.draw(st.sampled_from(leases))
        leases.remove(one)
        return one

    def _say(self, one: Got, verdict: str) -> str:
        match verdict:
            case "ack":
                return self.puller.ack(one)[0]
            case "nack":
                return self.puller.nack(one)[0]
            case "later":
                return self.puller.later(one, delay="1s")
            case _:
                return self.puller.dead_letter(one, "model")

    def _note(self, one: Got, fate: str) -> None:
        self.spent.append((one, fate))
        if fate in ("ack", "dead"):
            assert one.id not in self.stage.settled
            self.stage.settled.add(one.id)


def taking_all(stage: Stage) -> Callable[[], bool]:
    """Acks what is left; true when every record is taken or dead-lettered, by a verdict or by its last retry."""

    def done() -> bool:
        got = stage.puller.receive(1024, LONG, "200ms")
        if got:
            assert not {one.id for one in got} & stage.settled
            assert set(stage.puller.ack(*got)) == {"ok"}
            stage.settled.update(one.id for one in got)
        try:
            await_quiet(stage.group, 1)
        except AssertionError:
            return False
        return True

    return done


def test_whatever_a_client_does_nothing_is_lost_or_counted_twice(
    new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = create_group(new_group(), partitions=2)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    overrides = {**PULL, "retry": {"nack_redelivery_delay": "1s", "max_reconsume_times": 3}}
    sidecar = start_sidecar(group, "", overrides=overrides)
    stage = Stage(group, Puller(sidecar, ledger), set(), time.monotonic())
    run_state_machine_as_test(
        lambda: Client(stage),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            phases=(Phase.generate,),  # records do not go away: an example cannot be tried again on the same group
            suppress_health_check=tuple(HealthCheck),
            database=None,
        ),
    )
    until(taking_all(stage), 40, "everything has come to an end")
    assert sidecar.stop().code == 0
    report = check(collect(group, ledger))
    ledger.close()
    assert report.committed > 0
    assert (report.waiting, report.duplicates) == (0, 0), report
    assert stage.settled >= ledger.taken()
