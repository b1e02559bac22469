"""A roll-out that adds or removes a main topic: two configurations of one group, and every retry finds its instance."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, HANG, OK, Behaviour, Request, by_name
from tests.support.sidecar.redrive import dlq

FLAKY = by_name({"flaky": (FAIL, OK)})
COUNT = 40


class OnceThenHeld:
    """A first attempt fails, and each later one hangs until `let_go`: a retry waits, however slow the machine is."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def __call__(self, request: Request) -> Behaviour:
        if request.times + request.seen == 0:
            return FAIL
        return OK if self.let_go.is_set() else HANG


def groups(new_group: FreshGroup) -> tuple[GroupTopics, GroupTopics]:
    """One group as the pods before and after the roll-out know it; all of its topics exist."""
    new = create_group(new_group(mains=2, delays=(1_000, 2_000)), partitions=4)
    return replace(new, mains=new.mains[:1]), new


def keyed(count: int) -> list[Out]:
    """Records whose copies are spread by their keys."""
    return [Out(b"flaky:%d" % number, b"key-%d" % number) for number in range(count)]


def ours(row: Row) -> dict[str, bytes | None]:
    return {name: value for name, value in row.headers if name in wire.OURS}


@pytest.mark.long  # sim/test_group_sim.py tells of roll-outs in every run
def test_retries_of_an_added_topic_are_all_delivered_although_old_pods_find_them(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    before, after = groups(new_group)
    service = start_service(FLAKY)
    old = start_sidecar(before, service.url, "old")
    new = start_sidecar(after, service.url, "new")
    produce(after.bootstrap, after.mains[1], keyed(COUNT))
    new.until(lambda: len(service.ledger.taken()) == COUNT, 90, "every retry of the added topic is delivered")
    await_quiet(after, 30)
    assert dump(after.bootstrap, after.dlq) == []
    assert old.status()["unknown_topics"].keys() == {after.mains[1]}
    assert new.status()["unknown_topics"] == {}
    assert old.log().count("this instance does not consume that topic") == 1
    assert (old.stop().code, new.stop().code) == (0, 0)
    report = check(collect(after, service.ledger))
    assert (report.committed, report.duplicates, report.waiting) == (COUNT, 0, 0), report


@pytest.mark.long
def test_what_no_instance_consumes_is_a_whole_dead_letter_and_redriven_when_one_does(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, folder: Path
) -> None:
    before, after = groups(new_group)
    held = OnceThenHeld()
    service = start_service(held)
    new = start_sidecar(after, service.url, "new")
    added, level = after.mains[1], after.names.level(1_000, after.main)
    produce(after.bootstrap, added, keyed(COUNT))
    new.until(lambda: len(dump(after.bootstrap, level)) >= COUNT // 2, 10, "half of all failed once, and none is done")
    new.kill()
    produced = {f"{added}:{row.partition}:{row.offset}" for row in dump(after.bootstrap, added)}
    assert service.ledger.taken() == frozenset()
    held.let_go.set()
    old = start_sidecar(before, service.url, "old", {"retry": {"unknown_topic": "4s"}})
    old.until(lambda: len(dead(after)) >= waiting(after), 60, "every retry of the removed topic is dead-lettered")
    for row in dead(after).values():
        assert (row[wire.RECONSUMETIMES], row[wire.RETRY_REDRIVES], row[wire.REAL_TOPIC]) == (
            b"1",
            b"0",
            added.encode(),
        )
        assert row[wire.RETRY_REASON] == b"unknown-topic: http-500"
    letters = set(dead(after))
    code, rows, _ = dlq(before, folder, "list")
    assert {row["id"] for row in rows} == letters
    assert {(row["state"], row["times"]) for row in rows} == {("unfit", 1)}
    assert {added in row["fault"] for row in rows} == {True}
    code, shown, told = dlq(before, folder, "redrive", "--yes")
    assert [(row["action"], added in row["why"]) for row in shown] == [("unfit", True)], (shown, told)
    assert old.stop().code == 0
    new.start()
    new.wait_ready()
    code, rows, told = dlq(after, folder, "redrive", "--yes")
    assert (code, sum(row["letters"] for row in rows if row["action"] == "redriven")) == (0, len(letters)), told
    new.until(lambda: produced <= service.ledger.taken(), 60, "every one is delivered in the end")
    await_quiet(after, 30)
    assert new.stop().code == 0
    report = check(collect(after, service.ledger))
    assert (report.committed, report.waiting) == (COUNT, 0), report


def dead(group: GroupTopics) -> dict[str, Any]:
    """The headers of all dead letters, by their ids."""
    rows = map(ours, dump(group.bootstrap, group.dlq))
    return {(row[wire.ORIGIN_MESSAGE_ID] or b"").decode(): row for row in rows}


def waiting(group: GroupTopics) -> int:
    """How many records have a copy in a level: the others are still in their main topic."""
    rows = [ours(row) for level in group.levels for row in dump(group.bootstrap, level)]
    return len({(row[wire.ORIGIN_MESSAGE_ID] or b"").decode() for row in rows})
