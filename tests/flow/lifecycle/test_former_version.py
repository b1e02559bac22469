"""A roll-out from 0.2: an instance of that version and one of this share a group, and partitions go to and fro."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.lifecycle.former_version import NAME, FormerInstance
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, Answer, by_name
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.sidecar.owned import owned

PARTITIONS = 4
EACH = 40
LOCK = 1
"""Seconds that a partition waits for its answers before it moves."""
REST = 30.0
"""Seconds that a member stays at least, whatever its service does."""
WAITING = "waiting for the service"


def produced(group: GroupTopics, first: str) -> dict[str, int]:
    """In each partition one record `first`, then good ones of which every fifth fails once; their partition by id."""
    names = [first, *("flaky" if number % 5 == 0 else "fine" for number in range(1, EACH))]
    records = [Out(name.encode(), partition=part) for part in range(PARTITIONS) for name in names]
    places = produce(group.bootstrap, group.main, records)
    return {f"{group.main}:{part}:{at}": part for (part, at), out in zip(places, records, strict=True)
            if out.value == first.encode()}  # fmt: skip


@pytest.mark.long  # test_upgrade.py and unit/upgrade in every run
def test_partitions_go_from_this_version_to_0_2_and_back_and_nothing_is_lost_or_counted_twice(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given records that are open at each hand-over, then the next owner takes just those of what was there before."""
    group, answer = create_group(new_group(), partitions=PARTITIONS, also=(Kind.POLICY,)), threading.Event()
    stuck = Answer(200, until=answer)
    service = start_service(by_name({"stuck": (stuck, OK), "flaky": (FAIL, OK)}))
    overrides = {"lock_timeout": f"{LOCK}s", "deliver": {"timeout": "60s"}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    ledger = service.ledger
    open_ids = produced(group, "stuck")
    taken = PARTITIONS * (EACH - 1)
    sidecar.until(lambda: len(ledger.taken()) == taken, 20, "all but those that are out are taken")

    with FormerInstance(group, ledger, lambda value: value == b"left") as former:
        sidecar.until(lambda: len(former.owned) == PARTITIONS // 2, 30, "the former has half")
        moved = {ident for ident, part in open_ids.items() if part in former.owned}
        sidecar.until(lambda: moved <= ledger.taken(), 20, "it has taken what was open")
        assert {d.id for d in ledger.deliveries() if d.answer == NAME} == moved, "and nothing that was done"
        answer.set()
        former.tell()
        assert_sound(group, service.url, tmp_path)

        left_ids = produced(group, "left")
        taken += PARTITIONS + PARTITIONS * EACH - len(former.owned)
        sidecar.until(lambda: len(ledger.taken()) == taken, 20, "all but those that the former leaves are taken")
        before = len(ledger.deliveries())
        left = {ident for ident, part in left_ids.items() if part in former.owned}

    sidecar.until(lambda: len(owned(sidecar)) == PARTITIONS, 30, "this version has all again")
    await_quiet(group, 30)
    assert {d.id for d in ledger.deliveries()[before:] if d.times == 0} == left, (
        "of what was there it takes those alone"
    )
    for metric in ("reconsume_unread_progress_total", "reconsume_misplaced_progress_total"):
        assert sidecar.metric(metric) == 0
    assert sidecar.stop().code == 0
    report = check(collect(group, ledger))
    assert (report.committed, report.dead_lettered, report.waiting) == (2 * PARTITIONS * EACH, 0, 0)
    assert report.duplicates == len(moved), "what was out at the first hand-over comes again, as at any rebalance"


def assert_sound(group: GroupTopics, url: str, folder: Path) -> None:
    """`doctor` finds two instances of one subscription, and nothing wrong with either."""
    file = folder / "reconsume.json"
    file.write_text(json.dumps(config_of(group, url, 8471)), encoding="utf-8")
    rows = json.loads(reconsume("doctor", "-o", "json", "-c", file).stdout)
    found = {row["check"]: row for row in rows}
    assert (found["subscriptions"]["status"], found["instances"]["status"]) == ("ok", "ok"), found
    assert found["subscriptions"]["finding"] == "2 running instances, all as configured here"


@pytest.mark.long
@pytest.mark.timeout(180)
def test_one_whose_service_breaks_leaves_its_partitions_to_an_instance_of_0_2(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given a heartbeat that does not say `well` behind our "not well", then it counts as well, as 0.2 is always in."""
    group = create_group(new_group(), partitions=PARTITIONS, also=(Kind.POLICY,))
    service = start_service(lambda _: OK)
    overrides = {"deliver": {"leave_after": "2s", "outage_failures": 20}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    joined = time.monotonic()
    sidecar.until(lambda: len(owned(sidecar)) == PARTITIONS, 20, "it has all")
    with FormerInstance(group, service.ledger, lambda _: False) as former:
        sidecar.until(lambda: time.monotonic() - joined > REST, REST + 5, "it may leave")
        service.down()
        records = [Out(b"%d" % number, partition=number % PARTITIONS) for number in range(80)]
        produce(group.bootstrap, group.main, records)

        def left() -> bool:
            former.tell()
            return len(former.owned) == PARTITIONS

        sidecar.until(left, 30, "the former has all")
        assert sidecar.status()["state"] == WAITING
        sidecar.until(lambda: len(service.ledger.taken()) == len(records), 20, "all are taken")
    service.up()
    sidecar.until(lambda: len(owned(sidecar)) == PARTITIONS, REST + 15, "it comes back")
    await_quiet(group, 20)
    assert sidecar.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.retries, report.duplicates) == (len(records), 0, 0)
