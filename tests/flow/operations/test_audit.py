"""`reconsume audit` on a real broker: every kind of violation, planted by hand, is named; a real group has none."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.operations.audit_plants import Done, Planter, commit
from tests.flow.operations.audit_violations import PLANTS, good
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.load import Load, uneven
from tests.support.proof.quiet import await_quiet
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.sidecar.scene import KAFKA

DELAYS = (1_000, 2_000)


class Audited(NamedTuple):
    """What the command said."""

    code: int
    rows: list[dict[str, Any]]
    talk: str

    def found(self, ident: str) -> list[str]:
        """The kinds that were found about a record."""
        return sorted(row["kind"] for row in self.rows if row.get("id") == ident)

    @property
    def broken(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["found"] == "violation"]

    @property
    def unknown(self) -> list[str]:
        return [row["text"] for row in self.rows if row["found"] == "unknown"]


def audit(group: GroupTopics, folder: Path, *words: str) -> Audited:
    """Run the command on a group with the configuration that its sidecars have."""
    file = folder / f"{group.group}.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471)), encoding="utf-8")
    shown = reconsume("-c", file, "audit", "-o", "jsonl", *words)
    assert shown.exit_code in (0, 1), shown.stderr
    return Audited(shown.exit_code, [json.loads(line) for line in shown.stdout.splitlines()], shown.stderr)


# --- planted violations ----------------------------------------------------------------------------------------------


class Planted(NamedTuple):
    """A group full of violations, and what the audit found."""

    group: GroupTopics
    ids: dict[str, str]
    places: dict[str, str]
    audited: Audited


@pytest.fixture(scope="module")
def planted(new_group: FreshGroup, folder: Path) -> Planted:
    group = create_group(new_group(delays=DELAYS))
    by = Planter(group)
    rows = by.mains(len(PLANTS))
    for (plant, _), row in zip(PLANTS.values(), rows, strict=True):
        plant(by, row)
    ids = {name: f"{group.main}:0:{row.offset}" for name, row in zip(PLANTS, rows, strict=True)}
    ids["no record"] = f"{group.main}:0:987654"
    [torn, *more] = by.mains(3, partition=1)
    ids["torn"] = f"{group.main}:1:{torn.offset}"
    good(by, torn)
    places = {
        "bad header": by.copy(more[0], by.life(more[0]), RECONSUMETIMES=b"-1").place,
        "another topic's": by.copy(more[1], by.life(more[1]), RETRY_TOPIC=b"elsewhere").place,
        "bad event": by.raw_event(b"{}", b"key").place,
    }
    waiting = by.mains(1)[0]
    place = by.copy(waiting, by.life(waiting)).place
    assert by.waits(by.life(waiting)).place
    ids["still waiting"] = f"{group.main}:0:{waiting.offset}"
    level, ready = group.names.level(1_000, group.main), group.names.ready
    next_waiting = int(place.rpartition(":")[2])
    commit(group, group.group, [Done(group.main, 0, 1_000_000), Done(group.main, 1, torn.offset)])
    done = [Done(level, 0, next_waiting), Done(group.names.level(2_000, group.main), 0, 99), Done(ready, 0, 99)]
    commit(group, group.names.retry_group, done)
    return Planted(group, ids, places, audit(group, folder))


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_violation_is_named_with_its_records_and_nothing_else_is(planted: Planted, name: str) -> None:
    ident, expected = planted.ids[name], PLANTS[name][1]
    assert planted.audited.found(ident) == list(expected)
    records = [place for row in planted.audited.rows if row.get("id") == ident for place in row["records"]]
    assert all(place.count(":") == 2 for place in records)
    assert any(place.startswith(planted.group.group) for place in records) == bool(expected)


def test_what_follows_from_a_record_that_is_not_done_is_torn(planted: Planted) -> None:
    assert planted.audited.found(planted.ids["torn"]) == ["torn"]


def test_a_record_that_still_waits_is_no_violation(planted: Planted) -> None:
    assert planted.audited.found(planted.ids["still waiting"]) == []


@pytest.mark.parametrize("name", ["bad header", "another topic's"])
def test_broken_headers_are_named_and_lost_when_they_are_done_and_not_in_the_dlq(planted: Planted, name: str) -> None:
    assert planted.audited.found(planted.places[name]) == ["bad-header", "lost"]


def test_what_is_no_event_is_named(planted: Planted) -> None:
    assert planted.audited.found(planted.places["bad event"]) == ["bad-event"]


def test_violations_end_with_1_and_are_counted_by_kind(planted: Planted) -> None:
    assert planted.audited.code == 1
    assert "counted-twice 3" in planted.audited.talk


def test_an_audit_of_an_earlier_time_does_not_blame_what_it_did_not_read(planted: Planted, folder: Path) -> None:
    later = audit(planted.group, folder, "--since", "1ms")
    assert later.broken == []
    assert ("was not looked at, as --since says" in later.talk, "incomplete" in later.talk) == (True, False)


# --- what is deleted -------------------------------------------------------------------------------------------------


def test_deleted_records_are_counted_and_named_and_nobody_is_blamed_for_them(
    new_group: FreshGroup, folder: Path
) -> None:
    group = create_group(new_group(delays=DELAYS))
    by = Planter(group)
    rows = by.mains(3)
    for row in rows:
        good(by, row)
    by.settle()
    events, level = group.names.events, group.names.level(1_000, group.main)
    commit(group, group.group, [Done(group.main, 0, 99)])
    commit(group, group.names.retry_group, [Done(level, 0, 99)])
    assert audit(group, folder).rows == []
    cuts = [TopicPartition(events, 0, 4), TopicPartition(level, 0, 1), TopicPartition(group.main, 0, rows[2].offset)]
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for future in admin.delete_records(cuts).values():
        future.result(20)
    after = audit(group, folder)
    assert after.broken == []
    assert after.code == 0
    said = " ".join(after.unknown)
    assert f"4 offsets of {events} are deleted" in said
    assert f"1 offset of {level} is deleted" in said
    assert f"no longer in {group.main}" in said
    assert "incomplete" in after.talk


# --- a real group ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_group_with_failures_and_a_killed_sidecar_has_no_violation_while_it_runs_and_after(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, folder: Path
) -> None:
    group = create_group(new_group())
    service = start_service(uneven)
    overrides = {"kafka": {**KAFKA, "bootstrap.servers": group.bootstrap}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    with Load(group, 80) as load:
        until(lambda: len(service.ledger.deliveries()) > 150, 30, "deliveries are made")
        sidecar.kill()
        sidecar.start()
        sidecar.wait_ready()
        before = len(service.ledger.deliveries())
        until(lambda: len(service.ledger.deliveries()) > before + 150, 30, "its successor delivers")
        running = audit(group, folder)
    produce(group.bootstrap, group.main, [Out(b"the last")])
    await_quiet(group, 60)
    end = time.monotonic()
    stopped = audit(group, folder)
    assert (running.broken, stopped.broken) == ([], [])
    assert (running.code, stopped.code) == (0, 0), stopped.talk
    assert (running.unknown, stopped.unknown) == ([], [])
    assert load.sent > 150
    assert time.monotonic() - end < 30
