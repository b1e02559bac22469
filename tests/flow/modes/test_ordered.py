"""Ordered groups on a real broker: one record of a key at a time, over failures, rebalances, a kill and a restart."""

from __future__ import annotations

import itertools
import json
import time
import zlib
from collections import defaultdict

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.evidence import Evidence, collect
from tests.support.proof.ledger import FAILED, TOOK, Delivery
from tests.support.proof.load import Load
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, Answer, Behaviour, Request, by_name, verdict
from tests.support.sidecar.process import SidecarProcess

KEYS = 24
PARTITIONS = 4
INTERVAL = 50
"""ms between tries in place."""
ORDERED = {"deliver": {"order": "key", "outage_failures": None}, "retry": {"ordered_interval": f"{INTERVAL}ms"}}
KAFKA = {"kafka": {"session.timeout.ms": 6_000}}


def lines_of(evidence: Evidence) -> dict[tuple[int, bytes | None], list[str]]:
    """The ids of each key's records, in the order of their offsets."""
    lines: dict[tuple[int, bytes | None], list[str]] = defaultdict(list)
    for ident, (_, row) in sorted(evidence.sources.items(), key=lambda item: item[1][1].offset):
        lines[row.partition, row.key].append(ident)
    return lines


def overtaken(evidence: Evidence) -> list[str]:
    """Records that were delivered for the first time before one of their key in front of them was taken or dead."""
    deliveries: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in evidence.deliveries:
        deliveries[delivery.id].append(delivery)
    dead = {copy.id: copy.row.timestamp for copy in evidence.dead}
    found = []
    for (_, key), line in lines_of(evidence).items():
        if key is None:
            continue  # records without a key have no order among themselves
        done = 0
        for ident in line:
            first = min(delivery.received for delivery in deliveries[ident])
            if first < done:
                found.append(f"{ident} was delivered {done - first} ms before one in front of it was done")
            ends = [d.answered for d in deliveries[ident] if d.means == TOOK and d.answered is not None]
            done = max(done, min([*ends, *([dead[ident]] if ident in dead else [])]))
    return found


def uneven(request: Request) -> Behaviour:
    """A fifth fails its first two tries, a few are slow; the same for the same record whoever delivers it."""
    luck = zlib.crc32(request.id.encode()) % 100
    return Answer(500 if luck < 20 and request.times < 2 else 200, after=0.15 if luck > 97 else 0.002)


def test_no_record_overtakes_another_of_its_key_over_rebalance_kill_and_restart(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), PARTITIONS)
    service = start_service(uneven)
    load = Load(group, 300, KEYS)

    def goes_on(sidecar: SidecarProcess, more: int = 150) -> None:
        wanted = len(service.ledger.deliveries()) + more
        sidecar.until(lambda: len(service.ledger.deliveries()) >= wanted, 30, f"{more} more deliveries")

    overrides = {**ORDERED, **KAFKA}
    first = start_sidecar(group, f"{service.url}/pod-0", "pod-0", overrides)
    load.start()
    goes_on(first)
    second = start_sidecar(group, f"{service.url}/pod-1", "pod-1", overrides)
    second.until(lambda: any(d.path.endswith("pod-1") for d in service.ledger.deliveries()), 20, "the second has some")
    goes_on(second)
    second.kill()
    goes_on(first)
    second.start()
    second.wait_ready()
    goes_on(second)
    assert first.stop().code == 0
    goes_on(second)
    assert second.stop().code == 0
    second.start()
    goes_on(second)
    load.end()
    await_quiet(group, 60)
    assert second.stop().code == 0
    evidence = collect(group, service.ledger)
    assert len(evidence.sources) == load.sent
    assert {d.id for d in evidence.deliveries if d.means == TOOK} == evidence.sources.keys()
    assert overtaken(evidence) == []
    assert (evidence.lives, evidence.dead, evidence.events) == ({}, (), ())
    assert any(d.times == 2 for d in evidence.deliveries)


def test_a_failing_key_holds_back_only_itself_and_goes_on_after_its_dead_letter(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=1)
    refused = verdict("dead-letter; reason=bad-sku")
    asks = (verdict("retry; delay=400ms"), OK)
    script = by_name({"poison": (FAIL,), "asks": asks, "refused": (refused,)})
    service = start_service(script)
    overrides = {**ORDERED, "retry": {"ordered_interval": "300ms", "ordered_max_times": 3}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    names = ("poison", "good:a", "asks", "good:b", "refused", "good:c")
    records = [Out(name.encode(), key) for key, name in zip((b"a", b"a", b"b", b"b", b"c", b"c"), names, strict=True)]
    free = [Out(b"free:%d" % number, None if number % 2 else b"d") for number in range(50)]
    places = produce(group.bootstrap, group.main, [*records, *free])
    ids = {name: f"{group.main}:{place[0]}:{place[1]}" for name, place in zip(names, places, strict=False)}
    sidecar.until(lambda: len(service.ledger.taken()) == 4 + len(free), 30, "all but two are taken")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    of = {name: service.ledger.of(ident) for name, ident in ids.items()}

    poison = of["poison"]
    assert [d.times for d in poison] == [0, 1, 2, 3]
    assert [d.idempotency_key for d in poison] == [f"{group.group}/{ids['poison']}/0"] * 4
    for before, after in itertools.pairwise(poison):
        assert before.answered is not None
        assert after.received >= before.answered + 300 - 1
    assert [d.times for d in of["asks"]] == [0, 1]
    assert of["asks"][1].received >= (of["asks"][0].answered or 0) + 400 - 1
    assert len(of["refused"]) == 1
    dead = {copy.id: copy for copy in evidence.dead}
    assert dead.keys() == {ids["poison"], ids["refused"]}
    assert dead[ids["poison"]].times == 3
    assert int(dead[ids["poison"]].ours["RETRY_FIRST_FAILED_AT"]) <= poison[1].received
    assert overtaken(evidence) == []
    last_poison, others = poison[-1].received, [d for d in evidence.deliveries if (d.value or b"").startswith(b"free")]
    assert all(d.received < last_poison for d in others), "the others did not wait"
    events = [json.loads(row.value or b"") for row in evidence.events]
    assert sorted((event["id"], event["state"]) for event in events) == sorted((ident, "DLQ") for ident in dead)
    assert evidence.lives == {}


def test_in_partition_order_a_partition_goes_one_by_one(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=2)

    def script(request: Request) -> Behaviour:
        return FAIL if request.times == 0 and request.value == b"5" else Answer(200, after=0.002)

    service = start_service(script)
    overrides = {**ORDERED, "deliver": {"order": "partition", "outage_failures": None}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    produce(group.bootstrap, group.main, [Out(b"%d" % (n // 2), b"%d" % n, partition=n % 2) for n in range(60)])
    sidecar.until(lambda: len(service.ledger.taken()) == 60, 30, "all are taken")
    assert sidecar.stop().code == 0
    for partition in range(2):
        mine = [d for d in service.ledger.deliveries() if d.id.split(":")[1] == str(partition)]
        taken = [int(d.value or b"") for d in mine if d.means == TOOK]
        assert taken == list(range(30))
        for before, after in itertools.pairwise(mine):
            assert (before.answered or 0) <= after.received
    failed = [d for d in service.ledger.deliveries() if d.means == FAILED]
    assert len(failed) == 2


def test_throttling_keeps_the_place(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=1)
    busy_until = time.monotonic() + 2.5
    service = start_service(lambda _request: Answer(429) if time.monotonic() < busy_until else OK)
    sidecar = start_sidecar(group, service.url, overrides=ORDERED)
    produce(group.bootstrap, group.main, [Out(b"%d" % n, b"key-%d" % (n % 3)) for n in range(30)])
    sidecar.until(lambda: len(service.ledger.taken()) == 30, 30, "all are taken")
    assert sidecar.stop().code == 0
    evidence = collect(group, service.ledger)
    assert overtaken(evidence) == []
    assert {d.times for d in evidence.deliveries} == {0}
