"""Order over long waits on a real broker: what fails waits in the queue topic, what follows of its key behind it."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import RETRY_BEHIND, RETRY_ORDER
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group, specs_of
from tests.support.kafka.topic_io import Out, add_partitions, create_topic, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.ledger import FAILED, TOOK, Delivery, Ledger
from tests.support.proof.load import Load
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import Answer, Behaviour, Request, by_name
from tests.support.sidecar.process import SidecarProcess

KEYS, PARTITIONS = 200, 4
LADDER = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s", "2s", "3s"], "max_reconsume_times": 20},
    "kafka": {"session.timeout.ms": 6_000},
}


def queued(group: GroupTopics, partitions: int = PARTITIONS) -> GroupTopics:
    return create_group(replace(group, delays=(), queued=True), partitions)


class Failing:
    """A tenth of the keys fail until `well` is set."""

    def __init__(self) -> None:
        self.well = threading.Event()

    def __call__(self, request: Request) -> Behaviour:
        number = int((request.key or b"key-0").removeprefix(b"key-"))
        return Answer(500 if number % 10 == 0 and not self.well.is_set() else 200, after=0.002)


def by_record(ledger: Ledger) -> dict[str, list[Delivery]]:
    found: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in ledger.deliveries():
        found[delivery.id].append(delivery)
    return found


def assert_in_order(group: GroupTopics, ledger: Ledger) -> None:
    """Of each key, no record was delivered before the one in front of it was taken."""
    deliveries, lines = by_record(ledger), defaultdict(list)
    for row in sorted(dump(group.bootstrap, group.main), key=lambda row: row.offset):
        lines[row.key].append(f"{group.main}:{row.partition}:{row.offset}")
    for key, line in lines.items():
        for before, after in itertools.pairwise(line):
            taken = min(d.answered for d in deliveries[before] if d.means == TOOK and d.answered is not None)
            first = min(d.received for d in deliveries[after])
            assert first >= taken, f"{after} of {key!r} was delivered {taken - first} ms before {before} was taken"


def test_the_next_record_of_a_failing_key_waits_behind_it_and_all_others_go_on(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = queued(new_group(), partitions=1)
    service = start_service(by_name({"bad": (Answer(500), Answer(500), Answer(200))}))
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    names = (b"bad", b"behind:1", b"behind:2", b"free:1", b"free:2")
    places = produce(
        group.bootstrap,
        group.main,
        [Out(name, key) for name, key in zip(names, (b"a", b"a", b"a", b"b", None), strict=True)],
    )
    ids = [f"{group.main}:{number}:{offset}" for number, offset in places]
    sidecar.until(lambda: len(service.ledger.taken()) == len(names), 30, "all are taken")
    await_quiet(group, 30)
    assert sidecar.stop().code == 0
    bad, *behind = (service.ledger.of(ident) for ident in ids[:3])
    assert [d.times for d in bad] == [0, 1, 2]
    waited = [after.received - (before.answered or 0) for before, after in itertools.pairwise(bad)]
    assert 1_000 <= waited[0] < 2_500
    assert 2_000 <= waited[1] < 3_500
    assert all([d.times for d in deliveries] == [0] for deliveries in behind)
    assert_in_order(group, service.ledger)
    for ident in ids[3:]:
        assert service.ledger.of(ident)[0].received < bad[1].received, "another key has waited"
    copies = [dict(row.headers) for row in dump(group.bootstrap, group.queues[0])]
    assert [copy[RETRY_ORDER] for copy in copies if RETRY_BEHIND in copy] == [b"1", b"2"]
    assert [copy["RECONSUMETIMES"] for copy in copies if RETRY_BEHIND not in copy] == [b"1", b"2"]
    assert {copy[RETRY_ORDER] for copy in copies if RETRY_BEHIND not in copy} == {b"0"}


def test_order_survives_kills_rebalances_and_a_restart_while_a_tenth_of_the_keys_fails(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group, failing = queued(new_group()), Failing()
    service = start_service(failing)
    load = Load(group, 300, KEYS)

    def goes_on(sidecar: SidecarProcess, more: int = 300) -> None:
        wanted = len(service.ledger.deliveries()) + more
        sidecar.until(lambda: len(service.ledger.deliveries()) >= wanted, 40, f"{more} more deliveries")

    first = start_sidecar(group, f"{service.url}/pod-0", "pod-0", LADDER)
    load.start()
    goes_on(first)
    second = start_sidecar(group, f"{service.url}/pod-1", "pod-1", LADDER)
    second.until(lambda: any(d.path.endswith("pod-1") for d in service.ledger.deliveries()), 20, "the second has some")
    goes_on(second)
    for _ in range(2):
        second.kill()
        goes_on(first)
        second.start()
        second.wait_ready()
        goes_on(second)
    assert first.stop().code == 0
    goes_on(second)
    second.kill()
    second.start()
    second.wait_ready()
    goes_on(second)
    failing.well.set()
    load.end()
    await_quiet(group, 90)
    assert second.stop().code == 0
    deliveries = by_record(service.ledger)
    sources = {f"{group.main}:{row.partition}:{row.offset}" for row in dump(group.bootstrap, group.main)}
    assert len(sources) == load.sent
    assert {ident for ident, found in deliveries.items() if any(d.means == TOOK for d in found)} == sources
    assert_in_order(group, service.ledger)
    assert dump(group.bootstrap, group.dlq) == []
    assert violations(group, tmp_path, LADDER) == []
    counted: dict[str, list[int]] = defaultdict(list)
    for row in dump(group.bootstrap, group.queues[0]):
        copy = dict(row.headers)
        if RETRY_BEHIND not in copy:
            counted[(copy["ORIGIN_MESSAGE_ID"] or b"").decode()].append(int(copy["RECONSUMETIMES"] or b""))
    assert len(counted) >= KEYS // 10
    for ident, counts in counted.items():
        assert sorted(counts) == list(range(1, len(counts) + 1)), f"{ident} was counted {counts}"
        failed = {d.times for d in deliveries[ident] if d.means == FAILED}
        assert failed >= set(range(len(counts))), f"{ident} was counted for {counts}, and failed at {failed}"


@pytest.mark.parametrize("wide", [1, pytest.param(2, marks=pytest.mark.long)])
def test_while_a_queue_is_missing_only_the_keys_that_fail_wait(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, wide: int
) -> None:
    """A key that fails waits in memory, named; all others go on. Once the topic is created the process restarts, and
    the key goes on within 15 s, with its count. With two partitions the topic is there, and too narrow."""
    group = replace(new_group(), delays=(), queued=True)
    create_group(group, wide, leave_out=group.queues)
    if wide > 1:
        create_topic(group.bootstrap, group.queues[0], 1)
    service = start_service(by_name({"bad": (Answer(500), Answer(200))}))
    sidecar = start_sidecar(group, service.url, overrides={**LADDER, "log": {"format": "json"}})
    places = produce(
        group.bootstrap, group.main, [Out(value, b"a", partition=wide - 1) for value in (b"bad", b"behind")]
    )
    ids = [f"{group.main}:{number}:{offset}" for number, offset in places]
    warned = json.loads(sidecar.wait_log('"queue-missing"', 40))
    assert warned["partition"] == f"{group.queues[0]}[{wide - 1}]"
    sidecar.until(lambda: bool(service.ledger.of(ids[0])), 20, "the first one is delivered")
    sidecar.until(lambda: sidecar.metric("reconsume_refused_records") == 1, 20, "its copy is refused")
    free = [Out(b"free", b"b%d" % number, partition=wide - 1) for number in range(100)]
    produce(group.bootstrap, group.main, free)
    sidecar.until(lambda: len(service.ledger.taken()) == len(free), 20, "other keys go on")
    assert (len(service.ledger.of(ids[0])), len(service.ledger.of(ids[1]))) == (1, 0)
    if wide > 1:
        add_partitions(group.bootstrap, group.queues[0], wide)
    else:
        create_group(group, 1, leave_out=[topic for topic in _all(group) if topic not in group.queues])
    created = time.monotonic()
    sidecar.until(lambda: len(service.ledger.taken()) == len(free) + 2, 40, "the failing key goes on")
    assert time.monotonic() - created < 15 + 10, "what waits for its turn and for its delay"
    assert [d.times for d in service.ledger.of(ids[0])] == [0, 1]
    sidecar.until(lambda: len(sidecar.status()["restarted_in_place"]) == 1, 30, "it has restarted")
    sidecar.wait_ready()
    assert sidecar.metric("reconsume_refused_records") == 0
    assert sidecar.stop().code == 0
    assert_in_order(group, service.ledger)


def _all(group: GroupTopics) -> list[str]:
    return [spec.name for spec in specs_of(group, 1)]


def test_forged_copies_in_a_queue_are_dead_letters_and_block_nothing(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = queued(new_group(), partitions=1)
    service = start_service(by_name({}))

    def forged(identity: str, *more: tuple[str, bytes], times: int = 1, due: int = 0) -> Out:
        state = RetryState(identity, group.main, times, 0, due)
        headers = render_retry_headers(state, group.group, group.queues[0])
        return Out(b"forged", b"a", (*more, *headers))

    copies = [
        Out(b"forged", b"a"),
        forged(f"{group.main}:0:0"),
        forged(f"{group.main}:0:0", (RETRY_ORDER, b"-1")),
        forged(f"{group.main}:0:0", (RETRY_ORDER, b"9")),
        forged(f"{group.main}:7:0", (RETRY_ORDER, b"0")),
        forged(f"{group.main}:0:0", (RETRY_ORDER, b"0"), (RETRY_BEHIND, b"yes")),
        forged(f"{group.main}:0:0", (RETRY_ORDER, b"0"), (RETRY_BEHIND, b"1"), times=3),
        forged(f"{group.main}:0:0", (RETRY_ORDER, b"0"), due=10**15),
    ]
    produce(group.bootstrap, group.queues[0], copies)
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    produce(group.bootstrap, group.main, [Out(b"good", b"a")])
    sidecar.until(lambda: len(service.ledger.taken()) == 1, 20, "the good one is taken")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == len(copies), 20, "all forged ones are dead")
    await_quiet(group, 20)
    assert sidecar.stop().code == 0
    reasons = [dict(row.headers)["RETRY_REASON"] for row in dump(group.bootstrap, group.dlq)]
    assert all(reason is not None and reason.startswith(b"bad-header") for reason in reasons), reasons
    assert len(service.ledger.deliveries()) == 1
