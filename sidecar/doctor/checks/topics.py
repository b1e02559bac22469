"""Check whether the topics exist, have their leaders and replicas, and have the right settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.doctor.findings import Finding, fail, hidden_topics, listed, not_checked, ok, warn
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Topic, source_of
from reconsume.sidecar.printable import plural
from reconsume.topics.acls import GroupShape
from reconsume.topics.names import ALIKE, Kind, alike
from reconsume.topics.specs import TopicSpec, group_specs

Compare: TypeAlias = Callable[[TopicSpec, Topic], Iterable[tuple[str, str]]]
"""Called with a topic and its specification; returns each difference with its remedy."""

BACK = "bring back the brokers that have the replicas"
OPTIONAL = (Kind.VIEW, Kind.STATS, Kind.POLICY)
"""Kinds of topics without which records are still retried."""


def topics(cluster: Cluster, group: GroupShape, compare: Compare) -> list[Finding]:
    """Report what is wrong with the group's topics and its main topics."""
    own = () if group.broadcast else group.own
    described, denied = cluster.topics([*group.topics, *own])
    configs = cluster.settings(described)
    findings = [
        *mains(group, described, denied),
        *(finding for topic in described.values() for finding in whole(topic)),
        *(owns(group, described, configs, denied, compare, cluster.topic_names()) if own else ()),
    ]
    findings += hidden_topics(denied)
    return findings or [ok(f"all {len(described)} are as they must be")]


def mains(group: GroupShape, described: Mapping[str, Topic], denied: frozenset[str]) -> Iterator[Finding]:
    """Report main topics that are missing."""
    for name in group.topics:
        if name not in described and name not in denied:
            yield fail(f"main topic {name} does not exist", "create it, or correct topics: in the configuration")


def whole(topic: Topic) -> Iterator[Finding]:
    """Report missing leaders and replicas, which the brokers must restore."""
    headless = [str(number) for number, leader in enumerate(topic.leaders) if leader < 0]
    if headless:
        yield fail(
            f"{topic.name} has no leader for partition {listed(headless)}", "bring the brokers back that have it"
        )
    elif topic.lagging:
        numbers = listed(map(str, topic.lagging))
        yield warn(f"{topic.name} misses replicas of partition {numbers}", BACK)


def owns(
    group: GroupShape,
    described: Mapping[str, Topic],
    configs: Mapping[str, Mapping[str, str]],
    denied: frozenset[str],
    compare: Compare,
    there: Collection[str],
) -> Iterator[Finding]:
    """Report what is wrong with the group's own topics. `there`: the names of the cluster's topics."""
    sources = [
        source_of(described[name]._replace(config=configs.get(name, {}))) for name in group.topics if name in described
    ]
    if not sources:
        return  # their required settings follow from the main topics
    specs = group_specs(group.names, sources, group.delays, rows=bool(group.rows), ordered=group.ordered)
    refused = alike((spec.name for spec in specs if spec.name not in described), there)
    for spec in specs:
        if spec.name in refused:
            text = f"{spec.name} cannot exist beside {refused[spec.name]}: they {ALIKE}"
            yield fail(text, "rename the group, or the topic")
        elif spec.name in described:
            yield from differing(spec, described[spec.name], configs.get(spec.name), compare)
        elif spec.name not in denied:
            yield absent(spec, group)
    hidden = [name for name in described if name not in configs]
    if hidden:
        yield not_checked(
            f"the settings of {plural(len(hidden), 'topic')} are not for this user to see (DESCRIBE_CONFIGS): "
            f"{listed(hidden)}",
            f"run doctor, or {hint('topics check')}, as the group's admin",
        )


def absent(spec: TopicSpec, group: GroupShape) -> Finding:
    """Return the finding for a topic that does not exist."""
    text = f"{spec.name} does not exist"
    bad = spec.kind not in OPTIONAL or (spec.kind is Kind.VIEW and group.view and group.source == "spark")
    return fail(text, hint("topics apply")) if bad else warn(text, hint("topics apply"))


def differing(spec: TopicSpec, topic: Topic, config: Mapping[str, str] | None, compare: Compare) -> Iterator[Finding]:
    """Report differences: what loses or stops records is a failure, a shape that only costs is a warning."""
    described = topic._replace(config=config or {})
    say = fail if spec.kind is Kind.ORDERED and topic.partitions < spec.partitions else warn
    for text, mend in compare(replace(spec, config={}), described):
        yield say(f"{spec.name}: {text}", mend)
    if config is not None:
        for text, mend in compare(replace(spec, partitions=topic.partitions, replication=topic.replication), described):
            yield fail(f"{spec.name}: {text}", mend)
