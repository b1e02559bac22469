"""`settle` on a real broker with real sidecars: one decision about all that waits, carried out by the owners."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconsume.topics.action_record import ActionHeard
from reconsume.topics.events import Event, State, author_of, decode_event
from reconsume.topics.names import Kind
from reconsume.topics.policy_record import parse_record
from reconsume.topics.transitions import BY_OPERATOR
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.level_copies import decisions_of
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.ledger import Ledger
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails
from tests.support.service.puller import Puller
from tests.support.sidecar.config import Config, config_of
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.settling import Following

HOUR = 3_600_000
LADDER: Config = {"deliver": {"outage_failures": None}, "retry": {"ladder": ["1h"], "levels": ["1h"]}}
PARK: Config = {
    "deliver": {"order": "key", "outage_failures": None, "concurrency": 16},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 0, "ordered_exhausted": "park"},
}
COUNT = 200
Follow = Callable[..., Following]


@pytest.fixture
def group(new_group: FreshGroup) -> GroupTopics:
    return create_group(replace(new_group(), delays=(HOUR,)), 2, also=[Kind.POLICY])


@pytest.fixture
def bad() -> BadFails:
    return BadFails()


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[[GroupTopics, Config], Follow]]:
    """`follow(group, config)("--waiting", …)` begins `reconsume settle`, which is killed at the end."""
    begun: list[Following] = []

    def of_group(group: GroupTopics, config: Config) -> Follow:
        file = tmp_path / "settle.json"
        file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471, config)), encoding="utf-8")

        def begin(*words: str) -> Following:
            begun.append(Following(file, *words, "--why", "seen", "--who", "ann@laptop"))
            return begun[-1]

        return begin

    yield of_group
    for one in begun:
        one.kill()


@pytest.fixture
def settle(follow: Callable[[GroupTopics, Config], Follow], group: GroupTopics) -> Follow:
    return follow(group, LADDER)


@pytest.fixture
def sidecar(
    group: GroupTopics, bad: BadFails, start_service: StartService, start_sidecar: StartSidecar
) -> SidecarProcess:
    """A sidecar of which COUNT records wait for an hour."""
    produce(group.bootstrap, group.main, [Out(b"bad", b"k%d" % (number % 20)) for number in range(COUNT)])
    sidecar = start_sidecar(group, start_service(bad).url, overrides=LADDER)
    sidecar.until(lambda: len(waiting(group)) == COUNT, 60, "all of them wait")
    return sidecar


def waiting(group: GroupTopics) -> list[Any]:
    return dump(group.bootstrap, group.names.level(HOUR, ""))


def events_of(group: GroupTopics, state: State) -> list[Event]:
    told = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events)]
    return [event for event in told if isinstance(event, Event) and event.state is state]


def test_what_waits_for_an_hour_is_tried_now_and_no_retry_is_used_up(
    group: GroupTopics, settle: Follow, bad: BadFails, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    """Each record once, with the count that it had; the action says who, why and how many."""
    bad.well.set()
    code, planned, said = settle("--waiting", "--reason", "http-500", "--retry-now").end()
    assert (code, sum(row["records"] for row in planned)) == (0, COUNT), said
    assert f"settled {COUNT} records: tried now" in said
    await_quiet(group, 60)
    assert decisions_of(group) == {}
    done = events_of(group, State.COMMIT)
    assert ({event.times for event in done}, len({event.id for event in done}), len(done)) == ({1}, COUNT, COUNT)
    last = {row.key: row.value for row in dump(group.bootstrap, group.names.policy) if row.value is not None}
    noted = [heard.record for heard in (parse_record(*one) for one in last.items()) if isinstance(heard, ActionHeard)]
    assert [(one.action, one.who, one.why, one.records) for one in noted if one] == [
        ("settle", "ann@laptop", "seen", COUNT)
    ]
    assert sidecar.stop().code == 0
    assert dump(group.bootstrap, group.dlq) == []
    assert violations(group, tmp_path, LADDER) == []


def test_the_decision_is_carried_out_although_the_command_is_killed_after_its_first_line(
    group: GroupTopics, settle: Follow, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    """Records of one key go to the DLQ, and those of another are done; the rest waits on."""
    following = settle("--waiting", "--key", "k3", "--dead-letter")
    assert following.decision
    following.kill()
    code, _, said = settle("--waiting", "--key", "k4", "--commit").end()
    assert code == 0, said
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == COUNT // 20, 30, "the dead letters are there")
    assert {row.key for row in dump(group.bootstrap, group.dlq)} == {b"k3"}
    assert {event.reason for event in events_of(group, State.DLQ)} == {BY_OPERATOR}
    ended = events_of(group, State.COMMIT)
    assert len(ended) == COUNT // 20
    assert {(event.reason, event.text, author_of(event)) for event in ended} == {(BY_OPERATOR, "seen", "ann@laptop")}
    code, planned, said = settle("--waiting", "--retry-now", "--dry-run").end()
    assert sum(row["records"] for row in planned) == COUNT - COUNT // 10, said
    assert sidecar.stop().code == 0
    assert violations(group, tmp_path, LADDER) == []


def test_a_rate_bounds_it_and_the_api_follows_and_ends_it(
    group: GroupTopics, bad: BadFails, sidecar: SidecarProcess, ledger: Ledger
) -> None:
    """At one a second few are settled; what is left when the decision ends waits on."""
    bad.well.set()
    api = Puller(sidecar, ledger)
    answer = api.call("settle", {"waiting": {}, "how": "retry-now", "rate": "1/s", "why": "seen"})
    assert (answer.status, answer.json["records"]) == (202, COUNT), answer.body
    ident = answer.json["decision"]

    def status() -> dict[str, Any]:
        answer = sidecar.request("GET", f"/v1/settle/{ident}")
        assert answer.status == 200, answer
        return dict(answer.json)

    sidecar.until(lambda: status()["done"] >= 2, 30, "some are settled")
    assert status()["state"] == "open"
    assert sidecar.request("DELETE", f"/v1/settle/{ident}").status == 204
    sidecar.until(lambda: status()["state"] == "ended", 10, "it has ended")
    sidecar.until(lambda: bool(events_of(group, State.COMMIT)), 20, "those that were settled are delivered")
    assert len(events_of(group, State.COMMIT)) < COUNT // 2
    assert decisions_of(group) == {}


def test_all_parked_keys_are_settled_by_one_decision(
    new_group: FreshGroup,
    follow: Callable[[GroupTopics, Config], Follow],
    bad: BadFails,
    start_service: StartService,
    start_sidecar: StartSidecar,
    tmp_path: Path,
) -> None:
    """What fails again is parked again by its own count; once the cause is repaired all keys go on."""
    group = create_group(replace(new_group(), delays=(), queued=True), 3, also=[Kind.POLICY])
    settle, keys = follow(group, PARK), 30
    produce(group.bootstrap, group.main, [Out(v, b"k%d" % n) for n in range(keys) for v in (b"bad", b"behind")])
    sidecar = start_sidecar(group, start_service(bad).url, overrides=PARK)

    def parked() -> int:
        return int(sidecar.metric(f'reconsume_parked_keys{{topic="{group.main}"}}'))

    sidecar.until(lambda: parked() == keys, 40, "all of them are parked")
    code, planned, said = settle("--waiting", "--level", "parked", "--retry-now").end()
    assert (code, sum(row["records"] for row in planned)) == (0, keys), said
    sidecar.until(lambda: parked() == keys, 20, "all have failed again")
    bad.well.set()
    code, planned, said = settle("--waiting", "--level", "parked", "--retry-now").end()
    assert (code, sum(row["records"] for row in planned)) == (0, keys), said
    await_quiet(group, 30)
    assert parked() == 0
    assert sidecar.stop().code == 0
    assert dump(group.bootstrap, group.dlq) == []
    assert violations(group, tmp_path, PARK) == []
