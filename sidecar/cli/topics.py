"""`topics plan`, `apply`, `check`, `export`: the group's topics compared and created, never deleted.

`look` asks the cluster once and makes a `Step` of each topic that the configuration needs: create, grow, ok or differs.
All four commands go from there: `plan` shows the steps, `apply` carries out those that create or grow, `check` lists
the findings of each and what else is wrong (missing outputs), `export` prints the specifications for another
tool. A topic that differs is only reported, with the command that repairs it, and `apply` then ends with 3: altering
could lose records. A queue topic gets the partitions of its main topic, and with `--widen` each topic those that it
lacks: nothing is lost by that.

From `shape_of` on the file is pure.
"""

from __future__ import annotations

import fnmatch
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from reconsume.sidecar.cli.acls import shape_on
from reconsume.sidecar.cli.costs import (
    USUAL_PODS,
    PartitionsGiven,
    ReplicasGiven,
    cost_of,
    costs_in,
    counts_given,
    expect_all_used,
    main_topics,
    sources_given,
    specs_of,
    total_of,
)
from reconsume.sidecar.cli.exports import (
    kafka_tool,
    kafka_topics_commands,
    strimzi_topic,
    terraform_topics,
    yaml_documents,
)
from reconsume.sidecar.cli.terminal.confirm import Yes, ask
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED, PARTLY
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka, settings_of_one
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.group_policy import levels_of
from reconsume.topics.durations import render_duration
from reconsume.topics.names import ALIKE, Kind, alike
from reconsume.topics.outputs import literal_start
from reconsume.topics.specs import TopicSpec

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.admin.cluster import Cluster
    from reconsume.sidecar.kafka.admin.descriptions import Topic

PLAN_COLUMNS = ("topic", "action", "details")
RESULT_COLUMNS = ("topic", "result", "error")
LONG_WAIT = 60_000
"""ms. What is shorter than the shortest level waits in memory; beyond this that may be much."""

app = typer.Typer(cls=Group, help="The group's topics on Kafka.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


class Finding(NamedTuple):
    """What is wrong with a topic, and how to repair it."""

    topic: str
    finding: str
    repair: str


class Step(NamedTuple):
    """The planned action for one topic: what it must be, and what it is. None: it does not exist.

    A topic that differs is left as it is: only a person may change it. But the policy topic gets a partition that it
    lacks, because nothing in it is moved or lost by that, and a queue topic those of its main topic: what fails in a
    partition without a queue waits in memory (contract 5.11). With `widens` all topics do. `servers`: the brokers, for
    the commands that repair a topic.
    """

    spec: TopicSpec
    topic: Topic | None
    servers: str = ""
    widens: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the topic."""
        if self.topic is None:
            return (Finding(self.spec.name, "it does not exist", hint("topics apply")),)
        return tuple(compare(self.spec, self.topic, self.servers))

    @property
    def unresolved(self) -> tuple[Finding, ...]:
        """What `apply` leaves as it is."""
        if self.action != "grow" or self.topic is None:
            return () if self.topic is None else self.findings
        return tuple(compare(self.spec, self.topic._replace(partitions=self.spec.partitions), self.servers))

    @property
    def action(self) -> str:
        """What `apply` does: create, grow; ok and differs are nothing to do."""
        if self.topic is None:
            return "create"
        grows = self.widens or self.spec.kind in (Kind.POLICY, Kind.ORDERED)
        if grows and self.topic.partitions < self.spec.partitions:
            return "grow"
        return "differs" if self.findings else "ok"

    @property
    def details(self) -> str:
        """A short description of the step."""
        if self.action == "differs":
            return "; ".join(finding.finding for finding in self.findings)
        return f"partitions={self.spec.partitions} replicas={self.spec.replication}"

    @property
    def row(self) -> Row:
        """The step as plain values."""
        wanted = msgspec.to_builtins(self.spec)
        return {
            "topic": wanted.pop("name"),
            "kind": wanted.pop("kind"),
            "action": self.action,
            "details": self.details,
            "wanted": wanted,
            "shape": None if self.topic is None else shape_of(self.topic, self.spec),
            "findings": [finding._asdict() for finding in self.findings],
        }


@command(app, "plan")
def plan(
    options: Options,
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Add up the groups whose configurations are in it.")
    ] = None,
    partitions: PartitionsGiven = None,
    replicas: ReplicasGiven = None,
    pods: Annotated[
        int | None, typer.Option("--pods", min=1, max=10_000, help="With a folder: pods of each group; 3 by default.")
    ] = None,
) -> None:
    """Show what `topics apply` would do.

    Each of the group's topics would be created, is as it must be, or differs. Changes nothing. The last line says what
    the group costs. With a folder it shows that for each group of it, and the sum; with --partitions for each main
    topic it connects to nothing.

    \b
    Examples:
      reconsume topics plan -o json > plan.json
      reconsume topics plan groups --partitions orders=12,bills=6 --replicas 3 --pods 3
    """
    if folder is not None:
        counts = counts_given(partitions, replicas)
        costs = costs_in(options, folder, counts, replicas, USUAL_PODS if pods is None else pods)
        options.output.rows(tuple(costs[0].row), [cost.row for cost in costs])
        talk(f"cost of {plural(len(costs), 'group')}: {total_of(costs)}")
        return
    if partitions is not None or replicas is not None or pods is not None:
        raise typer.BadParameter(f"--partitions, --replicas and --pods go with a FOLDER; see `{hint('topics export')}`")
    cluster, settings, steps = look(options)
    there = cluster.topic_names()
    options.output.rows(PLAN_COLUMNS, [step.row for step in steps])
    cost = cost_of(settings, [step.spec for step in steps], shape_on(there, settings))
    for remark in (*refused_names(steps, there), *warnings_of(settings), cost):
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
    there = cluster.topic_names()
    findings = [finding for step in steps for finding in step.findings]
    findings += missing_outputs(settings, there)
    options.output.rows(Finding._fields, [finding._asdict() for finding in findings])
    for remark in (*refused_names(steps, there), *unused_levels(settings, there), *unused_sums(settings, there)):
        talk(remark)
    if findings:
        talk(f"{plural(len(findings), 'finding')} on {plural(len({one.topic for one in findings}), 'topic')}")
        return FAILED
    talk(f"as they must be: {plural(len(steps), 'topic')}")
    return DONE


@command(app, "apply")
def apply(
    options: Options,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask the broker; change nothing.")] = False,
    widen: Annotated[
        bool, typer.Option("--widen", help="Give each topic the partitions that it lacks; nothing is lost by that.")
    ] = False,
) -> int:
    """Create the topics that are missing.

    A policy topic with one partition gets its second one, and a queue topic the partitions of its main topic. Any other
    topic that differs from what it must be is reported, and never altered or deleted; with --widen it gets the
    partitions that it lacks. A plan is shown first.

    Ends with 0 when all are as they must be, 3 when some differ or could not be created, 1 when none could.

    \b
    Examples:
      reconsume topics apply
      reconsume topics apply --yes
      reconsume topics apply --widen --dry-run
    """
    from reconsume.sidecar.kafka.admin.changes import TopicAdmin  # imported late, as in `look`

    cluster, _, planned = look(options)
    steps = [step._replace(widens=widen) for step in planned]
    missing = [step.spec for step in steps if step.topic is None]
    options.output.talk_rows(PLAN_COLUMNS, [step.row for step in steps])
    narrow = [step.spec for step in steps if step.action == "grow"]
    if (missing or narrow) and not dry_run and not yes:
        steps_ahead = {"create": len(missing), "widen": len(narrow)}
        wanted = [f"{verb} {plural(count, 'topic')}" for verb, count in steps_ahead.items() if count]
        ask(f"{' and '.join(wanted).capitalize()}?")
    admin = TopicAdmin(cluster)
    results = (*admin.create(missing, only_ask=dry_run), *admin.grow(narrow, only_ask=dry_run))
    created = {result.name: result for result in results}
    rows: list[Row] = []
    for step in steps:
        result, error = step.action, step.details if step.action == "differs" else ""
        if (one := created.get(step.spec.name)) is not None:
            is_plan = dry_run and one.state in ("created", "grown")
            result, error = f"would be {one.state}" if is_plan else str(one.state), one.error
        rows.append({"topic": step.spec.name, "result": result, "error": error})
    options.output.rows(RESULT_COLUMNS, rows)
    differing = sum(bool(step.unresolved) for step in steps)
    if differing:
        count = f"{differing} of {plural(len(steps), 'topic')}"
        talk(f"warning: {count} differ; `{hint('topics check')}` says how to repair that")
    failed = sum(result.state == "failed" for result in created.values())
    if failed:
        talk(f"{failed} of {plural(len(created), 'topic')} could not be created or widened")
        return FAILED if failed == len(created) else PARTLY
    return PARTLY if differing else DONE


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
            "--format", help="As Strimzi KafkaTopics, kafka-topics.sh commands, or JSON for Terraform's Mongey/kafka."
        ),
    ] = Form.STRIMZI,
    strimzi_cluster: Annotated[
        str, typer.Option("--cluster", help="Strimzi: the name of the Kafka resource.")
    ] = "kafka",
    partitions: PartitionsGiven = None,
    replicas: ReplicasGiven = None,
    properties: Annotated[
        str | None,
        typer.Option(
            "--command-config", metavar="FILE", help="kafka-topics: the file with the login of whoever runs them."
        ),
    ] = None,
) -> None:
    """Print the topics for other tools.

    As they must be, whether they exist or not; the main topics are not among them. Names that Kubernetes does not
    take are spelled in another way, and spec.topicName has the true one. With --partitions for every main topic it
    connects to nothing, and the main topics need not exist.

    \b
    Examples:
      reconsume topics export --format strimzi --cluster main | kubectl apply -f -
      reconsume topics export --partitions orders=12 --replicas 3 > topics.yaml
      reconsume topics export --format kafka-topics | sh
      reconsume topics export --format terraform > retries.tf.json
    """
    options.expect_no_format(f"`{hint('topics plan')}` has rows")
    if properties is not None and form is not Form.KAFKA_TOPICS:
        raise typer.BadParameter("--command-config is for kafka-topics.sh; leave it out")
    if (counts := counts_given(partitions, replicas)) is None:
        cluster, settings, steps = look(options)
        specs = [step.spec for step in steps]
        for remark in unused_levels(settings, cluster.topic_names()):
            talk(remark)
    else:
        settings = settings_of_one(options)
        specs = list(specs_of(settings, sources_given(settings, counts, replicas)))
        expect_all_used(counts, settings.topic_names)
    match form:
        case Form.KAFKA_TOPICS:
            sys.stdout.write(kafka_topics_commands(settings.kafka["bootstrap.servers"], specs, properties))
            return
        case Form.TERRAFORM:
            sys.stdout.write(terraform_topics(specs))
        case Form.STRIMZI:
            sys.stdout.write(yaml_documents(strimzi_topic(spec, strimzi_cluster, settings.labels) for spec in specs))
    owner = form.value.capitalize()
    talk(f"from now on only {owner} should change these topics; `{hint('topics check')}` still compares them")


def look(options: Options) -> tuple[Cluster, Settings, list[Step]]:
    """Compare the cluster's topics with those that the configuration needs. Raises ContractError if a main topic is
    missing."""
    # The Kafka client is slow to import, and --help needs none.
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    settings = settings_for_kafka(options)
    cluster = Cluster(settings.kafka)
    specs = specs_of(settings, main_topics(cluster, settings))
    topics, servers = cluster.find_topics(spec.name for spec in specs), settings.kafka["bootstrap.servers"]
    return cluster, settings, [Step(spec, topics.get(spec.name), servers) for spec in specs]


def shape_of(topic: Topic, spec: TopicSpec) -> dict[str, object]:
    """Return what a topic is, of what its specification is about."""
    config = {key: topic.config.get(key, "") for key in spec.config}
    return {"partitions": topic.partitions, "replication": topic.replication, "config": config}


def compare(spec: TopicSpec, topic: Topic, servers: str) -> Iterator[Finding]:
    """Yield a finding for each property of an existing topic that is not as it must be.

    `servers`: the brokers, for the commands that repair it.
    """
    if topic.partitions != spec.partitions:
        yield from partition_findings(spec, topic.partitions, servers)
    if topic.replication < spec.replication:
        has = f"it has {plural(topic.replication, 'replica')} and should have {spec.replication}, as the main topics"
        tool = shlex.join(kafka_tool("kafka-reassign-partitions.sh", servers))
        repair = f"{tool} --execute --reassignment-json-file FILE, where FILE names {spec.replication} brokers for each"
        yield Finding(spec.name, has, f"{repair} partition of {spec.name}")
    for key, wanted in spec.config.items():
        actual = topic.config.get(key, "")
        fits, bound, why = RULES.get(key, (same, "", "it is not as it must be"))
        if not fits(actual, wanted):
            why = WHY.get(spec.kind, {}).get(key, why)
            finding = f"{key} is {shown(key, actual)} and must be {bound}{shown(key, wanted)}: {why}"
            value = f"[{wanted}]" if "," in wanted else wanted
            alter = [*kafka_tool("kafka-configs.sh", servers), "--alter", "--entity-type", "topics"]
            words = [*alter, "--entity-name", spec.name, "--add-config", f"{key}={value}"]
            yield Finding(spec.name, finding, shlex.join(words))


def partition_findings(spec: TopicSpec, actual: int, servers: str) -> Iterator[Finding]:
    """Yield a finding if an existing topic has too few partitions, or more than its kind may have."""
    has = f"it has {plural(actual, 'partition')}"
    alter = [*kafka_tool("kafka-topics.sh", servers), "--alter", "--topic", spec.name]
    wider = shlex.join([*alter, "--partitions", str(spec.partitions)])
    match spec.kind:
        case Kind.ORDERED if actual < spec.partitions:
            why = "what fails in the partitions that it lacks waits in memory, with its key"
            yield Finding(spec.name, f"{has}, and its main topic has {spec.partitions}: {why}", wider)
        case Kind.ORDERED:
            finding = f"{has}, and its main topic has {spec.partitions}: nobody reads what waits in the others"
            mend = f"give the main topic {actual} again if anything waits there ({hint('doctor')}, leftovers)"
            yield Finding(
                spec.name, finding, f"{mend}; else delete it while no instance runs, and {hint('topics apply')}"
            )
        case Kind.POLICY if actual < spec.partitions:
            finding = f"{has} and must have {spec.partitions}: what owners note in transactions has no partition"
            yield Finding(spec.name, finding, hint("topics apply"))
        case _ if actual < spec.partitions:
            finding = f"{has} and should have {spec.partitions}, to be shared"
            if spec.kind is Kind.EVENTS:
                finding += (
                    "; add them when the view's job has read all events, or an older row of a record may come last"
                )
            yield Finding(spec.name, finding, wider)


def same(actual: str, wanted: str) -> bool:
    """Whether the value is exactly the wanted one; a list may be in any order."""
    return set(actual.replace(" ", "").split(",")) == set(wanted.split(","))


def at_least(actual: str, wanted: str) -> bool:
    """Whether a number is not smaller than wanted; Kafka's −1 means no limit."""
    return actual == "-1" or (actual.isdecimal() and wanted != "-1" and int(actual) >= int(wanted))


def at_most(actual: str, wanted: str) -> bool:
    """Whether a number is not larger than wanted."""
    return actual.replace(".", "", 1).isdecimal() and float(actual) <= float(wanted)


Rule = Callable[[str, str], bool]
RULES: Mapping[str, tuple[Rule, str, str]] = {
    "cleanup.policy": (
        same,
        "",
        "compaction would delete waiting retries, and deletion would forget what is kept by key",
    ),
    "retention.ms": (at_least, "at least ", "records would be deleted before they are done with"),
    "retention.bytes": (same, "", "records would be deleted by size, whether they are done with or not"),
    "max.message.bytes": (at_least, "at least ", "a copy with our headers would not fit"),
    "min.insync.replicas": (at_least, "at least ", "a retry would be less safe than the record it was made from"),
    "message.timestamp.type": (same, "", "the wait would be counted from another time"),
    "min.cleanable.dirty.ratio": (at_most, "at most ", "what is outdated would be read at each start for longer"),
    "segment.ms": (at_most, "at most ", "what is outdated would be kept, and read again, for longer"),
}
"""For each setting: the rule that accepts a value, its words, and the consequence of any other value."""

WHY = {
    Kind.ORDERED: {
        "cleanup.policy": "compaction would delete all but one of the records that wait behind a key",
        "retention.ms": "what waits is written again before it is 12 h old, but not while no instance runs",
    },
    Kind.POLICY: {"message.timestamp.type": "instances whose clocks differ would not agree which of them are silent"},
}
"""The consequence where it is another one in a topic of this kind."""


def shown(key: str, value: str) -> str:
    """Format a value for people: milliseconds also as a duration."""
    return f"{value} ({render_duration(int(value))})" if key.endswith(".ms") and value.isdecimal() else value or "unset"


def warnings_of(settings: Settings) -> Iterator[str]:
    """Yield a warning if short waits have no level."""
    if settings.delays and settings.delays[0] > LONG_WAIT:
        shortest = render_duration(settings.delays[0])
        yield f"warning: the shortest level is {shortest}; what waits less, and the rest of a wait, is held in memory"


def refused_names(steps: Iterable[Step], there: Collection[str]) -> Iterator[str]:
    """Yield a warning for each topic that Kafka will refuse to create. `there`: the names of the cluster."""
    for name, other in alike((step.spec.name for step in steps if step.topic is None), there).items():
        text = f"warning: Kafka will not create {name}: it and {other}, which exists, {ALIKE}"
        yield f"{text}; rename the group or the topic"


def missing_outputs(settings: Settings, there: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each topic of `deliver.outputs` that is not there; `there`: the names of the cluster."""
    repair = "create it, or take it out of deliver.outputs: an answer that has records for it is a failure"
    for name in settings.deliver.outputs:
        if literal_start(name) != name:
            if not fnmatch.filter(there, name):
                yield Finding(name, "no topic that may be seen has such a name", repair)
        elif name not in there:
            yield Finding(name, "does not exist, or may not be seen", repair)


def unused_sums(settings: Settings, there: Collection[str]) -> Iterator[str]:
    """Yield a sentence on the topic that sums were once written to, if it exists.

    `there`: the names of the cluster's topics.
    """
    if (name := f"{settings.group}-RETRY-STATS") in there:
        yield f"{name} is no longer used: sums are counted from the events; delete it if nothing of yours reads it"


def unused_levels(settings: Settings, there: Collection[str]) -> Iterator[str]:
    """Yield a sentence on level topics that exist and are none of this configuration, if there are any.

    `there`: the names of the cluster's topics.
    """
    # Imported late: the Kafka client comes with it, and --help needs none.
    from reconsume.sidecar.group_policy.levels import unlisted_levels

    levels = sorted(unlisted_levels(settings.names, settings.topic_names, there, levels_of(settings)))
    if levels:
        yield (
            f"{plural(len(levels), 'topic')} of an earlier configuration: {', '.join(levels)}; running sidecars "
            "deliver what waits there. Use them again by `retry.levels: table` or a list that has them, or delete them "
            "once they are empty"
        )
