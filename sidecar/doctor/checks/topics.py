"""Check the group's topics: whether they exist as they must be, have leftovers, and open transactions.

Topics that left the configuration may still have retries in levels or queues of their own. Levels of their own they
have only with the prefix `{topic}-{group}`, and a running sidecar passes these retries on. What waits in a queue stays
there, and nobody reads it.

A partition has an open transaction if its last stable offset is behind its high watermark. The transaction hangs if the
first record that it holds back is older than any transaction of that topic may be: no producer ends it, and every
reader of committed records stops before it. The age comes from an offset by time, so no record is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.sidecar.doctor.findings import Finding, fail, hidden_topics, listed, not_checked, ok, unseen, warn
from reconsume.sidecar.group_policy.levels import leftovers, unowned_queues
from reconsume.sidecar.hints import hint, suggestion
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName, Topic, led_partitions, source_of
from reconsume.sidecar.printable import ago, plural
from reconsume.topics.acls import GroupShape
from reconsume.topics.names import ALIKE, Kind, alike
from reconsume.topics.specs import TopicSpec, group_specs

# --- topics ----------------------------------------------------------------------------------------------------------


Compare: TypeAlias = Callable[[TopicSpec, Topic], Iterable[tuple[str, str]]]
"""Called with a topic and its specification; returns each difference with its remedy."""

BACK = "bring back the brokers that have the replicas"
OPTIONAL = (Kind.VIEW, Kind.POLICY)
"""Kinds of topics without which records are still retried."""


def topics(cluster: Cluster, group: GroupShape, compare: Compare) -> list[Finding]:
    """Report what is wrong with the group's topics and its main topics."""
    own = () if group.broadcast else group.own
    described, denied = cluster.topics([*group.topics, *own])
    configs = cluster.settings(described)
    missing = [name for name in group.topics if name not in described and name not in denied]
    there = cluster.topic_names() if missing or own else frozenset()
    mend = "create it, or correct topics: in the configuration"
    findings = [
        fail(
            f"main topic {name} does not exist",
            f"{mend}; {question}" if (question := suggestion(name, there)) else mend,
        )
        for name in missing
    ]
    for topic in described.values():
        findings += whole(topic)
    if own:
        findings += owns(group, described, configs, denied, compare, there)
    findings += hidden_topics(denied)
    return findings or [ok(f"all {len(described)} are as they must be")]


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
        yield unseen(
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


# --- leftovers -------------------------------------------------------------------------------------------------------


MEND = "put {topic} back into topics: until its retries are done, or let a running sidecar make dead letters of them"


def removed_topics(cluster: Cluster, group: GroupShape, *, in_order: bool) -> list[Finding]:
    """Report each removed topic whose levels hold retries, and each queue of which partitions hold records unread.

    `in_order`: as in `unowned_queues`.
    """
    text = "topic {} left the configuration, and up to {} retries of it wait in {}"
    waiting: dict[str, dict[str, int]] = {}
    for level, count in leftovers(cluster, group.names, group.topics):
        waiting.setdefault(level.topic, {})[level.name] = count
    findings = [
        warn(text.format(topic, sum(counts.values()), listed(counts)), MEND.format(topic=topic))
        for topic, counts in waiting.items()
    ]
    text = "up to {} records wait in {}[{}], which nobody reads: {}"
    findings += [
        warn(text.format(one.waiting, one.name, listed(map(str, one.partitions)), one.because), one.mend)
        for one in unowned_queues(cluster, group.names, group.topics, in_order=in_order)
    ]
    return findings or [ok("no topic that left the configuration has retries, of those that this user may see")]


# --- open transactions -----------------------------------------------------------------------------------------------


SCAN = 10_000
"""ms between two searches of a broker for expired transactions, by default."""
SLACK = 10_000
OTHERS = 15 * 60_000
"""ms. The longest transaction that a broker allows by default. It is for main topics, where other producers write."""
AGAIN_AFTER = 1.0
"""Seconds until the second look. A transaction may have ended between two requests of the first look."""
FIND = "kafka-transactions.sh --bootstrap-server {servers} find-hanging --topic {topic} --partition {partition}"


def transactions(
    cluster: Cluster, group: GroupShape, timeout: int, pause: Callable[[float], None] = time.sleep
) -> list[Finding]:
    """Report the partitions that are held up. `timeout` is transaction.timeout.ms of the sidecars."""
    own = () if group.broadcast else group.own
    topics, denied = cluster.topics([*group.topics, *own])
    partitions = led_partitions(topics.values())
    open_ = opened(cluster, partitions)
    if open_:
        pause(AGAIN_AFTER)
        # If the stable offset has moved on meanwhile, the transaction has ended.
        still = opened(cluster, list(open_))
        open_ = {partition: stable for partition, stable in open_.items() if still.get(partition) == stable}
    longest = {partition: OTHERS if partition[0] in group.topics else timeout + SCAN + SLACK for partition in open_}
    findings = [*held(cluster, open_, longest), *hidden_topics(denied)]
    if not partitions and not denied:
        findings.append(not_checked("none of the topics exists", "see the check of topics"))
    return findings or [ok(f"none that hangs on {plural(len(partitions), 'partition')}")]


def opened(cluster: Cluster, partitions: Sequence[PartitionName]) -> dict[PartitionName, int]:
    """Return the partitions with an open transaction, and where each begins."""
    stable = cluster.offsets(partitions, Offset.END)
    ends = cluster.offsets(partitions, Offset.END, committed=False)
    return {partition: stable[partition][0] for partition in partitions if stable[partition][0] < ends[partition][0]}


def held(cluster: Cluster, open_: dict[PartitionName, int], longest: dict[PartitionName, int]) -> Iterator[Finding]:
    """Yield a finding for each partition whose open transaction is older than it may be."""
    now = wall()
    for partition, stable in open_.items():
        limit = longest[partition]
        newer, _ = cluster.offsets([partition], now - limit, committed=False)[partition]
        if 0 <= newer <= stable:
            continue
        topic, number = partition
        mend = FIND.format(servers=cluster.kafka["bootstrap.servers"], topic=topic, partition=number)
        text = f"{topic}[{number}]: open at offset {stable} for more than {ago(limit)}; nothing behind it is read"
        yield fail(text, f"{mend}, then abort; one of a sidecar ends when its pod starts again")
