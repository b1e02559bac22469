"""Services of real processes that records end while the sidecar lives: nothing innocent pays for it (contract 1.10)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.evidence import Evidence, collect
from tests.support.proof.ledger import Ledger
from tests.support.proof.quiet import await_quiet
from tests.support.rings import inner
from tests.support.service.mortal_service import MortalService
from tests.support.sidecar.process import SidecarProcess

RECORDS = 120
QUIET_WITHIN = 90.0
PUSH: Mapping[str, Any] = {"concurrency": 16}
BATCH: Mapping[str, Any] = {"concurrency": 4, "batch": {"max_size": 10}}
KEYS: Mapping[str, Any] = {"concurrency": 16, "order": "key"}


class Deaths(NamedTuple):
    """What a group under deaths left behind."""

    evidence: Evidence
    executions: Counter[int]
    log: list[Mapping[str, Any]]
    counted: float
    failures: float
    """Deliveries that ended without a response and used up a retry, also in place."""

    def dead_letters(self) -> list[tuple[int, bytes, bytes]]:
        """Of each dead letter the number of its record, the class of its reason, and how many retries it has used."""
        rows = [(json.loads(row.value or b"{}"), dict(row.headers)) for row in self.evidence.dlq]
        return sorted(
            (value["n"], (headers[wire.RETRY_REASON] or b"").partition(b":")[0], headers[wire.RECONSUMETIMES] or b"")
            for value, headers in rows
        )

    def copies(self) -> int:
        """How many copies there are on level topics: each has used up a retry."""
        return sum(map(len, self.evidence.retries.values()))

    def retried(self) -> set[int]:
        """The numbers of the records that have used up a retry."""
        return {json.loads(row.value or b"{}")["n"] for rows in self.evidence.retries.values() for row in rows}

    def lines(self, event: str) -> list[Mapping[str, Any]]:
        """The log lines of an event."""
        return [line for line in self.log if line.get("event") == event]


def produce_orders(group: GroupTopics, deeds: Mapping[int, str]) -> None:
    """The records of a short test."""
    produce_deeds(group, range(RECORDS), deeds)


def produce_deeds(group: GroupTopics, numbers: Iterable[int], deeds: Mapping[int, str]) -> None:
    """Produce records with their number as key, of which some make the service do something."""

    def value(number: int) -> bytes:
        return json.dumps({"n": number, "do": deeds[number]} if number in deeds else {"n": number}).encode()

    orders = [Out(value(number), key=b"%d" % number, partition=number % 2) for number in numbers]
    produce(group.bootstrap, group.main, orders)


def deaths_of(
    group: GroupTopics, sidecar: SidecarProcess, service: MortalService, folder: Path, seconds: float = QUIET_WITHIN
) -> Deaths:
    """Wait until the group has nothing left to do, and collect what it left."""
    await_quiet(group, seconds)
    counted = sidecar.metric("reconsume_service_deaths_total")
    outcomes = [line for line in sidecar.metrics().splitlines() if line.startswith("reconsume_deliveries_total{")]
    failures = sum(float(line.rpartition(" ")[2]) for line in outcomes if 'outcome="broken_answer"' in line)
    sidecar.stop()
    log = [json.loads(line) for line in sidecar.log().splitlines() if line.startswith("{")]
    with closing(Ledger(folder / "ledger.jsonl")) as ledger:
        return Deaths(collect(group, ledger), service.executions(), log, counted, failures)


def config(deliver: Mapping[str, Any]) -> dict[str, Any]:
    retry = {"ordered_interval": "200ms"} if "order" in deliver else {"ladder": ["1s"]}
    return {"deliver": dict(deliver), "retry": retry, "log": {"format": "json"}}


@pytest.mark.parametrize("java", inner(False, [False, True]))
@pytest.mark.parametrize("deed", inner("exit", ["exit", "kill", "oom"]))
@pytest.mark.parametrize("deliver", inner(PUSH, [PUSH, BATCH, KEYS]), ids=["push", "batch", "by key"])
def test_a_record_that_ends_its_service_is_dead_lettered_and_no_other_pays(
    new_group: FreshGroup,
    start_sidecar: StartSidecar,
    tmp_path: Path,
    deliver: Mapping[str, Any],
    deed: str,
    java: bool,
) -> None:
    """Given two of them, then each is dead-lettered at its third death, and the others use up no retry."""
    if java and deliver is BATCH:
        pytest.skip("no program for this service: the JVM reads no batches")
    group = create_group(new_group())
    with MortalService(tmp_path, restart_after=0.05, java=java) as service:
        sidecar = start_sidecar(group, service.url, overrides=config(deliver))
        produce_orders(group, {40: deed, 41: deed})
        found = deaths_of(group, sidecar, service, tmp_path)
    assert found.dead_letters() == [(40, b"crashed-service", b"0"), (41, b"crashed-service", b"0")]
    assert (found.copies(), found.failures) == (0, 0)
    assert set(found.executions) == set(range(RECORDS))
    assert found.executions[40] <= 3
    assert found.executions[41] <= 3
    assert found.counted >= 4
    assert found.lines("crashing-record")


def test_a_death_that_is_over_at_once_is_one_line_and_a_long_one_is_an_outage_too(
    new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """SIGKILL to a service under load: a supervisor starts it again after 50 ms; and another one after 10 s."""
    for restart_after, outages in ((0.05, 0), (10.0, 1)):
        folder = tmp_path / str(outages)
        folder.mkdir()
        group = create_group(new_group())
        with MortalService(folder, restart_after=restart_after) as service:
            sidecar = start_sidecar(group, service.url, overrides=config(PUSH))
            produce_orders(group, dict.fromkeys(range(20, 52), "slow"))
            until(
                lambda: sum(map(service.executions().__getitem__, range(20, 52))) > 3, 30, "slow records are in flight"
            )
            service.kill_one()
            found = deaths_of(group, sidecar, service, folder)
        (died,) = found.lines("service-died")
        assert 0 < died["suspects"] <= 16
        assert found.counted == 1
        assert len(found.lines("pace-outage")) == outages
        assert len(found.lines("pace-open")) == outages
        assert (found.dead_letters(), found.copies()) == ([], 0)
        assert set(found.executions) == set(range(RECORDS))


@pytest.mark.parametrize("prefork", inner(False, [False, True]), ids=["a listener each", "one listener"])
def test_one_of_four_workers_that_dies_costs_no_retry(
    new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path, prefork: bool
) -> None:
    """Under load each worker has several connections; what the others have is answered and counts as usual."""
    group = create_group(new_group())
    with MortalService(tmp_path, workers=4, prefork=prefork) as service:
        sidecar = start_sidecar(group, service.url, overrides=config({"concurrency": 32}))
        produce_orders(group, dict.fromkeys(range(64), "slow") | {70: "kill"})
        found = deaths_of(group, sidecar, service, tmp_path)
    poisonous = [letter for letter in found.dead_letters() if letter[0] == 70]
    assert found.dead_letters() == poisonous
    assert found.retried() <= {70}
    assert set(found.executions) == set(range(RECORDS))


def test_a_death_of_the_service_counts_on_when_the_sidecar_dies_with_it(
    new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """The second death takes the sidecar too: the third one convicts, and no innocent record pays."""
    group = create_group(new_group())
    with MortalService(tmp_path, restart_after=0.5) as service:
        sidecar = start_sidecar(group, service.url, overrides=config(PUSH) | {"kafka": {"session.timeout.ms": 2_000}})
        produce_orders(group, {40: "kill"})
        until(lambda: service.executions()[40] == 2, 30, "the poison goes alone")
        sidecar.kill()
        sidecar.start()
        found = deaths_of(group, sidecar, service, tmp_path)
    assert found.dead_letters() == [(40, b"crashed-service", b"0")]
    assert found.executions[40] <= 3
    assert found.copies() == 0
