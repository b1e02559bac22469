"""A group whose order survives long waits, while its configuration changes, and with redrives."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_absence import counts_of
from tests.flow.modes.test_ordered_ladder import assert_in_order
from tests.flow.modes.test_ordered_park import put
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, add_partitions, create_topic, delete_topics, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.ledger import TOOK
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, Answer, BadFails, Behaviour, Request, by_name
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.sidecar.redrive import DlqProcess

ORDERED = {"deliver": {"order": "key", "outage_failures": None}, "retry": {"ordered_interval": "200ms"}}
LADDER = {
    "deliver": ORDERED["deliver"],
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 1},
}


def queued(group: GroupTopics) -> GroupTopics:
    return create_group(replace(group, delays=(), queued=True), 1)


def test_an_instance_without_the_ladder_delivers_in_order_what_waits_in_the_queue(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = queued(new_group())
    names = ("bad", "behind:1", "behind:2", "later:1")
    service = start_service(by_name({"bad": (FAIL, OK)}))
    overrides = {**LADDER, "retry": {"ordered_ladder": ["5s"]}}
    first = start_sidecar(group, service.url, "pod-0", overrides)
    places = produce(group.bootstrap, group.main, [Out(name.encode(), b"a") for name in names[:3]])
    first.until(lambda: len(dump(group.bootstrap, group.queues[0])) == 3, 20, "all three wait in the queue")
    assert first.stop().code == 0
    second = start_sidecar(group, service.url, "pod-0", ORDERED)
    places += produce(group.bootstrap, group.main, [Out(names[3].encode(), b"a")])
    second.until(lambda: len(service.ledger.taken()) == len(names), 30, "all are taken")
    await_quiet(group, 30)
    assert second.stop().code == 0
    of = [service.ledger.of(f"{group.main}:{number}:{offset}") for number, offset in places]
    assert [[d.times for d in deliveries] for deliveries in of] == [[0, 1], [0], [0], [0]]
    assert of[0][1].received - (of[0][0].answered or 0) >= 5_000
    for before, after in itertools.pairwise(of):
        assert after[0].received >= (before[-1].answered or 0)


def test_a_group_without_a_ladder_and_without_queues_goes_on_as_ever(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), 1)
    service = start_service(by_name({"bad": (FAIL, FAIL, OK)}))
    sidecar = start_sidecar(group, service.url, overrides=ORDERED)
    produce(group.bootstrap, group.main, [Out(b"bad", b"a"), Out(b"behind", b"a")])
    sidecar.until(lambda: len(service.ledger.taken()) == 2, 20, "both are taken")
    assert sidecar.stop().code == 0


class RedrivenOnly:
    """It fails what is bad until that was redriven."""

    def __call__(self, request: Request) -> Behaviour:
        bad = (request.value or b"").startswith(b"bad") and request.headers["reconsume-redrives"] == "0"
        return Answer(500) if bad else OK


def test_a_dead_letter_lets_the_next_of_its_key_go_and_its_redrive_comes_through_the_queue(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = queued(new_group())
    service = start_service(RedrivenOnly())
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    places = produce(group.bootstrap, group.main, [Out(b"bad", b"a"), Out(b"behind", b"a")])
    bad, behind = (f"{group.main}:{number}:{offset}" for number, offset in places)
    sidecar.until(lambda: len(service.ledger.taken()) == 1, 20, "the one behind is taken")
    (letter,) = dump(group.bootstrap, group.dlq)
    assert not {"RETRY_ORDER", "RETRY_BEHIND"} & {name for name, _ in letter.headers}
    with DlqProcess(group, tmp_path, "redrive", "--yes") as command:
        assert command.process.wait(60) == 0
    sidecar.until(lambda: len(service.ledger.taken()) == 2, 20, "the redriven one is taken")
    await_quiet(group, 30)
    assert sidecar.stop().code == 0
    assert [d.times for d in service.ledger.of(bad)] == [0, 1, 0]
    assert service.ledger.of(behind)[0].received >= (service.ledger.of(bad)[1].answered or 0)
    redriven = [dict(row.headers) for row in dump(group.bootstrap, group.queues[0])][-1]
    assert violations(group, tmp_path, LADDER) == []
    assert (redriven["RETRY_REDRIVES"], redriven["ORIGIN_MESSAGE_ID"]) == (b"1", bad.encode())


@pytest.mark.long
def test_what_waits_of_a_main_topic_that_was_made_anew_goes_on(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Its place lies behind the end of the present log, which may never be so long."""
    group = queued(new_group())
    bad = BadFails()
    service = start_service(bad)
    ladder = {**LADDER, "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 20}}
    sidecar = start_sidecar(group, service.url, overrides=ladder)
    values = [b"free"] * 9 + [b"bad", b"behind"]
    head, behind = put(group, *((value, b"a") for value in values))[-2:]
    sidecar.until(lambda: len(service.ledger.of(head)) > 1, 30, "the head waits in the queue")
    assert sidecar.stop().code == 0
    delete_topics(group.bootstrap, group.main)
    create_topic(group.bootstrap, group.main, 1)
    sidecar.start()
    produce(group.bootstrap, group.main, [Out(b"free", b"b")])
    sidecar.until(lambda: len(service.ledger.of(f"{group.main}:0:0")) == 2, 30, "the present log is delivered")
    bad.well.set()
    sidecar.until(lambda: bool(service.ledger.of(behind)), 100, "what waits of the former log goes on")
    taken = next(d for d in service.ledger.of(head) if d.means == TOOK)
    assert service.ledger.of(behind)[0].received >= (taken.answered or 0)
    assert sidecar.stop().code == 0


@pytest.mark.long
def test_what_waits_in_partitions_that_main_has_no_more_is_named_and_goes_on_once_it_has_them_again(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group, bad = create_group(replace(new_group(), delays=(), queued=True), 2), BadFails()
    service = start_service(bad)
    sidecar = start_sidecar(group, service.url, overrides=LADDER | {"retry": {"ordered_ladder": ["1s"]}})
    values = (b"free", b"bad", b"behind")
    places = produce(group.bootstrap, group.main, [Out(value, b"a", (), 1) for value in values])
    _, head, behind = (f"{group.main}:{number}:{offset}" for number, offset in places)
    sidecar.until(lambda: len(service.ledger.of(head)) > 1, 30, "the head waits in the queue")
    assert sidecar.stop().code == 0
    delete_topics(group.bootstrap, group.main)
    create_topic(group.bootstrap, group.main, 1)
    bad.well.set()
    sidecar.start()
    file = tmp_path / "doctor.json"
    file.write_text(json.dumps(config_of(group, service.url, sidecar.port, LADDER)), encoding="utf-8")
    checked = reconsume("topics", "check", "-c", file)
    assert (checked.exit_code, f"give {group.main} 2 partitions again" in checked.stdout) == (1, True), checked.output
    tried = len(service.ledger.of(head))
    add_partitions(group.bootstrap, group.main, 2)
    sidecar.until(lambda: bool(service.ledger.of(behind)), 200, "what waits goes on")
    assert sidecar.stop().code == 0
    deliveries = service.ledger.of(head)
    assert len(deliveries) == tried + 1
    assert [d.times for d in deliveries] == list(range(len(deliveries))), "each attempt is counted once"
    assert service.ledger.of(behind)[0].received >= (deliveries[-1].answered or 0)


@pytest.mark.long
def test_two_configurations_that_live_at_once_keep_order_and_counts_under_kills(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """One has a ladder, the other drains the queues and retries in place; then a third has another ladder and parks."""
    group, bad = create_group(replace(new_group(), delays=(), queued=True), 4, also=[Kind.POLICY]), BadFails()
    service = start_service(bad)
    ladder = {**LADDER, "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 100}}
    pods = [start_sidecar(group, service.url, "pod-0", ladder), start_sidecar(group, service.url, "pod-1", ORDERED)]
    heads = put(group, *((b"bad:%d" % key, b"%d" % key) for key in range(12)))
    behind = put(group, *((b"behind:%d" % key, b"%d" % key) for key in range(12)))
    for pod in (*pods, *pods):
        tried = {head: len(service.ledger.of(head)) for head in heads}
        pod.kill()
        pod.start()
        pod.until(
            lambda tried=tried: all(len(service.ledger.of(head)) > tried[head] for head in heads), 90, "all go on"
        )
    parking = {**ladder, "retry": {"ordered_ladder": ["2s", "1s"], "ordered_exhausted": "park"}}
    last = start_sidecar(group, service.url, "pod-2", parking)
    assert [pod.stop().code for pod in pods] == [0, 0]
    assert not any(service.ledger.of(ident) for ident in behind)
    bad.well.set()
    last.until(lambda: len(service.ledger.taken()) == 24, 90, "all are taken")
    await_quiet(group, 60)
    assert last.stop().code == 0
    assert_in_order(group, service.ledger)
    for counts in counts_of(dump(group.bootstrap, group.queues[0])).values():
        assert sorted(counts) == list(range(1, len(counts) + 1)), "each attempt is counted once"
    assert (dump(group.bootstrap, group.dlq), violations(group, tmp_path, ladder)) == ([], [])
