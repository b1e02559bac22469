"""`settle --parked` on a real broker: one decision about every key that is parked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from reconsume.topics.action_record import ActionHeard
from reconsume.topics.decision_record import DEAD_LETTER
from reconsume.topics.events import Event, author_of, decode_event
from reconsume.topics.names import Kind
from reconsume.topics.policy_record import MOST_OPEN, SettlementRecord, parse_record, render_record, settlement_key
from reconsume.topics.transitions import BY_OPERATOR
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config, config_of
from tests.support.sidecar.process import SidecarProcess

PARK: Config = {
    "deliver": {"order": "key", "outage_failures": None, "concurrency": 16},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 0, "ordered_exhausted": "park"},
    "kafka": {"session.timeout.ms": 6_000},
}
KEYS = 30
Settle = Callable[..., Result]


@pytest.fixture
def group(new_group: FreshGroup) -> GroupTopics:
    return create_group(replace(new_group(), delays=(), queued=True), 3, also=[Kind.POLICY])


@pytest.fixture
def settle(group: GroupTopics, tmp_path: Path) -> Settle:
    """`settle("--parked", …)`: `reconsume settle` for the group."""
    file = tmp_path / "settle.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471, PARK)), encoding="utf-8")
    return lambda *words: reconsume(
        "settle", *words, "--why", "seen", "--who", "ann@laptop", "--yes", "-o", "json", "-c", str(file)
    )


@pytest.fixture
def bad() -> BadFails:
    return BadFails()


@pytest.fixture
def sidecar(
    group: GroupTopics, bad: BadFails, start_service: StartService, start_sidecar: StartSidecar
) -> SidecarProcess:
    """A sidecar that has parked `KEYS` keys, each with one record behind its head."""
    keys = [b"k%d" % number for number in range(KEYS)]
    produce(group.bootstrap, group.main, [Out(value, key) for key in keys for value in (b"bad", b"behind")])
    sidecar = start_sidecar(group, start_service(bad).url, overrides=PARK)
    sidecar.until(lambda: parked_keys(sidecar, group) == KEYS, 40, "all of them are parked")
    return sidecar


def parked_keys(sidecar: SidecarProcess, group: GroupTopics) -> int:
    return int(sidecar.metric(f'reconsume_parked_keys{{topic="{group.main}"}}'))


def rows(ended: Result) -> list[dict[str, Any]]:
    return list(json.loads(ended.stdout))


def open_decisions(group: GroupTopics) -> set[bytes | None]:
    found = {row.key: row.value for row in dump(group.bootstrap, group.names.policy)}
    return {key for key, value in found.items() if (key or b"").startswith(b"settle/") and value is not None}


def actions(group: GroupTopics) -> list[tuple[str, str, str, int]]:
    """What each run of a command has noted: the action, who and why, and how many records."""
    last = {row.key: row.value for row in dump(group.bootstrap, group.names.policy) if row.value is not None}
    read = [parse_record(key, value) for key, value in last.items()]
    noted = [one.record for one in read if isinstance(one, ActionHeard) and one.record is not None]
    return [(one.action, one.who, one.why, one.records) for one in noted]


def test_what_was_mended_is_tried_at_once_whatever_it_is(
    group: GroupTopics, settle: Settle, bad: BadFails, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    """A dry run shows it and writes nothing, another reason finds none; then all keys go on, without a decision left
    over, and what fails again is parked again by its own count."""
    none = settle("--parked", "--reason", "http-503", "--retry-now")
    assert (none.exit_code, rows(none)) == (0, [])
    assert f"no key is parked for http-503; {KEYS} keys for http-500" in none.stderr
    planned = settle("--parked", "--reason", "http-500", "--topic", group.main, "--retry-now", "--dry-run")
    assert (planned.exit_code, len(rows(planned)), open_decisions(group)) == (0, KEYS, set())
    assert {(row["was"], row["is"], row["behind"]) for row in rows(planned)} == {("parked", "tried now", 1)}
    again = settle("--parked", "--retry-now")
    assert (again.exit_code, {row["is"] for row in rows(again)}) == (0, {"tried now"}), again.stderr
    assert " of these failed again, and are parked as before" in again.stderr
    sidecar.until(lambda: parked_keys(sidecar, group) == KEYS, 20, "all have failed again")
    bad.well.set()
    tried = settle("--parked", "--retry-now")
    assert (tried.exit_code, len(rows(tried)), "failed again" in tried.stderr) == (0, KEYS, False), tried.stderr
    assert open_decisions(group) == set()
    told = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events)]
    by_hand = {author_of(event) for event in told if isinstance(event, Event) and event.reason == BY_OPERATOR}
    assert by_hand - {""} == {"ann@laptop"}, "an end after the retry keeps the reason, and nobody decided it"
    assert actions(group) == [("settle", "ann@laptop", "seen", KEYS)] * 2
    await_quiet(group, 30)
    assert parked_keys(sidecar, group) == 0
    assert sidecar.stop().code == 0
    assert dump(group.bootstrap, group.dlq) == []
    assert violations(group, tmp_path, PARK) == []


@pytest.mark.long
def test_what_has_no_owner_is_decided_and_left_to_the_next(
    group: GroupTopics, settle: Settle, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    """Nobody is there: the command says so after 10 s (3), and the next owner makes dead letters of all."""
    sidecar.kill()
    written = settle("--parked", "--dead-letter")
    assert (written.exit_code, {row["is"] for row in rows(written)}) == (3, {"decided"}), written.stderr
    assert f"of {KEYS} the decision is written and not carried out yet" in written.stderr
    sidecar.start()
    await_quiet(group, 60)
    assert len(dump(group.bootstrap, group.dlq)) == KEYS
    assert sidecar.stop().code == 0
    assert violations(group, tmp_path, PARK) == []


@pytest.mark.long
def test_where_others_decided_about_much_it_goes_on_in_the_room_that_is_left(
    group: GroupTopics, settle: Settle, sidecar: SidecarProcess
) -> None:
    """At most 1 000 decisions are open: seven at a time, and all of them in the end."""
    theirs = SettlementRecord(0, 9, DEAD_LETTER, "another time", "ann", 1, "n")
    idents = [f"{group.main}:0:{1_000_000 + number}" for number in range(MOST_OPEN - 7)]
    produce(group.bootstrap, group.names.policy, [Out(render_record(theirs), settlement_key(one)) for one in idents])
    done = settle("--parked", "--commit")
    assert (done.exit_code, {row["is"] for row in rows(done)}) == (0, {"done"}), done.stderr
    assert open_decisions(group) == {settlement_key(one) for one in idents}
    sidecar.until(lambda: parked_keys(sidecar, group) == 0, 20, "no key is parked")


@pytest.mark.long
def test_two_operators_at_once_each_hear_what_was_theirs(
    group: GroupTopics, settle: Settle, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    """Whose decision another one has replaced is told so, and nobody is told that nothing was carried out."""
    words = (
        "settle",
        "--parked",
        "--retry-now",
        "--why",
        "other",
        "--yes",
        "-o",
        "json",
        "-c",
        tmp_path / "settle.json",
    )
    other = subprocess.Popen((sys.executable, "-m", "reconsume.sidecar", *words), stdout=subprocess.PIPE, text=True)
    ours = settle("--parked", "--retry-now")
    theirs = json.loads(other.communicate(timeout=60)[0])
    for code, shown in ((ours.exit_code, rows(ours)), (other.returncode, theirs)):
        ends = {row["is"] for row in shown}
        assert ends <= {"tried now", "decided by another"}
        assert code == (3 if "decided by another" in ends else 0)
    sidecar.until(lambda: parked_keys(sidecar, group) == KEYS, 20, "all have failed again")
    assert open_decisions(group) == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--commit",), "give the ID of a record, or --parked"),
        (("orders:0:1", "--parked", "--commit"), "give the ID of a record, or --parked"),
        (("orders:0:1", "--topic", "orders", "--commit"), "--topic and --reason go with --parked"),
        (("--parked",), "say what to do with the record"),
        (("--parked", "--topic", "other", "--commit"), "'other' is none of the group's topics"),
    ],
)
def test_it_is_one_record_or_what_is_parked(
    group: GroupTopics, settle: Settle, words: tuple[str, ...], said: str
) -> None:
    refused = settle(*words)
    assert (refused.exit_code, refused.stdout, said in refused.stderr) == (2, "", True), refused.stderr
