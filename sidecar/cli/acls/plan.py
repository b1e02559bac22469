"""Plan a group's access rules: the rights that each user needs, and those that the cluster already grants. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from reconsume.topics.acls import GroupShape, Operation, Permission, Resource, User, permissions_of

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.admin.acls import Rule

EVERYBODY = "User:*"
EVERYTHING = "*"
ANY_HOST = "*"
CARRIED = {
    Operation.DESCRIBE: {"READ", "WRITE", "DELETE", "ALTER"},
    Operation.DESCRIBE_CONFIGS: {"ALTER_CONFIGS"},
}
"""For an operation, the other operations that grant it too, by Kafka's own rule."""

Action = Literal["create", "ok", "denied", "extra"]


class Step(NamedTuple):
    """The planned action for one right of one principal.

    `by` is the rule that grants or denies the right. An `extra` right is needed by none of the principal's roles; it
    stays, because only a person may remove it.
    """

    role: str
    principal: str
    right: Permission
    action: Action
    by: str = ""

    @property
    def row(self) -> dict[str, object]:
        """The step as a row of plain values."""
        right = self.right
        return {
            "role": self.role,
            "principal": self.principal,
            "action": self.action,
            "operation": str(right.operation),
            "resource": str(right.resource),
            "name": right.name,
            "pattern": "prefixed" if right.prefixed else "literal",
            "by": self.by,
        }


def principals_of(group: str, roles: Iterable[User], texts: Sequence[str]) -> dict[User, str]:
    """Return the principal of each role: the one given as `role=principal`, else `User:<group>-<role>`.

    A principal given without a role belongs to the only role. Raises ValueError if a principal is malformed, if its
    role was not requested, or if it names no role and there are several.
    """
    principals = {role: f"User:{group}-{role}" for role in roles}
    for text in texts:
        name, equals, principal = text.partition("=")
        # `User:CN=billing,O=shop` contains `=` too, but it is a principal: the part before `=` is not a role.
        if equals and name in set(User):
            if User(name) not in principals:
                raise ValueError(f"{text!r}: the role {name} was not asked for")
            principals[User(name)] = checked(principal)
        elif len(principals) == 1:
            principals[next(iter(principals))] = checked(text)
        else:
            raise ValueError(f"{text!r}: say whose it is, as ROLE=User:NAME, or give one --role")
    return principals


def checked(principal: str) -> str:
    """Return the principal. Raises ValueError if it does not have the form `TYPE:NAME`, like `User:billing`, or is a
    wildcard."""
    kind, colon, name = principal.partition(":")
    if not (kind.isalnum() and colon and name.isprintable() and name and name != "*"):
        raise ValueError(f"{principal!r} is no principal: write User:NAME")
    return principal


def make_plan(group: GroupShape, principals: Mapping[User, str], rules: Sequence[Rule]) -> list[Step]:
    """Return a step for each right of each role, then one for each rule that none of the principal's roles needs."""
    steps = [
        step_of(role, principal, right, rules)
        for role, principal in principals.items()
        for right in permissions_of(role, group)
    ]
    return steps + list(extras(group, principals, rules))


def step_of(role: User, principal: str, right: Permission, rules: Sequence[Rule]) -> Step:
    """Plan the step for one right: denied, create or ok."""
    denying = next((rule for rule in rules if not rule.allow and touches(rule, principal, right)), None)
    if denying is not None:
        return Step(role, principal, right, "denied", spelled(denying))
    giving = next((rule for rule in rules if rule.allow and gives(rule, principal, right)), None)
    if giving is None:
        return Step(role, principal, right, "create")
    return Step(role, principal, right, "ok", "" if is_exact(giving, principal, right) else spelled(giving))


def gives(rule: Rule, principal: str, right: Permission) -> bool:
    """Whether an allow rule grants a right as a whole, from every host."""
    carried = {"ALL", right.operation, *CARRIED.get(right.operation, ())}
    return applies(rule, principal, right.resource) and rule.operation in carried and holds(rule, right)


def touches(rule: Rule, principal: str, right: Permission) -> bool:
    """Whether a deny rule takes a right away. A denied DESCRIBE takes away no other operation."""
    return (
        applies(rule, principal, right.resource, every_host=False)
        and rule.operation in ("ALL", right.operation)
        and (holds(rule, right) or (right.prefixed and rule.name.startswith(right.name)))
    )


def applies(rule: Rule, principal: str, resource: Resource, *, every_host: bool = True) -> bool:
    """Whether a rule is about this principal and this kind of resource; with `every_host` also whether it covers
    every host."""
    hosts = rule.host == ANY_HOST or not every_host
    return rule.principal in (principal, EVERYBODY) and rule.resource is resource and hosts


def holds(rule: Rule, right: Permission) -> bool:
    """Whether a rule covers all the names of a right."""
    if rule.pattern == "prefixed":
        return right.name.startswith(rule.name)
    return rule.name == EVERYTHING or (rule.name == right.name and not right.prefixed)


def is_exact(rule: Rule, principal: str, right: Permission) -> bool:
    """Whether a rule gives exactly what is needed: to the principal, on the names of the resource, the operation."""
    pattern = "prefixed" if right.prefixed else "literal"
    fields = (rule.principal, rule.resource, rule.pattern, rule.name, rule.operation)
    return fields == (principal, right.resource, pattern, right.name, right.operation)


def extras(group: GroupShape, principals: Mapping[User, str], rules: Sequence[Rule]) -> Iterator[Step]:
    """Yield a step for each rule that gives a principal more on the group's names than its roles need."""
    ours = own_names(group)
    for principal in dict.fromkeys(principals.values()):
        roles = [role for role, whose in principals.items() if whose == principal]
        wanted = {right for role in roles for right in permissions_of(role, group)}
        for rule in rules:
            if not rule.allow or rule.principal != principal or any(is_exact(rule, principal, r) for r in wanted):
                continue
            if any(reaches(rule, resource, name) for resource, name in ours):
                yield Step("+".join(roles), principal, loose(rule), "extra", spelled(rule))


def own_names(group: GroupShape) -> set[tuple[Resource, str]]:
    """Return all resources and names that rights of this group can refer to."""
    return {(right.resource, right.name) for user in User for right in permissions_of(user, group)}


def reaches(rule: Rule, resource: Resource, name: str) -> bool:
    """Whether a rule covers a name."""
    inside = name.startswith(rule.name) if rule.pattern == "prefixed" else rule.name in (EVERYTHING, name)
    return rule.resource is resource and inside


def loose(rule: Rule) -> Permission:
    """Return what a rule grants, as a right. An operation that no role needs becomes DESCRIBE; only the rule's text
    names it."""
    known = Operation(rule.operation) if rule.operation in set(Operation) else Operation.DESCRIBE
    return Permission(rule.resource, rule.name, known, rule.pattern == "prefixed")


def spelled(rule: Rule) -> str:
    """Describe a rule in words."""
    verb = "allow" if rule.allow else "deny"
    host = "" if rule.host == ANY_HOST else f" from {rule.host}"
    return f"{verb} {rule.principal} {rule.operation} on {rule.pattern} {rule.resource} {rule.name}{host}"
