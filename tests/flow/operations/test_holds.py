"""An operator holds records in an incident: every instance obeys at once, and all goes on when it is over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.hold_record import hold_key
from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_specs, specs_of
from tests.support.kafka.topic_io import Out, delete_topics, dump, produce
from tests.support.proof.ledger import Ledger
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.service.puller import PULL, Puller
from tests.support.service.service import Service
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.config import Config
from tests.support.sidecar.policy import CALM, SECONDS, with_policy, write
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.relay import RELAY, waiting
from tests.ui.scene import dashboard
from tests.ui.web import Visitor

OBEYED = 2.0
"""Seconds in which every instance obeys (contract 10.4)."""
SCRIPT = by_name({"flaky": (FAIL, OK)})

Call = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Any) -> Call:
    """`command(group, "hold", …)`: the command line with the configuration of the group's sidecars."""

    def call(group: GroupTopics, *words: str, **more: object) -> Result:
        return for_group(tmp_path, group, *words, **more)

    return call


def held(sidecar: SidecarProcess) -> list[str]:
    return [row["id"] for row in sidecar.status()["holds"]]


def obeyed(pods: list[SidecarProcess], count: int) -> None:
    """Wait until each instance has so many holds in force, which may take OBEYED seconds and a little for the look."""
    began = time.monotonic()
    pods[0].until(lambda: all(len(held(pod)) == count for pod in pods), SECONDS, f"{count} holds are in force")
    assert time.monotonic() - began < OBEYED


def records(service: Service) -> list[bytes]:
    """The values that the service got, in their order; also of batches."""
    return [delivery.value or b"" for delivery in service.ledger.deliveries()]


def values(service: Service) -> list[bytes]:
    return sorted(records(service))


def forged(**fields: Any) -> bytes:
    """A hold of everything, as anybody with the right may write it."""
    now = int(time.time() * 1000)
    good = {"since": now, "until": now + 3_600_000, "why": "because", "who": "mallory", "all": True, "v": 1}
    return json.dumps(good | fields).encode()


def states_of(pods: Sequence[SidecarProcess], topic: str) -> set[str]:
    """The states of the topic's partitions, in all pods."""
    return {row["not_fetched"] for pod in pods for row in pod.status()["partitions"] if row["topic"] == topic}


def test_two_sidecars_and_a_new_one_obey_a_hold_of_a_topic_until_it_is_released(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call
) -> None:
    group = with_policy(new_group(2))
    orders, refunds = group.mains
    service = start_service(SCRIPT)
    slow = {**CALM, "retry": {"ladder": ["5s"]}}
    pods = [start_sidecar(group, service.url, pod, slow) for pod in ("pod-0", "pod-1")]
    produce(group.bootstrap, orders, [b"flaky:old"])
    pods[0].until(lambda: dump(group.bootstrap, group.names.level(5_000, orders)), 10, "a retry waits")
    made = command(group, "hold", "--topic", orders, "--for", "1h", "--why", "the ledger is mended", "--yes")
    assert made.exit_code == 0, made.stderr
    obeyed(pods, 1)
    new = [b"good:%d" % number for number in range(20)]
    before = values(service)
    produce(group.bootstrap, orders, new)
    produce(group.bootstrap, refunds, [b"refund:%d" % number for number in range(20)])
    pods.append(start_sidecar(group, service.url, "pod-2", slow))
    produce(group.bootstrap, refunds, [b"refund:%d" % number for number in range(20, 40)])
    refund = [b"refund:%d" % number for number in range(40)]
    pods[0].until(lambda: len(values(service)) >= len(before) + 40, 30, "the other topic goes on")
    assert values(service) == sorted([*before, *refund]), "nothing that is held was delivered"
    # A partition that goes to the third pod is "closing" on its former owner for a moment.
    pods[0].until(lambda: states_of(pods, orders) - {"fetching"} == {"held"}, 15, "what stands is held")
    listed = [json.loads(line) for line in command(group, "holds").stdout.splitlines()]
    assert [(row["what"], row["why"]) for row in listed] == [(f"topic={orders}", "the ledger is mended")]
    assert command(group, "release", "nothing").exit_code == 1
    assert command(group, "release", listed[0]["id"], "--who", "ann").exit_code == 0
    obeyed(pods, 0)
    pods[0].until(lambda: len(values(service)) == 62, 30, "all is delivered")
    assert values(service) == sorted([*refund, *new, b"flaky:old", b"flaky:old"])
    assert dump(group.bootstrap, group.dlq) == []
    assert len(dump(group.bootstrap, group.names.level(5_000, orders))) == 1, "the hold was no attempt"


def test_a_hold_succeeds_when_every_live_instance_obeys_and_names_one_that_does_not(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call
) -> None:
    """Given two pods, when one is stopped, `hold` ends with 3 and names it; once Kafka has removed it, with 0."""
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    pods = [start_sidecar(group, service.url, pod, CALM) for pod in ("pod-0", "pod-1")]
    log = ControlLog(Cluster({"bootstrap.servers": group.bootstrap}), group.names)

    def live() -> frozenset[str]:
        return log.live_instances(log.read())

    pods[0].until(lambda: live() == {"pod-0", "pod-1"}, 30, "both are members and have said so")
    everything = ("hold", "--all", "--for", "1h", "--why", "x", "--yes")
    both = command(group, *everything)
    assert both.exit_code == 0, both.stderr
    assert "obeyed by 2 instances" in both.stderr
    assert [len(held(pod)) for pod in pods] == [1, 1], "when the command has ended"
    released = command(group, "release", "--all")
    assert (released.exit_code, "released by 2 instances" in released.stderr) == (0, True), released.stderr
    assert [held(pod) for pod in pods] == [[], []]
    pods[1].pause()
    one = command(group, *everything)
    assert one.exit_code == 3, one.stderr
    assert "not confirmed within 10 s that it is obeyed, by pod-1" in one.stderr
    pods[1].kill()
    pods[0].until(lambda: live() == {"pod-0"}, 60, "Kafka has removed it")
    rest = command(group, "release", "--all")
    assert (rest.exit_code, "released by 1 instance" in rest.stderr) == (0, True), rest.stderr


def test_a_hold_of_a_key_keeps_that_key_alone_and_ends_by_itself(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    made = command(group, "hold", "--key", "bad", "--for", "4s", "--why", "one customer", "--yes")
    assert made.exit_code == 0, made.stderr
    obeyed([sidecar], 1)
    produce(group.bootstrap, group.main, [Out(b"%d" % n, b"bad" if n % 2 else b"good") for n in range(100)])
    sidecar.until(lambda: len(values(service)) == 50, 10, "all others are delivered")
    if held(sidecar):
        assert all(int(value or b"") % 2 == 0 for value in values(service))
        assert sum(row["on_hold"] for row in sidecar.status()["partitions"]) in range(1, 51)
    sidecar.until(lambda: len(values(service)) == 100, 20, "the hold has ended")
    assert held(sidecar) == []
    assert len(set(values(service))) == 100


def test_hostile_holds_change_nothing_but_what_they_may_and_are_named(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call
) -> None:
    group = with_policy(new_group())
    now = int(time.time() * 1000)
    hostile = {
        b"hold/far": forged(since=253_370_764_800_000, until=253_370_764_800_000 + 1_000),
        b"hold/long": forged(until=253_370_764_800_000),
        b"hold/past": forged(since=1, until=2),
        b"hold/new": forged(v=2),
        b"hold/none": forged(all=False),
        b"hold/both": forged(topic="orders"),
        b"hold/why": forged(why=""),
        b"hold/x y": forged(),
        b"hold/\xff": forged(),
        b"hold/": forged(),
        b"hold/deep": b"[" * 50_000,
        b"hold/key": forged(all=False, key="no base64!"),
        b"hold/null": b"null",
    }
    for key, value in hostile.items():
        write(group, value, key)
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    produce(group.bootstrap, group.main, [b"good:%d" % number for number in range(5)])
    sidecar.until(lambda: len(values(service)) == 5, 20, "none of them holds anything")
    assert sidecar.status()["holds"] == []
    assert sidecar.metric("reconsume_bad_policy_records_total") == 11
    assert "would last more than 7 d" in sidecar.status()["holds_ignored"]
    listed = command(group, "holds")
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert listed.stderr.count("warning: not obeyed: ") == 5
    write(group, forged(until=now + 3_600_000), b"hold/good")
    obeyed([sidecar], 1)
    write(group, None, b"hold/good")
    obeyed([sidecar], 0)


@pytest.mark.long
def test_ten_thousand_holds_are_a_hundred(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call
) -> None:
    group = with_policy(new_group())
    flood = [Out(forged(all=False, key=f"{n:04}"), b"hold/f%d" % n) for n in range(10_000)]
    produce(group.bootstrap, group.names.policy, flood)
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    assert len(held(sidecar)) == 100
    assert "left out" in sidecar.status()["holds_ignored"]
    produce(group.bootstrap, group.main, [Out(b"good:%d" % n, b"k%d" % n) for n in range(50)])
    sidecar.until(lambda: len(values(service)) == 50, 20, "what they do not name goes on")
    refused = command(group, "hold", "--all", "--for", "1h", "--why", "x", "--yes")
    assert refused.exit_code == 1
    assert "100 holds are in force already" in refused.stderr
    assert command(group, "release", "--all").exit_code == 0


@pytest.mark.long
def test_a_policy_topic_that_is_made_anew_gets_its_holds_back(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    pods = [start_sidecar(group, service.url, overrides=CALM)]
    for why in ("stays", "goes"):
        assert command(group, "hold", "--all", "--for", "1h", "--why", why, "--yes").exit_code == 0
    obeyed(pods, 2)
    rows = {row["why"]: row["id"] for row in pods[0].status()["holds"]}
    assert command(group, "release", rows["goes"]).exit_code == 0
    obeyed(pods, 1)
    delete_topics(group.bootstrap, group.names.policy)
    produce(group.bootstrap, group.main, [b"good:1"])
    create_specs(
        group.bootstrap, [spec for spec in specs_of(group, also=(Kind.POLICY,)) if spec.name == group.names.policy]
    )

    def written() -> bool:
        keys = {row.key for row in dump(group.bootstrap, group.names.policy)}
        return {hold_key(ident) for ident in rows.values()} <= keys

    pods[0].until(written, 90, "the hold and the release are in the new topic")
    pods.append(start_sidecar(group, service.url, "pod-1", CALM))
    assert held(pods[1]) == held(pods[0]) == [rows["stays"]]
    assert values(service) == []
    assert command(group, "release", "--all").exit_code == 0
    obeyed(pods, 0)
    pods[0].until(lambda: values(service) == [b"good:1"], 20, "it is delivered")


@pytest.mark.long
def test_a_receive_gives_nothing_that_is_held_also_of_what_was_ready_before(
    new_group: FreshGroup, start_sidecar: StartSidecar, command: Call, ledger: Ledger
) -> None:
    group = with_policy(new_group())
    sidecar = start_sidecar(group, "http://127.0.0.1:1/", overrides=PULL)
    puller = Puller(sidecar, ledger)
    produce(group.bootstrap, group.main, [Out(b"good:%d" % n, b"bad" if n % 2 else b"k") for n in range(10)])
    first = puller.receive(1, "30s", "10s")
    assert len(first) == 1
    assert command(group, "hold", "--key", "bad", "--for", "1h", "--why", "x", "--yes").exit_code == 0
    obeyed([sidecar], 1)
    got = [*first, *puller.receive(128, "30s", "1s")]
    assert sorted(one.value or b"" for one in got) == [b"good:%d" % n for n in range(0, 10, 2)]
    assert set(puller.ack(*got)) == {"ok"}
    assert command(group, "release", "--all").exit_code == 0
    obeyed([sidecar], 0)
    rest = []
    sidecar.until(lambda: rest.extend(puller.receive(128, "30s", "1s")) or len(rest) == 5, 20, "the rest comes")
    assert set(puller.ack(*rest)) == {"ok"}


@pytest.mark.long
@pytest.mark.parametrize("what", ["batch", "ordered"])
def test_batches_and_ordered_groups_obey(
    what: str, new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    modes: dict[str, Config] = {"batch": {"batch": {"max_size": 8, "max_wait": "5s"}}, "ordered": {"order": "key"}}
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {**CALM["deliver"], **modes[what]}})
    produce(group.bootstrap, group.main, [Out(b"good:%d" % n, b"bad" if n % 2 else b"k%d" % n) for n in range(6)])
    held_first = what == "batch"  # they were gathered, and wait for more
    assert command(group, "hold", "--key", "bad", "--for", "1h", "--why", "x", "--yes").exit_code == 0
    obeyed([sidecar], 1)
    produce(group.bootstrap, group.main, [Out(b"good:%d" % n, b"bad" if n % 2 else b"k%d" % n) for n in range(6, 40)])
    sidecar.until(lambda: len(records(service)) >= 20, 20, "all others are delivered")
    early = [value for value in records(service) if int(value.split(b":")[1]) % 2]
    assert all(int(value.split(b":")[1]) < 6 for value in early)
    assert not (held_first and early)
    assert command(group, "release", "--all").exit_code == 0
    sidecar.until(lambda: len(records(service)) == 40, 20, "the rest is delivered")
    if what == "ordered":
        bad = [value for value in records(service) if int(value.split(b":")[1]) % 2]
        partitioned = sorted(bad, key=lambda value: int(value.split(b":")[1]))
        assert bad == partitioned


@pytest.mark.long
def test_the_api_of_any_instance_holds_and_releases_for_all(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, command: Call, ledger: Ledger
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    pods = [start_sidecar(group, service.url, pod, CALM) for pod in ("pod-0", "pod-1")]
    hold = {"level": "main", "for": "1h", "why": "the database moves"}
    made = Puller(pods[0], ledger).call("holds", hold)
    assert made.status == 201, made.body
    obeyed(pods, 1)
    produce(group.bootstrap, group.main, [b"good:%d" % n for n in range(20)])
    rows = pods[1].request("GET", "/v1/holds").json["holds"]
    assert [(row["id"], row["what"], row["who"]) for row in rows] == [(made.json["id"], "level=main", "api:ops")]
    assert pods[1].metric("reconsume_holds") == 1
    assert values(service) == []
    assert pods[1].request("DELETE", f"/v1/holds/{made.json['id']}").status == 204
    obeyed(pods, 0)
    pods[0].until(lambda: len(values(service)) == 20, 20, "all is delivered")


def test_a_hold_that_is_begun_on_the_dashboard_is_obeyed_and_its_release_too(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = with_policy(new_group())
    service = start_service(SCRIPT)
    pods = [start_sidecar(group, service.url, pod, CALM) for pod in ("pod-0", "pod-1")]
    with dashboard(group, tmp_path) as scene:
        visitor = Visitor(scene)
        visitor.sign_in()
        form = {"csrf": visitor.csrf(), "key": "bad", "for": "1h", "why": "one customer"}
        assert visitor.post("/holds/begin", form).status == 303
        obeyed(pods, 1)
        produce(group.bootstrap, group.main, [Out(b"good:%d" % n, b"bad" if n % 2 else b"k") for n in range(20)])
        pods[0].until(lambda: len(values(service)) == 10, 20, "all others are delivered")
        page = visitor.get("/holds").body.decode()
        (ident,) = {row["id"] for pod in pods for row in pod.status()["holds"]}
        assert f"Release {ident}" in page
        assert all(int(value.split(b":")[1]) % 2 == 0 for value in values(service))
        assert visitor.post("/holds/release", {"csrf": form["csrf"], "hold": ident}).status == 303
        obeyed(pods, 0)
    pods[0].until(lambda: len(values(service)) == 20, 20, "all is delivered")


@pytest.mark.long
def test_a_relay_writes_nothing_that_is_held_to_the_ready_topic(
    new_group: FreshGroup, start_sidecar: StartSidecar, command: Call
) -> None:
    group = with_policy(new_group(2))
    assert command(group, "hold", "--topic", group.main, "--for", "1h", "--why", "x", "--yes").exit_code == 0
    sidecar = start_sidecar(group, "", overrides=RELAY)
    obeyed([sidecar], 1)
    level = group.names.level(1_000, group.main)
    topics = [main.encode() for main in group.mains] * 5
    rows = [
        waiting(group, n, 1_000, value=b"%d" % n, REAL_TOPIC=topic, ORIGIN_MESSAGE_ID=b"%b:0:%d" % (topic, n))
        for n, topic in enumerate(topics)
    ]
    produce(group.bootstrap, level, rows)

    def forwarded() -> list[int]:
        return sorted(int(row.value or b"") for row in dump(group.bootstrap, group.names.ready))

    sidecar.until(lambda: len(forwarded()) >= 5, 20, "the other topic goes on")
    assert forwarded() == [1, 3, 5, 7, 9]
    assert command(group, "release", "--all").exit_code == 0
    sidecar.until(lambda: forwarded() == list(range(10)), 20, "the rest is forwarded")
