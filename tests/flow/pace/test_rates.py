"""Rates on a real broker: by number, live, divided by partitions, in each mode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import TOOK, Delivery, Ledger
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.service.puller import PULL, Puller
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.sidecar.pace_run import wall
from tests.support.sidecar.policy import CALM, follows, set_policy, with_policy


def outs(name: str, count: int) -> list[Out]:
    """Records of a kind, in turn on two partitions."""
    return [Out(f"{name}:{number}".encode(), b"k", partition=number % 2) for number in range(count)]


def keeps(deliveries: Sequence[Delivery], rate: float) -> bool:
    """Whether no stretch of them has more than the rate allows with a burst of a second, and all of them use the rate.

    A machine that stands still for a moment makes up for it within the burst.
    """
    came = sorted(one.received / 1_000 for one in deliveries)
    ahead = [number - rate * at for number, at in enumerate(came)]
    lowest = ahead[0]
    for one in ahead:
        lowest = min(lowest, one)
        if one - lowest > 1.05 * rate + 2:
            return False
    return (len(came) - 1) / (came[-1] - came[0]) > 0.8 * rate


def test_fresh_records_and_retries_together_go_by_the_rate_and_another_one_is_set_live(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(by_name({"flaky": (FAIL, OK)}))
    overrides = {"deliver": {**CALM["deliver"], "rate": "10/s"}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    produce(group.bootstrap, group.main, outs("flaky", 20) + outs("good", 40))
    sidecar.until(lambda: len(service.ledger.deliveries()) == 80, 30, "20 records twice, and 40 once")
    came = service.ledger.deliveries()
    assert keeps(came, 10)
    sidecar.until(lambda: len(service.ledger.taken()) == 60, 10, "all are done")
    set_policy(group, rate="100/s")
    follows(sidecar, rate="100/s", group_rate=None)
    produce(group.bootstrap, group.main, outs("later", 500))
    sidecar.until(lambda: sidecar.status()["limits"] == [binding("rate", 100.0)], 10, "they wait for the rate")
    assert sidecar.metric('reconsume_limit_waiting{limit="rate",topic=""}') == 1
    sidecar.until(lambda: len(service.ledger.taken()) == 560, 20, "the rate holds for them")
    later = [one for one in service.ledger.deliveries() if (one.value or b"").startswith(b"later")]
    assert keeps(later, 100)
    set_policy(group)
    follows(sidecar, rate="10/s")
    assert sidecar.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.duplicates, report.waiting) == (560, 0, 0), report


def binding(limit: str, most: float, topic: str | None = None) -> dict[str, object]:
    """What `/status` says of a limit that records wait for."""
    return {"limit": limit, "topic": topic, "most": most, "waits": True}


@pytest.mark.long
def test_records_count_in_batches_and_a_thousand_a_second_is_kept(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    service = start_service(by_name({}))
    produce(group.bootstrap, group.main, outs("good", 6_000))
    overrides = {"deliver": {"rate": "1000/s", "batch": {"max_size": 32}}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    sidecar.until(lambda: len(service.ledger.deliveries()) == 6_000, 30, "all came")
    assert keeps(service.ledger.deliveries(), 1_000)
    assert sidecar.stop().code == 0


@pytest.mark.long
def test_the_rate_of_the_group_is_divided_by_the_partitions_that_each_instance_owns(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    service = start_service(by_name({}))
    overrides = {"deliver": {"group_rate": "40/s"}}
    one = start_sidecar(group, service.url, "one", overrides)
    one.until(lambda: one.status()["limits"] and one.status()["limits"][0]["most"] == 40.0, 20, "it owns all")
    two = start_sidecar(group, service.url, "two", overrides)
    for pod in (one, two):
        pod.until(lambda pod=pod: pod.status()["limits"][0]["most"] == 20.0, 30, "each owns one of two")  # type: ignore[misc]
    began = wall()
    produce(group.bootstrap, group.main, outs("good", 300))
    one.until(lambda: len(service.ledger.deliveries()) == 300, 30, "all came")
    came = [done for done in service.ledger.deliveries() if done.received >= began]
    assert keeps(came, 40)
    assert one.stop().code == 0
    two.until(lambda: two.status()["limits"][0]["most"] == 40.0, 30, "it owns all")


def test_a_receive_gives_no_more_than_the_rate_allows_however_long_nobody_received(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    group = create_group(new_group())
    sidecar = start_sidecar(group, "", overrides={**PULL, "deliver": {"mode": "pull", "rate": "20/s"}})
    produce(group.bootstrap, group.main, outs("good", 200))
    puller = Puller(sidecar, ledger)
    puller.ack(*until(lambda: puller.receive(1), 20, "the first one is there"))
    sidecar.until(lambda: sidecar.metric("reconsume_in_flight") == 20, 20, "what a second allows is offered")
    sidecar.until(lambda: sidecar.metric('reconsume_limit_waiting{limit="rate",topic=""}') == 1, 5, "others wait")
    began = wall()
    first = puller.receive(128)
    assert len(first) == 20
    puller.ack(*first)
    while len(ledger.taken()) < 101:
        puller.ack(*puller.receive(128, wait="1s"))
    assert (80 - 1) / 20 * 1_000 <= wall() - began <= 6_000, "but for what was on its way to the next token"
    assert sidecar.stop().code == 0


@pytest.mark.long
def test_an_ordered_group_keeps_its_rate_and_its_order(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(delays=()))
    service = start_service(by_name({"flaky": (FAIL, OK)}))
    overrides = {
        "deliver": {"rate": "50/s", "order": "key"},
        "retry": {"ladder": "rocketmq", "levels": None, "ordered_interval": "100ms", "max_reconsume_times": 16},
    }
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    kinds = ["flaky" if number % 20 == 0 else "good" for number in range(200)]
    produce(
        group.bootstrap, group.main, [Out(f"{kind}:{n}".encode(), b"k%d" % (n % 8)) for n, kind in enumerate(kinds)]
    )
    sidecar.until(lambda: len(service.ledger.taken()) == 200, 30, "all are done")
    came = service.ledger.deliveries()
    assert keeps(came, 50)
    assert sidecar.stop().code == 0
    taken = [one for one in sorted(came, key=lambda one: one.received) if one.means == TOOK]
    for key in {one.key for one in taken}:
        numbers = [int((one.value or b"").split(b":")[1]) for one in taken if one.key == key]
        assert numbers == sorted(numbers)


@pytest.mark.long
def test_the_command_line_sets_a_rate_for_all(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = with_policy(new_group())
    sidecar = start_sidecar(group, start_service(by_name({})).url)
    file = tmp_path / "reconsume.yaml"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 1)), encoding="utf-8")
    result = reconsume("policy", "set", "group_rate=30/m", "--yes", "-c", file)
    assert result.exit_code == 0, result.stderr
    follows(sidecar, group_rate="30/m")
    sidecar.until(lambda: sidecar.status()["limits"][0]["most"] == 0.5, 10, "it holds")
    refused = reconsume("policy", "set", "rate=30", "--yes", "-c", file)
    assert (refused.exit_code, "must be a rate like 100/s" in refused.stderr) == (78, True)
