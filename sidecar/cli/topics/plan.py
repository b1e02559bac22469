"""The plan of a group's topics: what must exist, what exists, and how a person can fix the difference. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural
from reconsume.topics.durations import render_duration
from reconsume.topics.names import Kind
from reconsume.topics.specs import TopicSpec

if TYPE_CHECKING:
    from reconsume.sidecar.kafka.admin.descriptions import Topic


class Shape(msgspec.Struct, frozen=True):
    """Partitions, replicas, and the settings that the group's topics require."""

    partitions: int
    replication: int
    config: dict[str, str]


class Finding(msgspec.Struct, frozen=True):
    """One property that is not as it must be, and how to fix it."""

    finding: str
    mend: str


class Step(msgspec.Struct, frozen=True):
    """The planned action for one topic. A topic that differs is left as it is: only a person may change it.

    `grow`: the policy topic gets partitions that it lacks. Nothing in it is moved or lost by that.
    """

    topic: str
    kind: Kind
    action: Literal["create", "grow", "ok", "differs"]
    wanted: Shape
    shape: Shape | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def details(self) -> str:
        """A short description of the step."""
        if self.action == "differs":
            return "; ".join(finding.finding for finding in self.findings)
        wanted = self.wanted
        return f"partitions={wanted.partitions} replicas={wanted.replication}"


def make_plan(specs: Iterable[TopicSpec], topics: Mapping[str, Topic]) -> tuple[Step, ...]:
    """Return a step for each topic, in the order of the specifications."""
    return tuple(make_step(spec, topics.get(spec.name)) for spec in specs)


def make_step(spec: TopicSpec, topic: Topic | None) -> Step:
    """Plan the step for one topic: create, grow, ok or differs."""
    wanted = Shape(spec.partitions, spec.replication, spec.config)
    if topic is None:
        return Step(spec.name, spec.kind, "create", wanted)
    config = {key: topic.config.get(key, "") for key in spec.config}
    shape = Shape(topic.partitions, topic.replication, config)
    findings = tuple(compare(spec, shape))
    if spec.kind is Kind.POLICY and topic.partitions < spec.partitions:
        return Step(spec.name, spec.kind, "grow", wanted, shape, findings)
    return Step(spec.name, spec.kind, "differs" if findings else "ok", wanted, shape, findings)


def compare(spec: TopicSpec, shape: Shape) -> Iterable[Finding]:
    """Yield a finding for each property of an existing topic that is not as it must be."""
    if shape.partitions != spec.partitions:
        yield from partition_findings(spec, shape.partitions)
    if shape.replication < spec.replication:
        finding = (
            f"it has {plural(shape.replication, 'replica')} and should have {spec.replication}, as the main topics"
        )
        yield Finding(finding, "kafka-reassign-partitions.sh")
    for key, wanted in spec.config.items():
        rule, why = RULES.get(key, (same, "it is not as it must be"))
        if not rule(shape.config[key], wanted):
            why = WHY.get(spec.kind, {}).get(key, why)
            finding = f"{key} is {shown(key, shape.config[key])} and must be {bound(rule)}{shown(key, wanted)}: {why}"
            yield Finding(finding, alter(spec.name, key, wanted))


def partition_findings(spec: TopicSpec, actual: int) -> Iterable[Finding]:
    """Yield a finding if an existing topic has too few partitions, or more than its kind may have."""
    has = f"it has {plural(actual, 'partition')}"
    wider = f"kafka-topics.sh --alter --topic {spec.name} --partitions {spec.partitions}"
    match spec.kind:
        case Kind.ORDERED if actual < spec.partitions:
            why = "what fails in the partitions that it lacks waits in memory, with its key"
            yield Finding(f"{has}, and its main topic has {spec.partitions}: {why}", wider)
        case Kind.ORDERED:
            finding = f"{has}, and its main topic has {spec.partitions}: nobody reads what waits in the others"
            mend = f"give the main topic {actual} again if anything waits there ({hint('doctor')}, leftovers)"
            yield Finding(finding, f"{mend}; else delete it while no instance runs, and {hint('topics apply')}")
        case Kind.POLICY if actual < spec.partitions:
            finding = f"{has} and must have {spec.partitions}: what owners note in transactions has no partition"
            yield Finding(finding, hint("topics apply"))
        case _ if actual < spec.partitions:
            finding = f"{has} and should have {spec.partitions}, to be shared"
            if spec.kind is Kind.EVENTS:
                finding += (
                    "; add them when the view's job has read all events, or an older row of a record may come last"
                )
            yield Finding(finding, wider)


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
RULES: dict[str, tuple[Rule, str]] = {
    "cleanup.policy": (same, "compaction would delete waiting retries, and deletion would forget what is kept by key"),
    "retention.ms": (at_least, "records would be deleted before they are done with"),
    "retention.bytes": (same, "records would be deleted by size, whether they are done with or not"),
    "max.message.bytes": (at_least, "a copy with our headers would not fit"),
    "min.insync.replicas": (at_least, "a retry would be less safe than the record it was made from"),
    "message.timestamp.type": (same, "the wait would be counted from another time"),
    "min.cleanable.dirty.ratio": (at_most, "what is outdated would be kept, and read at each start, for longer"),
    "segment.ms": (at_most, "what is outdated would be kept, and read again, for longer"),
}
"""For each setting: the rule that accepts a value, and the consequence of any other value."""

WHY = {
    Kind.ORDERED: {
        "cleanup.policy": "compaction would delete all but one of the records that wait behind a key",
        "retention.ms": "what waits is written again before it is 12 h old, but not while no instance runs",
    },
    Kind.POLICY: {"message.timestamp.type": "instances whose clocks differ would not agree which of them are silent"},
}
"""The consequence where it is another one in a topic of this kind."""


def bound(rule: Rule) -> str:
    """Return the rule's words in a sentence."""
    if rule is at_least:
        return "at least "
    return "at most " if rule is at_most else ""


def shown(key: str, value: str) -> str:
    """Format a value for people: milliseconds also as a duration."""
    return f"{value} ({render_duration(int(value))})" if key.endswith(".ms") and value.isdecimal() else value or "unset"


def alter(topic: str, key: str, value: str) -> str:
    """Return the command that changes one setting of a topic."""
    listed = f"[{value}]" if "," in value else value
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {key}={listed}"


def to_row(step: Step) -> dict[str, object]:
    """Return a step as a row of plain values."""
    row: dict[str, object] = msgspec.to_builtins(step)
    return row | {"details": step.details}
