"""`acls plan`, `acls apply`, `acls export`: the least rights that each of the group's Kafka users needs.

`look` reads the cluster's rules and makes a `Step` of each right of each role: create, ok or denied. `plan` shows the
steps, `apply` creates what is missing and removes nothing, `export` prints the rights for another tool without asking
the cluster. From `principals_of` on the file is pure.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from msgspec.structs import replace

from reconsume.sidecar.cli.exports import Authentication, kafka_acls_commands, strimzi_user, yaml_documents
from reconsume.sidecar.cli.terminal.confirm import Yes, ask
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED, PARTLY
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka, settings_of_one
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.model import group_of
from reconsume.sidecar.settings.policy import allowed_outputs_of
from reconsume.topics.acls import GroupShape, Operation, Permission, User, permissions_of
from reconsume.topics.outputs import literal_start
from reconsume.topics.removed import removed_levels

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.admin.changes import Acls, Rule

PLAN_COLUMNS = ("role", "principal", "action", "operation", "resource", "name", "pattern", "by")
RESULT_COLUMNS = ("role", "principal", "operation", "resource", "name", "pattern", "result", "error")
EVERYBODY = "User:*"
EVERYTHING = "*"
ANY_HOST = "*"
CARRIED = {
    Operation.DESCRIBE: {"READ", "WRITE", "DELETE", "ALTER"},
    Operation.DESCRIBE_CONFIGS: {"ALTER_CONFIGS"},
}
"""For an operation, the other operations that grant it too, by Kafka's own rule."""


class Form(StrEnum):
    """The output format of `acls export`."""

    KAFKA_ACLS = "kafka-acls"
    STRIMZI = "strimzi"


Roles = Annotated[
    list[User] | None, typer.Option("--role", help="Whose rights; may be repeated. All six where it is not given.")
]
Principals = Annotated[
    list[str] | None,
    typer.Option(
        "--principal",
        metavar="[ROLE=]User:NAME",
        help="The Kafka user of a role; User:<group>-<role> where it is not given. May be repeated.",
    ),
]
Direct = Annotated[
    bool, typer.Option("--direct", help="The service writes retries by itself, as the Spark consumer does.")
]
ImportTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--import-topic",
        metavar="TOPIC",
        help="The admin may take over its dead letters by `dlq import --from`. May be repeated.",
    ),
]

app = typer.Typer(cls=Group, help="The group's access rights on Kafka.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


Action = Literal["create", "ok", "denied", "unknown"]


class Step(NamedTuple):
    """The planned action for one right of one principal. `by`: the rule that grants or denies the right."""

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


@command(app, "plan")
def plan(
    options: Options,
    role: Roles = None,
    principal: Principals = None,
    direct: Direct = False,
    imported: ImportTopics = None,
) -> None:
    """Show what `acls apply` would do.

    Each right would be created, is there (ok), or is denied by another rule. Changes nothing. To read the rules, the
    user of kafka: needs DESCRIBE on the cluster; without it each right is unknown, and the list is what the owner of
    the cluster must give.

    \b
    Example:
      reconsume acls plan --role sidecar --principal User:billing -o table
    """
    from reconsume.sidecar.kafka.admin.changes import HiddenRulesError  # imported late, as in `look`

    acls, needed = look(options, role, principal, direct, imported)
    try:
        steps = make_plan(needed, acls.found())
    except HiddenRulesError as hidden:
        steps = [Step(who, whose, right, "unknown") for who, whose, right in needed.rights()]
        talk(f"{hidden}, so each right is unknown; `{hint('acls export')}` prints them for the owner of the cluster")
    options.output.rows(PLAN_COLUMNS, [step.row for step in steps])


@command(app, "apply")
def apply(
    options: Options,
    role: Roles = None,
    principal: Principals = None,
    direct: Direct = False,
    imported: ImportTopics = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")] = False,
) -> int:
    """Create the rights that are missing.

    Nothing is ever removed: what is denied is reported. A plan is shown first. The user of kafka: needs
    DESCRIBE and ALTER on the cluster.

    Ends with 0 when all are there, 3 when some could not be created or are denied, 1 when none could.

    \b
    Examples:
      reconsume acls apply --role sidecar --role spark
      reconsume acls apply --role ui --principal User:grafana --yes
    """
    acls, needed = look(options, role, principal, direct, imported)
    steps = make_plan(needed, acls.found())
    missing = [step for step in steps if step.action == "create"]
    options.output.talk_rows(PLAN_COLUMNS, [step.row for step in steps])
    if missing and not dry_run and not yes:
        ask(f"Create {plural(len(missing), 'right')}?")
    errors: dict[tuple[str, Permission], str] = {}
    for whose in dict.fromkeys(step.principal for step in missing if not dry_run):
        rights = dict.fromkeys(step.right for step in missing if step.principal == whose)
        errors |= {(whose, right): error for right, error in acls.create(whose, list(rights)).items()}
    rows: list[Row] = []
    for step in steps:
        result: str = step.action
        error = step.by if step.action == "denied" else ""
        if step.action == "create":
            error = errors.get((step.principal, step.right), "")
            result = "would be created" if dry_run else "failed" if error else "created"
        rows.append({**step.row, "result": result, "error": error})
    options.output.rows(RESULT_COLUMNS, rows)
    return summed_up(steps, list(errors.values()))


@command(app, "export")
def export(
    options: Options,
    role: Roles = None,
    principal: Principals = None,
    direct: Direct = False,
    imported: ImportTopics = None,
    form: Annotated[Form, typer.Option("--format", help="As kafka-acls.sh commands, or as Strimzi KafkaUsers.")] = (
        Form.KAFKA_ACLS
    ),
    cluster: Annotated[str, typer.Option("--cluster", help="Strimzi: the name of the Kafka resource.")] = "kafka",
    login: Annotated[
        Authentication, typer.Option("--authentication", help="Strimzi: how the users log in.")
    ] = Authentication.SCRAM,
    properties: Annotated[
        str | None,
        typer.Option(
            "--command-config", metavar="FILE", help="kafka-acls: the file with the login of whoever runs the commands."
        ),
    ] = None,
) -> None:
    """Print the rights for other tools.

    Connects to nothing. A right is on a name, never on a pattern, but for transactional ids, which end with the
    instance's name. With Strimzi the user's name is that of the resource.

    \b
    Examples:
      reconsume acls export --role sidecar --command-config admin.properties | sh
      reconsume acls export --format strimzi --cluster main | kubectl apply -f -
    """
    options.expect_no_format(f"`{hint('acls plan')}` has rows")
    if properties is not None and form is not Form.KAFKA_ACLS:
        raise typer.BadParameter("--command-config is for kafka-acls.sh; leave it out")
    settings = settings_of_one(options)
    group = replace(group_of(settings, direct=direct), imported=tuple(imported or ()))
    principals = principals_of(settings.group, role, principal)
    wanted = {who: permissions_of(who, group) for who in principals}
    for who in [who for who, rights in wanted.items() if not rights]:
        talk(f"the {who} needs no rights in this mode")
        del wanted[who]
    talk(
        "levels of an earlier configuration are not in this list: until these topics are empty, keep their rights with "
        "--set retry.levels=table, or with the list that they were in"
    )
    if globs := globs_of(settings):
        plan_names = f"`{hint('acls plan')}` names them"
        talk(f"topics that match {', '.join(globs)} of deliver.outputs are not in this list; {plan_names}")
    if form is Form.STRIMZI:
        users = (strimzi_user(principals[who], rights, cluster, login) for who, rights in wanted.items())
        sys.stdout.write(yaml_documents(users))
        return
    servers = settings.kafka["bootstrap.servers"]
    for who, rights in wanted.items():
        sys.stdout.write(kafka_acls_commands(servers, principals[who], rights, properties))


def globs_of(settings: Settings) -> list[str]:
    """Return the globs of `deliver.outputs`, whose topics only Kafka knows."""
    return [name for name in settings.deliver.outputs if literal_start(name) != name]


class Needed(NamedTuple):
    """The rights that the roles of a group need. `principals`: the Kafka user of each role."""

    group: GroupShape
    principals: Mapping[User, str]

    def rights(self) -> Iterator[tuple[User, str, Permission]]:
        """Yield each right, with its role and the principal that needs it."""
        for role, principal in self.principals.items():
            yield from ((role, principal, right) for right in permissions_of(role, self.group))


def look(
    options: Options,
    roles: list[User] | None,
    principals: list[str] | None,
    direct: bool,
    imported: list[str] | None,
) -> tuple[Acls, Needed]:
    """Return the cluster's rules, not read yet, and the rights that the roles need under this configuration."""
    # The Kafka client is slow to import, and --help needs none.
    from reconsume.sidecar.kafka.admin.changes import Acls
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    settings = settings_for_kafka(options)
    whose = principals_of(settings.group, roles, principals)
    cluster = Cluster(settings.kafka, "reconsume-acls")
    acls = Acls(cluster)
    group = replace(shape_on(cluster.topic_names(), settings, direct=direct), imported=tuple(imported or ()))
    if globs := globs_of(settings):
        talk(
            f"topics that match {', '.join(globs)} of deliver.outputs get rights by name; for those that are created "
            f"later, run `{hint('acls apply')}` again"
        )
    return acls, Needed(group, whose)


def shape_on(there: Collection[str], settings: Settings, *, direct: bool = False) -> GroupShape:
    """Return what the rights of a group depend on. `there`: the names of the cluster's topics.

    What left the configuration keeps the rights by which its retries are read, and a glob of `deliver.outputs` means
    the topics that match it now: a right by prefix would also reach topics that nobody has thought of.
    """
    from reconsume.sidecar.group_policy.levels import unlisted_levels

    group = group_of(settings, direct=direct)
    removed = unlisted_levels(group.names, group.topics, there, group.levels)
    if group.names.per_topic:
        levels = removed_levels(group.names, group.topics, there)
        removed |= {level.name for level in levels if not level.others}
    if (allowed := allowed_outputs_of(settings)) is not None:
        matching = {*group.outputs, *filter(allowed.allows, there)}
        group = replace(group, outputs=tuple(sorted(matching)))
    return replace(group, removed=tuple(sorted(removed)))


def rights_needed(group: GroupShape) -> int:
    """Return how many rights `acls apply` creates for all roles of a group: each operation on each thing is one."""
    return sum(1 for _ in Needed(group, principals_of(group.names.group, None, None)).rights())


def summed_up(steps: Sequence[Step], errors: Sequence[str]) -> int:
    """Return the exit code; print how many rights are left to fix. `errors`: of the rights to create."""
    actions = [step.action for step in steps]
    failed = len(errors) - errors.count("")
    if denied := actions.count("denied"):
        talk(f"{plural(denied, 'right')} denied by other rules; kafka-acls.sh --remove takes those away")
    if failed:
        talk(f"{failed} of {plural(len(errors), 'right')} could not be created")
    if not denied and not failed:
        return DONE
    return FAILED if failed == len(errors) and "ok" not in actions else PARTLY


def principals_of(group: str, roles: Sequence[User] | None, texts: Sequence[str] | None) -> dict[User, str]:
    """Return the principal of each role: the one given as `role=principal`, else `User:<group>-<role>`.

    A principal given without a role belongs to the only role. Raises BadParameter if a principal does not have the form
    `TYPE:NAME`, like `User:billing`, or is a wildcard, if its role was not requested, or if it names no role and there
    are several.
    """
    principals = {role: f"User:{group}-{role}" for role in roles or User}
    for text in texts or ():
        name, equals, principal = text.partition("=")
        # `User:CN=billing,O=shop` contains `=` too, but it is a principal: the part before `=` is not a role.
        if not equals or name not in set(User):
            if len(principals) > 1:
                raise typer.BadParameter(f"{text!r}: say whose it is, as ROLE=User:NAME, or give one --role")
            name, principal = next(iter(principals)), text
        elif name not in principals:
            raise typer.BadParameter(f"{text!r}: the role {name} was not asked for")
        kind, _, user = principal.partition(":")
        if not kind.isalnum() or not user.isprintable() or user in ("", "*"):
            raise typer.BadParameter(f"{principal!r} is no principal: write User:NAME")
        principals[User(name)] = principal
    return principals


def make_plan(needed: Needed, rules: Sequence[Rule]) -> list[Step]:
    """Return a step for each right of each role. `rules`: those of the cluster."""
    return [step_of(*one, rules) for one in needed.rights()]


def step_of(role: User, principal: str, right: Permission, rules: Sequence[Rule]) -> Step:
    """Plan the step for one right: denied, create or ok.

    A deny rule for any host counts, of which a denied DESCRIBE takes away no other operation. An allow rule must be for
    every host, and may be for an operation that carries this one.
    """
    about = [rule for rule in rules if rule.principal in (principal, EVERYBODY) and rule.resource is right.resource]
    for rule in about:
        inside = covers(rule, right) or (right.prefixed and rule.name.startswith(right.name))
        if not rule.allow and rule.operation in ("ALL", right.operation) and inside:
            return Step(role, principal, right, "denied", spelled(rule))
    carrying = {"ALL", right.operation, *CARRIED.get(right.operation, ())}
    for rule in about:
        if rule.allow and rule.host == ANY_HOST and rule.operation in carrying and covers(rule, right):
            return Step(role, principal, right, "ok", "" if is_exact(rule, principal, right) else spelled(rule))
    return Step(role, principal, right, "create")


def covers(rule: Rule, right: Permission) -> bool:
    """Whether a rule covers all the names of a right."""
    if rule.pattern == "prefixed":
        return right.name.startswith(rule.name)
    return rule.name == EVERYTHING or (rule.name == right.name and not right.prefixed)


def is_exact(rule: Rule, principal: str, right: Permission) -> bool:
    """Whether a rule gives exactly what is needed: to the principal, on the names of the resource, the operation."""
    pattern = "prefixed" if right.prefixed else "literal"
    fields = (rule.principal, rule.resource, rule.pattern, rule.name, rule.operation)
    return fields == (principal, right.resource, pattern, right.name, right.operation)


def spelled(rule: Rule) -> str:
    """Describe a rule in words."""
    verb = "allow" if rule.allow else "deny"
    host = "" if rule.host == ANY_HOST else f" from {rule.host}"
    return f"{verb} {rule.principal} {rule.operation} on {rule.pattern} {rule.resource} {rule.name}{host}"
