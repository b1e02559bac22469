"""`topics plan`, `apply`, `check`, `export`: the group's topics compared and created, never altered or deleted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.acls.strimzi import documents, topic_resource
from reconsume.sidecar.cli.terminal.confirm import ask
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED, PARTLY
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.cli.topics.export import commands, terraform
from reconsume.sidecar.cli.topics.plan import Step, make_plan, to_row
from reconsume.sidecar.cli.topics.remarks import cost_of, missing_outputs, refused_names, unused_levels, warnings_of
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.topics.specs import TopicSpec, group_specs

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.admin.cluster import Cluster
    from reconsume.sidecar.kafka.admin.topics import CreateResult

PLAN_COLUMNS = ("topic", "action", "details")
RESULT_COLUMNS = ("topic", "result", "error")

app = typer.Typer(cls=Group, help="The group's topics on Kafka.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


@command(app, "plan")
def plan(options: Options) -> None:
    """Show what `topics apply` would do.

    Each of the group's topics would be created, is as it must be, or differs. Changes nothing.

    \b
    Example:
      reconsume topics plan -o json > plan.json
    """
    cluster, settings, steps = look(options)
    options.output.rows(PLAN_COLUMNS, [to_row(step) for step in steps])
    for remark in (
        *refused_names(steps, cluster.topic_names()),
        *warnings_of(settings),
        cost_of(settings, [spec_of(step) for step in steps]),
    ):
        talk(remark)


@command(app, "check")
def check(options: Options) -> int:
    """List what is wrong with the topics.

    Each finding says how to repair it. Ends with 1 when there is one.

    \b
    Example:
      reconsume topics check -o table
    """
    cluster, settings, steps = look(options)
    rows = [row for step in steps for row in findings(step)] + leftover_rows(cluster, settings)
    rows += missing_outputs(settings, cluster.topic_names())
    options.output.rows(("topic", "finding", "repair"), rows)
    for warning in refused_names(steps, cluster.topic_names()):
        talk(warning)
    if unused := unused_levels(settings, cluster.topic_names()):
        talk(unused)
    if rows:
        talk(f"{plural(len(rows), 'finding')} on {plural(len({row['topic'] for row in rows}), 'topic')}")
        return FAILED
    talk(f"as they must be: {plural(len(steps), 'topic')}")
    return DONE


@command(app, "apply")
def apply(
    options: Options,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask the broker; change nothing.")] = False,
) -> int:
    """Create the topics that are missing.

    A topic that differs from what it must be is reported, and never altered or deleted. A plan is shown first.

    Ends with 0 when all exist, 3 when some could not be created, 1 when none could.

    \b
    Examples:
      reconsume topics apply
      reconsume topics apply --yes
    """
    # Imported late, as in `look`.
    from reconsume.sidecar.kafka.admin.topics import TopicAdmin

    cluster, _, steps = look(options)
    missing = [spec_of(step) for step in steps if step.action == "create"]
    options.output.talk_rows(PLAN_COLUMNS, [to_row(step) for step in steps])
    if missing and not dry_run and not yes:
        ask(f"Create {plural(len(missing), 'topic')}?")
    created = {result.name: result for result in TopicAdmin(cluster).create(missing, only_ask=dry_run)}
    options.output.rows(RESULT_COLUMNS, [result_row(step, created.get(step.topic), dry_run) for step in steps])
    return sum_up(steps, list(created.values()))


class Form(StrEnum):
    """The output format of `topics export`."""

    STRIMZI = "strimzi"
    KAFKA_TOPICS = "kafka-topics"
    TERRAFORM = "terraform"


@command(app, "export")
def export(
    options: Options,
    form: Annotated[
        Form,
        typer.Option(
            "--format", help="As Strimzi KafkaTopics, kafka-topics.sh commands, or for Terraform's Mongey/kafka."
        ),
    ] = Form.STRIMZI,
    cluster: Annotated[str, typer.Option("--cluster", help="Strimzi: the name of the Kafka resource.")] = "kafka",
) -> None:
    """Print the topics for other tools.

    As they must be, whether they exist or not; the main topics are not among them. Names that Kubernetes does not
    take are spelled in another way, and spec.topicName has the true one.

    \b
    Examples:
      reconsume topics export --format strimzi --cluster main | kubectl apply -f -
      reconsume topics export --format kafka-topics | sh
      reconsume topics export --format terraform > retries.tf
    """
    options.expect_no_format(f"`{hint('topics plan')}` has rows")
    there, settings, steps = look(options)
    specs = [spec_of(step) for step in steps]
    if unused := unused_levels(settings, there.topic_names()):
        talk(unused)
    match form:
        case Form.KAFKA_TOPICS:
            sys.stdout.writelines(f"{line}\n" for line in commands(settings.kafka["bootstrap.servers"], specs))
            return
        case Form.TERRAFORM:
            sys.stdout.write("\n".join(terraform(specs)))
        case Form.STRIMZI:
            sys.stdout.write(documents(topic_resource(spec, cluster) for spec in specs))
    owner = form.value.capitalize()
    talk(f"from now on only {owner} should change these topics; `{hint('topics check')}` still compares them")


def look(options: Options) -> tuple[Cluster, Settings, tuple[Step, ...]]:
    """Compare the cluster's topics with those that the configuration needs. Raises ContractError if a main topic is
    missing."""
    # The Kafka client is slow to import, and --help needs none.
    from reconsume.sidecar.kafka.admin.cluster import Cluster
    from reconsume.sidecar.kafka.admin.descriptions import source_of

    settings = settings_for_kafka(options)
    cluster = Cluster(settings.kafka)
    mains = cluster.find(settings.topic_names)
    absent = [name for name in settings.topic_names if name not in mains]
    if absent:
        raise ContractError(
            f"no such main topic: {', '.join(absent)}; create it first, since the group's own topics follow the main "
            f"topics' partitions, replicas and sizes, for example by `{creating(settings, absent)}`"
        )
    sources = [source_of(mains[name]) for name in settings.topic_names]
    # Broadcast mode retries nothing and belongs to no consumer group: it has no topics of its own.
    rows = settings.view.source == "spark"
    specs = (
        ()
        if settings.deliver.broadcast
        else group_specs(settings.names, sources, settings.delays, rows=rows, ordered=settings.queued)
    )
    return cluster, settings, make_plan(specs, cluster.find(spec.name for spec in specs))


def creating(settings: Settings, names: Sequence[str]) -> str:
    """Return a command that creates main topics, with three partitions and the cluster's own number of replicas."""
    create = ["kafka-topics.sh", "--bootstrap-server", settings.kafka["bootstrap.servers"], "--create"]
    return " && ".join(shlex.join([*create, "--topic", name, "--partitions", "3"]) for name in names)


def findings(step: Step) -> list[Row]:
    """Return the rows that `check` prints about one topic."""
    if step.action == "create":
        return [{"topic": step.topic, "finding": "it does not exist", "repair": hint("topics apply")}]
    return [{"topic": step.topic, "finding": finding.finding, "repair": finding.mend} for finding in step.findings]


def leftover_rows(cluster: Cluster, settings: Settings) -> list[Row]:
    """Return a row for each level of a main topic that left the configuration and still has retries there, and for
    each queue in which records wait that nobody reads."""
    from reconsume.sidecar.group_policy.removed_topics import leftovers
    from reconsume.sidecar.group_policy.unowned_queues import unowned_queues

    if settings.deliver.broadcast:
        return []
    levels: list[Row] = [
        {
            "topic": level.name,
            "finding": f"at most {plural(waiting, 'retry')} waiting here of {level.topic}, no longer configured",
            "repair": f"put {level.topic} back into topics:, or let a running sidecar make dead letters of them",
        }
        for level, waiting in leftovers(cluster, settings.names, settings.topic_names)
    ]
    queues: list[Row] = [
        {
            "topic": one.name,
            "finding": f"at most {plural(one.waiting, 'record')} waiting here unread: {one.because}",
            "repair": one.mend,
        }
        for one in unowned_queues(cluster, settings.names, settings.topic_names, in_order=settings.drained)
    ]
    return levels + queues


def spec_of(step: Step) -> TopicSpec:
    """Return the topic that a step creates."""
    return TopicSpec(step.topic, step.kind, step.wanted.partitions, step.wanted.replication, step.wanted.config)


def result_row(step: Step, result: CreateResult | None, dry_run: bool) -> Row:
    """Return the outcome of one topic as a row."""
    if result is None:
        return {"topic": step.topic, "result": step.action, "error": step.details if step.findings else ""}
    would = "would be created" if dry_run and result.state == "created" else str(result.state)
    return {"topic": step.topic, "result": would, "error": result.error}


def sum_up(steps: Sequence[Step], results: Sequence[CreateResult]) -> int:
    """Return the exit code; print what is left to do."""
    differing = [step for step in steps if step.action == "differs"]
    if differing:
        count = f"{len(differing)} of {plural(len(steps), 'topic')}"
        talk(f"warning: {count} differ; `{hint('topics check')}` says how to repair that")
    failed = [result for result in results if result.state == "failed"]
    if not failed:
        return DONE
    talk(f"{len(failed)} of {plural(len(results), 'topic')} could not be created")
    return FAILED if len(failed) == len(results) else PARTLY
