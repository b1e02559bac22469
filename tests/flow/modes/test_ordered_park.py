"""`retry.ordered_exhausted: park` on a real broker: a key whose retries are used up stands until a person decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.names import Kind
from reconsume.topics.retry_headers import ORIGIN_MESSAGE_ID
from reconsume.topics.retry_order import RETRY_PARKED
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.level_copies import decisions_of
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.ledger import TOOK, Ledger
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails
from tests.support.service.puller import Puller
from tests.support.sidecar.cli import for_group, reconsume
from tests.support.sidecar.config import Config, config_of
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.settling import Following

PARK: Config = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 1, "ordered_exhausted": "park"},
    "kafka": {"session.timeout.ms": 6_000},
}


@pytest.fixture
def group(new_group: FreshGroup) -> GroupTopics:
    return create_group(replace(new_group(), delays=(), queued=True), 1, also=[Kind.POLICY])


def events_of(group: GroupTopics, ident: str) -> list[Event]:
    found = (decode_event(row.value) for row in dump(group.bootstrap, group.names.events) if row.key == ident.encode())
    return [event for event in found if isinstance(event, Event)]


def is_parked(group: GroupTopics, ident: str) -> Callable[[], bool]:
    return lambda: any(event.parked for event in events_of(group, ident))


def parked_keys(sidecar: SidecarProcess, group: GroupTopics) -> int:
    return int(sidecar.metric(f'reconsume_parked_keys{{topic="{group.main}"}}'))


def doctor_of_keys(folder: Path, group: GroupTopics) -> str:
    """What doctor says of parked keys."""
    deliver = {"url": "http://127.0.0.1:1/", "order": "key"}
    shown = for_group(folder, group, "doctor", "-o", "json", deliver=deliver, retry=PARK["retry"])
    return str(next(row["finding"] for row in json.loads(shown.stdout) if row["check"] == "parked"))


def put(group: GroupTopics, *records: tuple[bytes, bytes]) -> list[str]:
    """Produce records, by value and key, and return their ids."""
    places = produce(group.bootstrap, group.main, [Out(value, key) for value, key in records])
    return [f"{group.main}:{number}:{offset}" for number, offset in places]


def test_a_parked_head_holds_its_key_over_kills_until_the_setting_gives_it_up(
    group: GroupTopics, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Its copy says so and has no due time; nothing of its key is delivered, not by a new owner either, and all others
    go on. Back at `dead-letter` it is a dead letter, and the next of its key goes."""
    service = start_service(BadFails())
    sidecar = start_sidecar(group, service.url, overrides=PARK)
    bad, behind, free = put(group, (b"bad", b"a"), (b"behind", b"a"), (b"free", b"b"))
    sidecar.until(is_parked(group, bad), 30, "the head is parked")
    sidecar.until(lambda: parked_keys(sidecar, group) == 1, 20, "its key is counted as parked")
    assert sidecar.key_count("parked") == 1
    sidecar.until(lambda: "1 key is parked" in doctor_of_keys(tmp_path, group), 60, "doctor has heard of it")
    sidecar.kill()
    sidecar.start()
    sidecar.wait_ready()
    (after,) = put(group, (b"after", b"b"))
    sidecar.until(lambda: bool(service.ledger.of(after)), 30, "the new owner delivers other keys")
    assert [d.times for d in service.ledger.of(bad)] == [0, 1]
    assert (len(service.ledger.of(behind)), len(service.ledger.of(free))) == (0, 1)
    copies = [dict(row.headers) for row in dump(group.bootstrap, group.queues[0])]
    parked = [copy for copy in copies if RETRY_PARKED in copy]
    assert {copy[ORIGIN_MESSAGE_ID] for copy in parked} == {bad.encode()}
    assert {(copy["RETRY_DUE_AT"], copy["RECONSUMETIMES"]) for copy in parked} == {(b"0", b"1")}
    waiting, told = events_of(group, bad)
    assert (told.state, told.times, told.due, told.level) == (State.WAITING_RETRY, waiting.times, 0, None)
    assert told.at > waiting.at
    sidecar.until(lambda: parked_keys(sidecar, group) == 1, 20, "the new owner counts it too")
    assert sidecar.stop().code == 0
    given_up: Config = {**PARK, "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 1}}
    other = start_sidecar(group, service.url, "other", overrides=given_up)
    other.until(lambda: bool(service.ledger.of(behind)), 30, "the next of the key goes")
    await_quiet(group, 30)
    other.until(lambda: parked_keys(other, group) == 0, 20, "no key is parked any more")
    assert other.stop().code == 0
    (letter,) = dump(group.bootstrap, group.dlq)
    assert (dict(letter.headers)[ORIGIN_MESSAGE_ID], RETRY_PARKED in dict(letter.headers)) == (bad.encode(), False)
    assert len(service.ledger.of(bad)) == 2
    assert violations(group, tmp_path, given_up) == []


Settle = Callable[..., Result]


@pytest.fixture
def settle(group: GroupTopics, tmp_path: Path) -> Settle:
    """`settle("ID", …)`: `reconsume settle` for the group."""
    file = tmp_path / "settle.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471, PARK)), encoding="utf-8")
    return lambda *words: reconsume("settle", *words, "--why", "seen", "--yes", "-o", "json", "-c", file)


def test_a_person_ends_each_wait_and_the_next_of_the_key_goes(
    group: GroupTopics,
    settle: Settle,
    start_service: StartService,
    start_sidecar: StartSidecar,
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    """A parked head is tried and parked again, then called done; one behind goes to the DLQ without a delivery; and
    each tells of it in its journey. The API does what the command does."""
    bad = BadFails()
    service = start_service(bad)
    sidecar = start_sidecar(group, service.url, overrides=PARK)
    first, behind, last = put(group, (b"bad", b"a"), (b"behind", b"a"), (b"last", b"a"))
    sidecar.until(is_parked(group, first), 30, "the head is parked")
    refused = settle(behind, "--retry-now")
    assert (refused.exit_code, first in refused.stderr) == (1, True), refused.stderr
    tried = settle(first, "--retry-now")
    assert tried.exit_code == 0, tried.stderr
    sidecar.until(lambda: len(service.ledger.of(first)) == 3, 20, "it is delivered again")
    sidecar.until(
        lambda: [e.parked is True for e in events_of(group, first)] == [False, True, False, True], 20, "parked"
    )
    assert [d.times for d in service.ledger.of(first)] == [0, 1, 1]
    api, decision = Puller(sidecar, ledger), {"id": behind, "how": "dead-letter", "why": "seen"}
    assert api.call("settle", {**decision, "how": "retry-now"}).status == 409
    assert api.call("settle", {**decision, "id": f"{group.main}:0:999"}).status == 404
    answer = api.call("settle", decision)
    assert (answer.status, answer.json["done"], answer.json["how"]) == (200, True, "dead-letter"), answer.body
    done = settle(first, "--commit")
    assert done.exit_code == 0, done.stderr
    sidecar.until(lambda: bool(service.ledger.of(last)), 20, "the last of the key goes")
    assert (len(service.ledger.of(first)), len(service.ledger.of(behind))) == (3, 0)
    (ended,) = [event for event in events_of(group, first) if event.state is State.COMMIT]
    assert (ended.reason, ended.text) == ("by-operator", "seen")
    (letter,) = dump(group.bootstrap, group.dlq)
    assert dict(letter.headers)[ORIGIN_MESSAGE_ID] == behind.encode()
    assert dict(letter.headers)["RETRY_REASON"] == b"by-operator: seen"
    assert api.call("settle", decision).status == 404
    gone = settle(first, "--dead-letter")
    assert (gone.exit_code, "does not wait" in gone.stderr) == (1, True), gone.stderr
    assert decisions_of(group) == {}
    await_quiet(group, 30)
    assert sidecar.stop().code == 0
    assert violations(group, tmp_path, PARK) == []


@pytest.mark.long
def test_a_decision_outlives_its_owner_and_is_carried_out_once_by_the_next(
    group: GroupTopics, settle: Settle, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Nobody is there when it is made (3), and the owner is killed while it tries the record: no attempt is counted for
    it, and the key goes on."""
    bad = BadFails()
    service = start_service(bad)
    sidecar = start_sidecar(group, service.url, overrides=PARK)
    head, behind = put(group, (b"bad", b"a"), (b"behind", b"a"))
    sidecar.until(is_parked(group, head), 30, "the head is parked")
    sidecar.kill()
    following = Following(tmp_path / "settle.json", head, "--retry-now", "--why", "seen")
    assert following.decision
    following.kill()
    assert len(decisions_of(group)) == 1
    sidecar.start()
    sidecar.until(lambda: len(service.ledger.of(head)) == 3, 40, "the next owner carries it out")
    sidecar.kill()
    bad.well.set()
    sidecar.start()
    (after,) = put(group, (b"after", b"b"))
    sidecar.until(lambda: bool(service.ledger.of(after)), 40, "it delivers again")
    if not any(d.means == TOOK for d in service.ledger.of(head)):
        assert settle(head, "--retry-now").exit_code in (0, 1)
    sidecar.until(lambda: bool(service.ledger.of(behind)), 40, "the next of the key goes")
    await_quiet(group, 30)
    assert sidecar.stop().code == 0
    assert {d.times for d in service.ledger.of(head)} == {0, 1}
    assert dump(group.bootstrap, group.dlq) == []
    assert violations(group, tmp_path, PARK) == []
