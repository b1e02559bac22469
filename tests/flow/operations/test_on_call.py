"""On call: each command of the runbook with the role `oncall`, and what each command says where a right is missing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from reconsume.topics.acls import GroupShape, Permission, Resource, User, permissions_of
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.guarded import GuardedKafka
from tests.support.kafka.topic_io import dump, produce
from tests.support.proof.quiet import await_quiet
from tests.support.rings import inner
from tests.support.service.behaviours import by_name
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.redrive import dead_letter

READS = (
    "doctor", "topics check", "topics plan", "acls plan", "policy show", "explain --live", "holds", "audit",
    "find --key a", "retries list", "retries stats", "dlq list", "dlq show {id}", "dlq export", "groups",
)  # fmt: skip
"""The commands of the runbook that change nothing."""
CHANGES = ("hold --all --for 1m --why test --yes", "release --all", "dlq redrive --yes")
FEW = ("topics check", CHANGES[0])
"""The commands that the inner ring calls without a right."""
PEOPLE = (User.ONCALL, User.UI, User.ADMIN)


@pytest.fixture(scope="module")
def group(guarded: GuardedKafka) -> GroupTopics:
    """A group with a dead letter, on a broker that asks who you are."""
    made = create_group(fresh_group(guarded.bootstrap, delays=(1_000,)), partitions=1, also=UNUSED)
    produce(made.bootstrap, made.dlq, [dead_letter(made, 1)])
    return made


def shape_of(group: GroupTopics) -> GroupShape:
    return GroupShape(group.names, group.mains, group.delays, view=True)


def called(folder: Path, group: GroupTopics, guarded: GuardedKafka, user: str, line: str) -> Result:
    words = line.format(id=f"{group.main}:0:1").split()
    here = replace(group, bootstrap=guarded.address)
    retry = {"levels": [f"{delay}ms" for delay in group.delays], "ladder": ["1s", "2s"], "max_reconsume_times": 2}
    return for_group(folder, here, *words, kafka=guarded.login(user), retry=retry, view={"enabled": True})


def test_the_commands_of_the_runbook_work_for_the_role_oncall(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    guarded.allow("oncall", permissions_of(User.ONCALL, shape_of(group)))
    for line in (*READS, *CHANGES):
        shown = called(tmp_path, group, guarded, "oncall", line)
        assert "authoriz" not in shown.stderr.lower(), (line, shown.stderr)
        assert "not for this user" not in shown.stderr, (line, shown.stderr)
        assert shown.exit_code in ((0, 1) if line in ("doctor", "audit") else (0,)), (line, shown.stderr)
    assert len(dump(group.bootstrap, group.names.ready)) == 1, "it came back"


def test_with_the_planned_rights_doctor_is_clean_for_every_role_and_with_strict(
    guarded: GuardedKafka,
    start_service: StartService,
    start_sidecar: StartSidecar,
    new_group: FreshGroup,
    tmp_path: Path,
) -> None:
    """Given a sidecar that works with its own rights, then no role is shown what it need not see."""
    group = create_group(replace(new_group(), bootstrap=guarded.bootstrap), partitions=1, also=UNUSED)
    for user in (User.SIDECAR, *PEOPLE):
        guarded.allow(user, permissions_of(user, shape_of(group)))
    service = start_service(by_name({}))
    here = replace(group, bootstrap=guarded.address)
    sidecar = start_sidecar(here, service.url, overrides={"kafka": guarded.login("sidecar")})
    produce(group.bootstrap, group.main, [b"a", b"b"])
    await_quiet(group, 60)

    def left(user: str) -> list[str]:
        shown = called(tmp_path, group, guarded, user, "doctor --strict -o json")
        rows = json.loads(shown.stdout)
        own = {"service"} if user == "sidecar" else set[str]()  # this test's configuration names another port
        bad = [row for row in rows if row["status"] != "ok" and row["check"] not in own]
        return [f"{row['check']} {row['status']}: {row['finding']}" for row in bad]

    for user in ("sidecar", *PEOPLE):
        sidecar.until(lambda user=user: left(user) == [], 60, f"doctor is clean for {user}: {left(user)}")  # type: ignore[misc]


def test_no_repair_of_doctor_gives_a_person_more_than_the_role_that_it_has(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    """Given a user who lacks one right of the role ui, then the repair is of that role, and names no sidecar."""
    lost, *rest = permissions_of(User.UI, shape_of(group))
    guarded.allow("ui", rest)
    rows = json.loads(called(tmp_path, group, guarded, "ui", "doctor -o json").stdout)
    repairs = " ".join(row["repair"] for row in rows)
    assert "acls apply --role ui" in repairs
    assert not any(f"--role {role}" in repairs for role in User if role is not User.UI)
    guarded.allow("ui", [lost])


@pytest.mark.parametrize("line", ["retries list --blocked", "settle {id} --retry-now --why test --yes", "find --key a"])
def test_no_command_looks_for_queues_that_an_ordered_group_without_a_ladder_does_not_have(
    line: str, guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    """With rights, what is absent and what is hidden look alike: only the configuration says that there is none."""
    guarded.allow("oncall", permissions_of(User.ONCALL, shape_of(group)))
    here = replace(group, bootstrap=guarded.address)
    words = line.format(id=f"{group.main}:0:1").split()
    in_place = {"url": "http://127.0.0.1:1/", "order": "key"}
    shown = for_group(tmp_path, here, *words, kafka=guarded.login("oncall"), deliver=in_place)
    assert "-ORDERED-" not in shown.stderr, shown.stderr
    assert "not for this user" not in shown.stderr, shown.stderr


def lacking(shape: GroupShape) -> Iterator[Permission]:
    """One right of each operation on topics of the role oncall; the outer ring has all of its rights."""
    seen = set[object]()
    for right in permissions_of(User.ONCALL, shape):
        if right.resource is Resource.TOPIC and right.operation not in seen:
            seen.add(right.operation)
            yield right


@pytest.mark.parametrize(
    "every", inner(False, (False, True)), ids=lambda every: "each right" if every else "some rights"
)
def test_each_command_without_a_right_is_a_sentence_and_never_a_fault_of_ours(
    every: bool, guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    shape = shape_of(group)
    rights = permissions_of(User.ONCALL, shape)
    guarded.allow("oncall", rights)
    some = rights if every else tuple(lacking(shape))
    for right, line in itertools.product(some, (*READS, *CHANGES) if every else FEW):
        guarded.forbid("oncall", right)
        shown = called(tmp_path, group, guarded, "oncall", line)
        assert "fault of reconsume" not in shown.stderr + shown.stdout, (str(right), line, shown.stderr)
        assert "KafkaError{" not in shown.stderr + shown.stdout, (str(right), line, shown.stderr)
        guarded.allow("oncall", [right])
