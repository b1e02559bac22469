"""Holds in a group with the ordered ladder, on a real broker: a held key stands in its queue and keeps its order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from reconsume.topics.names import Kind
from reconsume.topics.retry_headers import ORIGIN_MESSAGE_ID
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_ladder import assert_in_order
from tests.flow.modes.test_ordered_park import put
from tests.flow.operations.test_holds import held, obeyed
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import dump
from tests.support.proof.audited import violations
from tests.support.proof.ledger import FAILED, TOOK
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails
from tests.support.service.service import Service
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config, config_of
from tests.support.sidecar.owned import owned
from tests.support.sidecar.process import SidecarProcess

PARTITIONS = 2
LADDER: Config = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 100},
    "kafka": {"session.timeout.ms": 6_000},
}
Command = Callable[..., Result]


@pytest.fixture
def group(new_group: FreshGroup) -> GroupTopics:
    return create_group(replace(new_group(), delays=(), queued=True), PARTITIONS, also=[Kind.POLICY])


@pytest.fixture
def command(group: GroupTopics, tmp_path: Path) -> Command:
    """`command("hold", …)`: the command line, with the configuration of the group's sidecars."""
    file = tmp_path / "command.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471, LADDER)), encoding="utf-8")
    return lambda *words: reconsume(*words, "-c", file)


def hold(command: Command, *words: str) -> None:
    made = command("hold", *words, "--why", "the account is checked", "--yes")
    assert made.exit_code == 0, made.stderr


def failed_again(service: Service, ident: str) -> Callable[[], bool]:
    """The record is tried twice more than now, so whatever else was due before has had its time."""
    wanted = len(service.ledger.of(ident)) + 2
    return lambda: len(service.ledger.of(ident)) >= wanted


def both_own(pods: list[SidecarProcess]) -> None:
    pods[0].until(lambda: all(len(owned(pod)) == PARTITIONS // 2 for pod in pods), 40, "each pod has a partition")


def in_turn(service: Service, *idents: str) -> None:
    """No record of the key was delivered before the one in front of it was taken."""
    for before, after in itertools.pairwise(idents):
        (taken,) = [d.answered for d in service.ledger.of(before) if d.means == TOOK]
        assert taken is not None
        assert all(taken <= d.received for d in service.ledger.of(after))


def attempts(service: Service, ident: str) -> list[int]:
    return [d.times for d in service.ledger.of(ident) if d.means == FAILED]


def test_a_held_key_stands_in_its_queue_is_settled_there_and_goes_on_in_order(
    group: GroupTopics,
    command: Command,
    start_service: StartService,
    start_sidecar: StartSidecar,
    tmp_path: Path,
) -> None:
    """Two pods obey holds of two keys whose heads wait in the queue. One head is settled while it is held, and the next
    of its key is held as well. What is not held goes on. After the releases each key goes in its order."""
    failing = BadFails()
    service = start_service(failing)
    pods = [start_sidecar(group, service.url, pod, LADDER) for pod in ("pod-0", "pod-1")]
    both_own(pods)
    probe, first, behind, head, next_one = put(
        group, (b"bad", b"probe"), (b"bad", b"a"), (b"behind", b"a"), (b"bad", b"d"), (b"next", b"d")
    )
    pods[0].until(lambda: all(service.ledger.of(ident) for ident in (probe, first, head)), 30, "all heads failed")
    for key in ("a", "d"):
        hold(command, "--key", key, "--for", "1h")
    obeyed(pods, 2)
    before = [len(service.ledger.of(ident)) for ident in (first, head)]
    (last,) = put(group, (b"last", b"a"))
    pods[0].until(failed_again(service, probe), 30, "what is not held is tried again")
    assert [len(service.ledger.of(ident)) for ident in (first, head)] == before
    planned = command("settle", first, "--retry-now", "--why", "seen", "--dry-run")
    assert json.loads(planned.stdout)["is"].startswith("tried once hold ")
    tried = command("settle", first, "--retry-now", "--why", "seen", "--yes")
    assert (tried.exit_code, f"settled {first}: tried once hold " in tried.stderr) == (0, True), tried.stderr
    settled = command("settle", head, "--dead-letter", "--why", "seen", "--yes", "-o", "json")
    assert settled.exit_code == 0, settled.stderr
    (letter,) = dump(group.bootstrap, group.dlq)
    assert dict(letter.headers)[ORIGIN_MESSAGE_ID] == head.encode()
    pods[0].until(failed_again(service, probe), 30, "what is not held is tried again")
    assert [len(service.ledger.of(ident)) for ident in (first, behind, last, head, next_one)] == [
        *(before[0], 0, 0),
        *(before[1], 0),
    ]
    failing.well.set()
    for row in pods[0].status()["holds"]:
        assert pods[1].request("DELETE", f"/v1/holds/{row['id']}").status == 204
    obeyed(pods, 0)
    pods[0].until(lambda: {first, behind, last, next_one} <= service.ledger.taken(), 30, "all is taken")
    await_quiet(group, 40)
    assert [pod.stop().code for pod in pods] == [0, 0]
    in_turn(service, first, behind, last)
    assert attempts(service, first) == list(range(len(attempts(service, first)))), "a hold is no attempt"
    assert violations(group, tmp_path, LADDER) == []


@pytest.mark.long
def hold_by_call(pod: SidecarProcess, key: str, lasts: str) -> None:
    """Hold a key by the API, which does not wait for every instance: the command would wait for one that is frozen."""
    answer = pod.request("POST", "/v1/holds", body={"key": key, "for": lasts, "why": "the account is checked"})
    assert answer.status == 201, answer


def test_a_pod_that_is_frozen_over_a_hold_obeys_what_is_in_force_when_it_wakes(
    group: GroupTopics, command: Command, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given a pod that stands still while one hold begins and ends and another one begins, then it obeys the second
    after it wakes, and no attempt is lost or counted twice."""
    failing = BadFails()
    service = start_service(failing)
    frozen, awake = (start_sidecar(group, service.url, pod, LADDER) for pod in ("pod-0", "pod-1"))
    both_own([frozen, awake])
    heads = put(group, *((b"bad", b"key-%d" % number) for number in range(8)))
    followers = put(group, *((b"behind", b"key-%d" % number) for number in range(8)))
    awake.until(lambda: all(service.ledger.of(ident) for ident in heads), 30, "all heads failed")
    frozen.pause()
    hold_by_call(awake, "key-0", "3s")
    awake.until(lambda: len(held(awake)) == 1, 10, "the first hold is in force")
    awake.until(lambda: not held(awake), 10, "the first hold has ended by itself")
    hold_by_call(awake, "key-1", "1h")
    awake.until(lambda: len(held(awake)) == 1, 10, "the second hold is in force")
    awake.until(lambda: len(owned(awake)) == PARTITIONS, 40, "it has the partitions of the frozen one")
    frozen.cont()
    frozen.until(lambda: len(held(frozen)) == 1, 10, "the pod that woke obeys it")
    both_own([frozen, awake])
    before = len(service.ledger.of(heads[1]))
    (late,) = put(group, (b"late", b"key-1"))
    for probe in (heads[0], heads[2]):
        awake.until(failed_again(service, probe), 30, "what is held no more, or never was, is tried again")
    assert len(service.ledger.of(heads[1])) == before
    failing.well.set()
    assert command("release", "--all").exit_code == 0
    everything = {*heads, *followers, late}
    awake.until(lambda: everything <= service.ledger.taken(), 60, "all is taken")
    await_quiet(group, 60)
    assert [pod.stop().code for pod in (frozen, awake)] == [0, 0]
    assert_in_order(group, service.ledger)
    for ident in heads:
        tried = attempts(service, ident)
        once = list(dict.fromkeys(tried))
        assert once == list(range(len(once))), "each attempt is counted"
        # What the frozen pod had not written yet is repeated with its count, once.
        assert len(tried) <= len(once) + 1, "no attempt is counted twice"
    assert dump(group.bootstrap, group.dlq) == []
    assert violations(group, tmp_path, LADDER) == []
