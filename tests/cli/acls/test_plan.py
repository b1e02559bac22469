"""The plan of access rules as a value: what gives a right, what denies it, what is more than needed."""

from __future__ import annotations

import pytest
import typer
from msgspec.structs import replace

from reconsume.sidecar.cli.acls import Needed, Step, make_plan, principals_of
from reconsume.sidecar.cli.exports import kafka_acls_commands
from reconsume.sidecar.kafka.admin.changes import Rule
from reconsume.topics.acls import GroupShape, Operation, Permission, Resource, User, permissions_of
from reconsume.topics.names import Names

GROUP = GroupShape(Names("billing"), ("orders",), (10_000,), source="spark")
ME = "User:billing-spark"
EVENTS = Rule(ME, Resource.TOPIC, "billing-RETRY-EVENTS", "literal", "READ")


def events_step(rules: tuple[Rule, ...]) -> Step:
    steps = make_plan(Needed(GROUP, {User.SPARK: ME}), rules)
    return next(step for step in steps if step.right.name == EVENTS.name)


@pytest.mark.parametrize(
    ("rule", "action"),
    [
        (EVENTS, "ok"),
        (replace(EVENTS, operation="ALL"), "ok"),
        (replace(EVENTS, name="*"), "ok"),
        (replace(EVENTS, name="billing-", pattern="prefixed"), "ok"),
        (replace(EVENTS, principal="User:*"), "ok"),
        (replace(EVENTS, name="billing-RETRY-", pattern="literal"), "create"),
        (replace(EVENTS, operation="DESCRIBE"), "create"),
        (replace(EVENTS, operation="WRITE"), "create"),
        (replace(EVENTS, principal="User:other"), "create"),
        (replace(EVENTS, host="10.0.0.1"), "create"),
        (replace(EVENTS, resource=Resource.GROUP), "create"),
        (replace(EVENTS, allow=False), "denied"),
        (replace(EVENTS, allow=False, name="billing", pattern="prefixed", operation="ALL"), "denied"),
        (replace(EVENTS, allow=False, host="10.0.0.1"), "denied"),
        (replace(EVENTS, allow=False, principal="User:other"), "create"),
    ],
)
def test_what_a_rule_does_for_a_right(rule: Rule, action: str) -> None:
    assert events_step((rule,)).action == action


def test_a_denial_wins_over_what_allows() -> None:
    step = events_step((EVENTS, replace(EVENTS, allow=False, name="*")))
    assert (step.action, step.by) == ("denied", f"deny {ME} READ on literal topic *")


def test_describe_comes_with_read_but_not_the_other_way_round() -> None:
    ui = {User.UI: "User:u"}
    read = Rule("User:u", Resource.GROUP, "billing-RETRY", "literal", "READ")
    held = Permission(Resource.GROUP, "billing-RETRY", Operation.DESCRIBE)
    (step,) = [step for step in make_plan(Needed(GROUP, ui), [read]) if step.right == held]
    assert step.action == "ok"


def test_two_roles_of_one_principal_are_no_extra_to_each_other() -> None:
    rules = [
        Rule("User:one", right.resource, right.name, "prefixed" if right.prefixed else "literal", str(right.operation))
        for role in (User.SIDECAR, User.UI)
        for right in permissions_of(role, GROUP)
    ]
    steps = make_plan(Needed(GROUP, {User.SIDECAR: "User:one", User.UI: "User:one"}), rules)
    assert {step.action for step in steps} == {"ok"}


def test_principals_are_named_after_the_group_unless_given() -> None:
    assert principals_of("billing", [User.SPARK], []) == {User.SPARK: "User:billing-spark"}
    assert principals_of("billing", [User.SPARK], ["User:s"]) == {User.SPARK: "User:s"}
    assert principals_of("billing", [User.SPARK], ["User:CN=s,O=x"]) == {User.SPARK: "User:CN=s,O=x"}
    both = principals_of("billing", [User.SPARK, User.UI], ["ui=User:grafana"])
    assert both == {User.SPARK: "User:billing-spark", User.UI: "User:grafana"}


@pytest.mark.parametrize("given", [["User:x"], ["admin=User:x"], ["ui=x"], ["ui=User:"], ["ui=User:*"]])
def test_a_principal_that_cannot_be_meant_is_refused(given: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match="User"):
        principals_of("billing", [User.SPARK, User.UI], given)


def test_a_command_gives_all_rights_on_one_resource_and_is_safe_in_a_shell() -> None:
    rights = (
        Permission(Resource.TOPIC, "a", Operation.READ),
        Permission(Resource.TRANSACTIONAL_ID, "billing-main-", Operation.WRITE, prefixed=True),
        Permission(Resource.TOPIC, "a", Operation.DESCRIBE_CONFIGS),
    )
    first, second = kafka_acls_commands("localhost:9092", "User:CN=a b", rights).splitlines()
    assert first == (
        "kafka-acls.sh --bootstrap-server localhost:9092 --add --allow-principal 'User:CN=a b' "
        "--operation Read --operation DescribeConfigs --topic a --resource-pattern-type literal"
    )
    assert second.endswith("--operation Write --transactional-id billing-main- --resource-pattern-type prefixed")
