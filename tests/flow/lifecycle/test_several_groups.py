"""One sidecar of several groups: each does the main job by its own service, and none waits for another."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import SECONDS, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.service.behaviours import FAIL, HANG, OK, by_name
from tests.support.service.service import Service, free_port
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.process import OtherGroup, SidecarProcess

GOOD = 60
SCRIPT = by_name({"flaky": (FAIL, OK), "poison": (FAIL,)})


class Pair(NamedTuple):
    """Two groups of one sidecar, each with its service."""

    sidecar: SidecarProcess
    groups: tuple[GroupTopics, GroupTopics]
    services: tuple[Service, Service]

    def status(self, number: int) -> dict[str, object]:
        """What `/groups/NAME/status` shows."""
        found: dict[str, object] = self.sidecar.request("GET", f"/groups/{self.groups[number].group}/status").json
        return found

    def series(self, name: str, number: int) -> float:
        """The value of a series without further labels, of one group."""
        wanted = f'{name}{{group="{self.groups[number].group}"}} '
        lines = (line for line in self.sidecar.metrics().splitlines() if line.startswith(wanted))
        return float(next(lines).removeprefix(wanted))


@pytest.fixture
def start_pair(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Callable[..., Pair]:
    """`start_pair(wait=True, overrides=None)`: two groups whose topics exist, and a sidecar of both."""

    def start(*, wait: bool = True, leave_out: bool = False) -> Pair:
        first = create_group(new_group(), also=[Kind.POLICY])
        second = create_group(new_group(), also=[] if leave_out else [Kind.POLICY])
        services = (start_service(SCRIPT), start_service(SCRIPT))
        others = [OtherGroup(second, services[1].url)]
        return Pair(start_sidecar(first, services[0].url, wait=wait, others=others), (first, second), services)

    return start


def produce_job(group: GroupTopics) -> None:
    """Write good records, one that fails once and one that always fails."""
    values = [*(b"good:%d" % number for number in range(GOOD)), b"flaky:", b"poison:"]
    produce(group.bootstrap, group.main, values)


def test_each_group_of_a_sidecar_does_the_main_job_by_its_own_service(start_pair: Callable[..., Pair]) -> None:
    pair = start_pair()
    for group in pair.groups:
        produce_job(group)
    for number, service in enumerate(pair.services):
        pair.sidecar.until(lambda service=service: len(service.ledger.taken()) == GOOD + 1, 20, "the records are taken")
        dead = f'reconsume_dead_lettered_total{{group="{pair.groups[number].group}",reason="http-500"'
        pair.sidecar.until(lambda dead=dead: dead in pair.sidecar.metrics(), 20, "one is a dead letter")
    shown = pair.sidecar.status()
    assert [one["group"] for one in shown] == [group.group for group in pair.groups]
    assert pair.status(1)["group"] == pair.groups[1].group
    assert pair.sidecar.request("GET", "/readyz").status == 200
    assert pair.sidecar.request("GET", f"/groups/{pair.groups[0].group}/v1/policy").status == 200
    assert pair.sidecar.request("GET", "/v1/policy").status == 404, "without a prefix nobody can say whose it is"
    assert pair.sidecar.request("GET", "/groups/nobody/status").status == 404
    assert pair.sidecar.stop().code == 0
    for group, service in zip(pair.groups, pair.services, strict=True):
        report = check(collect(group, service.ledger))
        assert (report.duplicates, report.waiting) == (0, 0), report


def test_a_service_that_hangs_delays_no_other_group_of_its_sidecar(start_pair: Callable[..., Pair]) -> None:
    """The time of the second group's records is the same whether the first one's service hangs or not."""
    pair = start_pair()
    produce(pair.groups[1].bootstrap, pair.groups[1].main, [b"good:%d" % number for number in range(GOOD)])
    pair.sidecar.until(lambda: len(pair.services[1].ledger.taken()) == GOOD, 10, "the sidecar is warm")
    times = []
    for hangs in (False, True):
        before = len(pair.services[1].ledger.taken())
        if hangs:
            pair.services[0].script = lambda _request: HANG
            produce(pair.groups[0].bootstrap, pair.groups[0].main, [b"x" * 10_000] * 2_000)
            pair.sidecar.until(lambda: pair.series("reconsume_in_flight", 0) >= 50, 10, "its deliveries hang")
        begun = time.monotonic()
        produce(pair.groups[1].bootstrap, pair.groups[1].main, [b"good:%d" % number for number in range(1_000)])
        pair.sidecar.until(lambda b=before: len(pair.services[1].ledger.taken()) >= b + 1_000, 20, "all are taken")
        times.append(time.monotonic() - begun)
    assert times[1] < max(4 * times[0], 4.0), times
    assert pair.sidecar.metric('reconsume_outage{cause="unreachable"}') == 0
    pair.services[0].script = SCRIPT


def test_a_group_without_its_policy_topic_keeps_no_other_one_waiting(start_pair: Callable[..., Pair]) -> None:
    pair = start_pair(wait=False, leave_out=True)
    produce_job(pair.groups[0])
    pair.sidecar.until(lambda: len(pair.services[0].ledger.taken()) == GOOD + 1, 30, "the other group goes on")
    missing = pair.groups[1].names.policy
    assert (
        missing not in AdminClient({"bootstrap.servers": pair.groups[1].bootstrap}).list_topics(timeout=SECONDS).topics
    )
    assert pair.sidecar.stop().code == 0


def test_a_drain_ends_all_groups_and_names_them(start_pair: Callable[..., Pair]) -> None:
    pair = start_pair()
    for group in pair.groups:
        produce(group.bootstrap, group.main, [b"good:%d" % number for number in range(GOOD)])
    for service in pair.services:
        pair.sidecar.until(lambda service=service: len(service.ledger.taken()) == GOOD, 10, "all are taken")
    refused = pair.sidecar.request("POST", f"/drain?group={pair.groups[0].group}")
    assert refused.status == 409
    assert all(group.group in refused.json["detail"] for group in pair.groups)
    assert pair.sidecar.request("POST", f"/groups/{pair.groups[0].group}/drain").status == 404
    drained = reconsume("drain", *(word for file in pair.sidecar.files for word in ("-c", str(file))))
    assert drained.exit_code == 0, drained.stderr
    assert json.loads(drained.stdout) == {"drained": True, "left": 0}
    assert [one["state"] for one in pair.sidecar.status()] == ["draining", "draining"]
    assert pair.sidecar.stop().code == 0


def test_log_lines_name_their_group(start_pair: Callable[..., Pair]) -> None:
    pair = start_pair()
    pair.services[1].down()
    produce(pair.groups[1].bootstrap, pair.groups[1].main, [b"good:1"])
    line = pair.sidecar.wait_log("outage", 20)
    assert f"group={pair.groups[1].group}" in line
    pair.services[1].up()


def test_commands_take_the_files_of_a_sidecar_and_the_name_of_one_group(
    start_pair: Callable[..., Pair],
) -> None:
    pair = start_pair()
    files = [word for file in pair.sidecar.files for word in ("-c", str(file))]
    shown = reconsume("instances", *files, "--group", pair.groups[1].group)
    assert shown.exit_code == 0, shown.stderr
    assert "pod-0" in shown.stdout
    both = reconsume("groups", *files, "-o", "jsonl")
    assert {json.loads(line)["group"] for line in both.stdout.splitlines()} == {one.group for one in pair.groups}
    unclear = reconsume("instances", *files)
    assert unclear.exit_code == 2
    assert "--group" in unclear.stderr


def test_the_dashboard_of_a_sidecar_has_a_table_of_its_groups_and_the_pages_of_each(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    groups = [create_group(new_group(), also=[Kind.POLICY]) for _ in range(2)]
    urls = [start_service(SCRIPT).url for _ in groups]
    port = free_port()
    overrides = {"ui": {"enabled": True, "listen": f"127.0.0.1:{port}"}}
    start_sidecar(groups[0], urls[0], overrides=overrides, others=[OtherGroup(groups[1], urls[1])])
    listed = until(lambda: page if (page := shown(port, "/")).count(groups[1].group) > 0 else "", 20, "all are listed")
    assert all(f"/groups/{one.group}/" in listed for one in groups)
    assert all(one.group in shown(port, f"/groups/{one.group}/") for one in groups)


def shown(port: int, path: str) -> str:
    """A page of the dashboard."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        page: str = answer.read().decode()
    return page
