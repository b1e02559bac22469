"""`acls plan`, `acls apply`, `acls export`: the least rights that each of the group's Kafka users needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from reconsume.sidecar.cli.acls.export import commands, user_name
from reconsume.sidecar.cli.acls.plan import Step, make_plan, principals_of
from reconsume.sidecar.cli.acls.strimzi import Authentication, documents, user_resource
from reconsume.sidecar.cli.terminal.confirm import ask
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED, PARTLY
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Row, talk, write
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings, load
from reconsume.sidecar.settings.model import group_of
from reconsume.sidecar.settings.policy import allowed_outputs_of
from reconsume.topics.acls import Permission, User, permissions_of
from reconsume.topics.outputs import literal_start
from reconsume.topics.removed import removed_levels

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.admin.acls import Acls

PLAN_COLUMNS = ("role", "principal", "action", "operation", "resource", "name", "pattern", "by")
RESULT_COLUMNS = ("role", "principal", "operation", "resource", "name", "pattern", "result", "error")


class Form(StrEnum):
    """The output format of `acls export`."""

    KAFKA_ACLS = "kafka-acls"
    STRIMZI = "strimzi"


Roles = Annotated[
    list[User] | None, typer.Option("--role", help="Whose rights; may be repeated. All five where it is not given.")
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
Logins = Annotated[Authentication, typer.Option("--authentication", help="Strimzi: how the users log in.")]

app = typer.Typer(cls=Group, help="The group's access rights on Kafka.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


@command(app, "plan")
def plan(options: Options, role: Roles = None, principal: Principals = None, direct: Direct = False) -> None:
    """Show what `acls apply` would do.

    Each right would be created, is there (ok), is denied by another rule, or is extra: more than the role needs.
    Changes nothing. To read the rules, the user of kafka: needs DESCRIBE on the cluster.

    \b
    Example:
      reconsume acls plan --role sidecar --principal User:billing -o table
    """
    _, steps = look(options, role, principal, direct)
    options.output.rows(PLAN_COLUMNS, [step.row for step in steps])


@command(app, "apply")
def apply(
    options: Options,
    role: Roles = None,
    principal: Principals = None,
    direct: Direct = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")] = False,
) -> int:
    """Create the rights that are missing.

    Nothing is ever removed: what is denied or extra is reported. A plan is shown first. The user of kafka: needs
    DESCRIBE and ALTER on the cluster.

    Ends with 0 when all are there, 3 when some could not be created or are denied, 1 when none could.

    \b
    Examples:
      reconsume acls apply --role sidecar --role spark
      reconsume acls apply --role ui --principal User:grafana --yes
    """
    acls, steps = look(options, role, principal, direct)
    missing = [step for step in steps if step.action == "create"]
    options.output.talk_rows(PLAN_COLUMNS, [step.row for step in steps])
    if missing and not dry_run and not yes:
        ask(f"Create {plural(len(missing), 'right')}?")
    results = {} if dry_run else created(acls, missing)
    options.output.rows(RESULT_COLUMNS, [result_row(step, results, dry_run) for step in steps])
    return sum_up(steps, results)


@command(app, "export")
def export(
    options: Options,
    role: Roles = None,
    principal: Principals = None,
    direct: Direct = False,
    form: Annotated[Form, typer.Option("--format", help="As kafka-acls.sh commands, or as Strimzi KafkaUsers.")] = (
        Form.KAFKA_ACLS
    ),
    cluster: Annotated[str, typer.Option("--cluster", help="Strimzi: the name of the Kafka resource.")] = "kafka",
    login: Annotated[
        Authentication, typer.Option("--authentication", help="Strimzi: how the users log in.")
    ] = Authentication.SCRAM,
) -> None:
    """Print the rights for other tools.

    Connects to nothing. A right is on a name, never on a pattern, but for transactional ids, which end with the
    instance's name. With Strimzi the user's name is that of the resource.

    \b
    Examples:
      reconsume acls export --role sidecar | sh
      reconsume acls export --format strimzi --cluster main | kubectl apply -f -
    """
    options.expect_no_format(f"`{hint('acls plan')}` has rows")
    settings = load(options.config, options.sets)
    group, principals = group_of(settings, direct=direct), named(settings, role, principal)
    for who in principals:
        if not permissions_of(who, group):
            talk(f"the {who} needs no rights in this mode")
    wanted = {who: rights for who in principals if (rights := permissions_of(who, group))}
    talk(
        "levels of an earlier configuration are not in this list: until these topics are empty, keep their rights with "
        "--set retry.levels=table, or with the list that they were in"
    )
    if globs := globs_of(settings):
        talk(
            f"topics that match {', '.join(globs)} of deliver.outputs are not in this list; "
            f"`{hint('acls plan')}` names them"
        )
    if form is Form.STRIMZI:
        users = [user_resource(user_name(principals[who]), rights, cluster, login) for who, rights in wanted.items()]
        sys.stdout.write(documents(users))
        return
    for who, rights in wanted.items():
        for line in commands(settings.kafka["bootstrap.servers"], principals[who], rights):
            write(line)


def named(settings: Settings, roles: list[User] | None, principals: list[str] | None) -> dict[User, str]:
    """Return the principal of each requested role. Raises BadParameter if a principal is invalid."""
    try:
        return principals_of(settings.group, roles or list(User), principals or ())
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from fault


def globs_of(settings: Settings) -> list[str]:
    """Return the globs of `deliver.outputs`, whose topics only Kafka knows."""
    return [name for name in settings.deliver.outputs if literal_start(name) != name]


def look(
    options: Options, roles: list[User] | None, principals: list[str] | None, direct: bool
) -> tuple[Acls, list[Step]]:
    """Read the cluster's rules and compare them with the rights that the roles need under this configuration."""
    # The Kafka client is slow to import, and --help needs none.
    from reconsume.sidecar.group_policy.levels import unlisted_levels
    from reconsume.sidecar.kafka.admin.acls import Acls
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    settings = settings_for_kafka(options)
    whose = named(settings, roles, principals)
    cluster = Cluster(settings.kafka, "reconsume-acls")
    group, acls = group_of(settings, direct=direct), Acls(cluster)
    # What left the configuration keeps the rights by which its retries are read.
    there = cluster.topic_names()
    removed = unlisted_levels(group.names, group.topics, there, group.levels)
    if group.names.per_topic:
        levels = removed_levels(group.names, group.topics, there)
        removed |= {level.name for level in levels if not level.others}
    # By name: a right by prefix would also reach topics that nobody has thought of, those of a group among them.
    if (allowed := allowed_outputs_of(settings)) is not None:
        matching = {*group.outputs, *filter(allowed.allows, there)}
        group = replace(group, outputs=tuple(sorted(matching)))
    if globs := globs_of(settings):
        talk(
            f"topics that match {', '.join(globs)} of deliver.outputs get rights by name; for those that are created "
            f"later, run `{hint('acls apply')}` again"
        )
    group = replace(group, removed=tuple(sorted(removed)))
    return acls, make_plan(group, whose, acls.found())


def created(acls: Acls, missing: list[Step]) -> dict[tuple[str, Permission], str]:
    """Create the missing rights. Return for each the error, or an empty text if it was created."""
    results: dict[tuple[str, Permission], str] = {}
    for principal in dict.fromkeys(step.principal for step in missing):
        rights = list(dict.fromkeys(step.right for step in missing if step.principal == principal))
        for right, error in acls.create(principal, rights).items():
            results[principal, right] = error
    return results


def result_row(step: Step, results: Mapping[tuple[str, Permission], str], dry_run: bool) -> Row:
    """Return the outcome of one right as a row."""
    error = results.get((step.principal, step.right), "") if step.action == "create" else ""
    would = "would be created" if dry_run else "failed" if error else "created"
    result = would if step.action == "create" else step.action
    return {**step.row, "result": result, "error": error or (step.by if step.action in ("denied", "extra") else "")}


def sum_up(steps: list[Step], results: Mapping[tuple[str, Permission], str]) -> int:
    """Return the exit code; print how many rights are left to fix."""
    denied = sum(step.action == "denied" for step in steps)
    extra = sum(step.action == "extra" for step in steps)
    failed = sum(error != "" for error in results.values())
    if extra:
        talk(f"warning: {plural(extra, 'right')} more than needed; kafka-acls.sh --remove takes them away")
    if denied:
        talk(f"{plural(denied, 'right')} denied by other rules; kafka-acls.sh --remove takes those away")
    if failed:
        talk(f"{failed} of {plural(len(results), 'right')} could not be created")
    if not denied and not failed:
        return DONE
    return FAILED if failed == len(results) and not any(step.action == "ok" for step in steps) else PARTLY
