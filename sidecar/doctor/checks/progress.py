"""Check what the group has done: progress that may be lost, levels that are overdue, and strangers in its groups.

Progress is lost if offsets expire because no instance runs, and if records are deleted unread.

A level is overdue if the retry group has not done what is before the first offset that is not due yet. Offsets alone do
not show it. There may be only transaction markers after what is done, and a record may have asked for a longer wait
than its level's. So the first record of each partition that looks overdue is read, and its own due time counts.

If another program uses the group's consumer groups, it is chance which client gets a record.

Spark queries of the group have private consumer groups, which have their progress. While one reads, no finding asks for
an instance: a second reader would double the copies of what fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from confluent_kafka import Message

from reconsume.sidecar.clock import wall
from reconsume.sidecar.doctor.findings import RIGHTS, Finding, fail, hidden_topics, listed, not_checked, ok, warn
from reconsume.sidecar.group_policy.queries import (
    committed_with_queries,
    is_gated,
    live_queries,
    private_group,
    query_groups,
    reads_of,
)
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import ConsumerGroup, Offset, PartitionName, Span, Topic, led_partitions
from reconsume.sidecar.kafka.errors import FIRST_ANSWER_SECONDS
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.scan import Bounds, ScanClient, partition_of
from reconsume.sidecar.printable import ago, plural
from reconsume.topics.acls import GroupShape
from reconsume.topics.names import Kind, Names
from reconsume.topics.ownership import CLAIM_LIVES, Reader
from reconsume.topics.removed import removed_role
from reconsume.topics.retry_headers import RETRY_DUE_AT
from reconsume.topics.transitions import UNREADABLE

# --- progress --------------------------------------------------------------------------------------------------------


DAY_MS = 86_400_000
SHARE = 10
"""The part of a record's retention in which it is near its end: the last tenth."""
START = "start an instance, or reset the group by kafka-consumer-groups.sh if it is not needed any more"
GONE = (
    "it has expired, or the group was deleted: the main topics will be read from `start:`. To go on elsewhere, set its "
    "offsets by kafka-consumer-groups.sh before an instance starts"
)
FASTER = "raise retention.ms of {topic} until the group has caught up"


def progress(cluster: Cluster, group: GroupShape, state: ControlState | None) -> list[Finding]:
    """Report what the group's two consumer groups may lose.

    `state`: what the control log says, where instances say that they run.
    """
    now = wall()
    names = group.names
    findings: list[Finding] = []
    lasting = cluster.offset_retention()
    private, queries = query_groups(cluster, names), live_queries(state, now)
    every = (*group.topics, *group.levels, names.ready)
    described, _ = cluster.topics(every if private else ())
    partitions = led_partitions(described.values())
    for name in private:
        findings += behind(cluster, name, cluster.committed(name, partitions), now)
    findings += silent_queries(cluster, names, state, now)
    for name, topics in ((names.group, group.topics), (names.retry_group, (*group.levels, names.ready))):
        described, denied = cluster.topics(topics)
        findings += hidden_topics(denied)
        committed = cluster.committed(name, led_partitions(described.values()))
        if not committed:
            delivers = name == names.group and group.mode not in ("relay", "spark") and not private
            if delivers and has_records(cluster, names.events):
                findings.append(fail(f"{name} has no progress, although its events tell of deliveries", GONE))
            continue
        group_state = cluster.groups([name]).get(name)
        if group_state is not None and not group_state.members and not queries:
            findings.append(idle(name, None if state is None else state.beats.last_at, lasting, now))
        findings += behind(cluster, name, committed, now)
    return findings or [ok("no progress is about to expire")]


def silent_queries(cluster: Cluster, names: Names, state: ControlState | None, now: int) -> Iterator[Finding]:
    """Report Spark queries that have not ended and are silent, as long as they have progress and nobody else reads."""
    if state is None or state.readers.live(now - SLACK):
        return
    for query in state.readers.queries():
        private = private_group(names, query)
        known = cluster.groups([private]).get(private)
        if now - query.at > CLAIM_LIVES and (known is None or known.exists):
            text = f"{query.described} has been silent for {ago(now - query.at)}, and nobody else reads the retries"
            yield warn(text, "start it again; it goes on where it stopped")


def has_records(cluster: Cluster, topic: str) -> bool:
    """Return whether a topic exists and has records."""
    described, _ = cluster.topics([topic])
    spans = cluster.spans(led_partitions(described.values()))
    return any(begin < end for begin, end in spans.values())


def idle(name: str, since: int | None, lasting: int, now: int) -> Finding:
    """Return the finding for a group without members, whose offsets expire."""
    if since is None:
        return warn(
            f"{name} has no running member; its progress is deleted {ago(lasting)} after the last one left", START
        )
    remaining = since + lasting - now
    text = f"{name} has no running member since about {ago(now - since)}; its progress is deleted "
    if remaining < DAY_MS:
        return fail(text + ("at any time" if remaining <= 0 else f"in {ago(remaining)}"), START)
    return warn(text + f"in {ago(remaining)}", START)


def behind(cluster: Cluster, name: str, committed: Mapping[PartitionName, int], now: int) -> Iterator[Finding]:
    """Report records that were deleted unread, or soon will be."""
    topics, _ = cluster.topics({topic for topic, _ in committed})
    there = set(led_partitions(topics.values()))
    partitions = [partition for partition in committed if partition in there]
    spans = cluster.spans(partitions)
    retention = {topic: retention_of(config) for topic, config in cluster.settings(topics).items()}
    for partition in partitions:
        topic, number = partition
        offset, (begin, end) = committed[partition], spans[partition]
        if offset < begin:
            text = f"{name}: {plural(begin - offset, 'offset')} of {topic}[{number}] deleted before being read"
            yield fail(text, FASTER.format(topic=topic))
        elif offset < end and (span := retention.get(topic)) is not None:
            near = due_to_go(cluster, partition, now - span + span // SHARE, end) - offset
            if near > 0:
                what = f"at most {plural(near, 'offset')} of {topic}[{number}]"
                text = f"{name}: {what} are deleted unread within {ago(span / SHARE)}"
                yield warn(text, FASTER.format(topic=topic))


def due_to_go(cluster: Cluster, partition: PartitionName, before: int, end: int) -> int:
    """Return the first offset that is not older than `before` (epoch ms)."""
    newer, _ = cluster.offsets([partition], before)[partition]
    return newer if newer >= 0 else end


def retention_of(config: Mapping[str, str]) -> int | None:
    """Return how long a topic keeps a record, in ms; None if for ever."""
    text = config.get("retention.ms", "")
    return int(text) if text.isdecimal() and "delete" in config.get("cleanup.policy", "delete") else None


# --- overdue levels --------------------------------------------------------------------------------------------------


SLACK = 60_000
"""ms by which a record must be late. A record that is delivered seconds late is work under way."""
LONG = 600_000
"""ms from which on it is a failure. A service that was too slow for a burst has caught up by then, or never will."""


def overdue(
    cluster: Cluster, group: GroupShape, now: int | None = None, *, state: ControlState | None = None
) -> list[Finding]:
    """Report what is due in the group's levels and not done. `now`: epoch ms; None: the current time."""
    moment = wall() if now is None else now
    names, queries = group.names, live_queries(state, moment)
    hidden = {private_group(names, one) for one in queries} - set(query_groups(cluster, names))
    if hidden:
        text = f"{', '.join(map(reads_of, queries))}, and this user may not see the consumer group {listed(hidden)}"
        return [not_checked(text, RIGHTS)]
    waits = {names.level(delay, topic): delay for delay in group.delays for topic in group.topics}
    # Waits that are shorter than every level are spent in the ready topic, which counts as the shortest level.
    waits[names.ready] = min(group.delays, default=0)
    topics, denied = cluster.topics(waits)
    findings = hidden_topics(denied)
    if not topics and not denied:
        findings.append(not_checked("none of the group's levels exists", hint("topics apply")))
    spans = undone_spans(cluster, group, waits, topics, moment)
    dues, unread = first_dues(cluster, group, waits, spans)
    if unread:
        numbers = listed(f"{topic}[{number}]" for topic, number in unread)
        findings.append(
            not_checked(f"what is overdue in {numbers}: it does not respond", "look at the brokers that lead them")
        )
    late = {partition: due for partition, due in dues.items() if due[1] + SLACK <= moment}
    if not late:
        return findings or [ok(f"nothing is due for longer than {ago(SLACK)}")]
    groups = cluster.groups([names.retry_group]).values()
    owners = {partition: member.client for one in groups for member in one.members for partition in member.partitions}
    readers = {names.ready: queries} | {topic: [one for one in queries if is_gated(one)] for topic in group.levels}
    overdue_findings = [
        overdue_finding(
            partition, first, spans[partition].end, moment - due, owners.get(partition), readers.get(partition[0], ())
        )
        for partition, (first, due) in sorted(late.items(), key=lambda item: item[1][1])
    ]
    return [*overdue_findings, *findings]


def undone_spans(
    cluster: Cluster, group: GroupShape, waits: Mapping[str, int], topics: Mapping[str, Topic], now: int
) -> dict[PartitionName, Span]:
    """Return what is not done of each partition, up to the first offset that is not due, where there is any."""
    partitions = led_partitions(topics.values())
    # The ends are read first and the progress last, so that a record done in between does not count as overdue.
    ends = cluster.offsets(partitions, Offset.END)
    heads: dict[PartitionName, int] = {}
    for topic in topics.values():
        for partition, (offset, _) in cluster.offsets(topic.led, now - waits[topic.name] - SLACK).items():
            heads[partition] = offset if offset >= 0 else ends[partition].offset
    begins = cluster.offsets(partitions, Offset.BEGIN)
    done = committed_with_queries(cluster, group.names, group.names.retry_group, partitions)
    firsts = {partition: max(begins[partition].offset, done.get(partition, 0)) for partition in partitions}
    return {partition: Span(first, heads[partition]) for partition, first in firsts.items() if first < heads[partition]}


def first_dues(
    cluster: Cluster, group: GroupShape, waits: Mapping[str, int], spans: Mapping[PartitionName, Span]
) -> tuple[dict[PartitionName, tuple[int, int]], Collection[PartitionName]]:
    """Return the first record of each span, if there is one: its offset, and when it was due (epoch ms); and the
    partitions that did not respond. Raises BrokerError."""
    firsts: dict[PartitionName, tuple[int, int]] = {}
    if not spans:
        return firsts, ()
    with ScanClient(cluster.kafka, group.names.retry_group, cluster.client_id) as client:
        scan = client.scan(spans, Bounds(seconds=FIRST_ANSWER_SECONDS))
        for message in scan:
            partition = partition_of(message)
            firsts[partition] = message.offset() or 0, due_of(message, waits[partition[0]])
            scan.finish(partition)
    return firsts, scan.left.keys()


def due_of(message: Message, wait: int) -> int:
    """Return when a record was due, epoch ms: the end of its level, or the time in its header if that is later."""
    record = to_record(message, None, 0, None)  # type: ignore[arg-type]  # its position is not used
    text = dict(record.headers or ()).get(RETRY_DUE_AT) or b""
    level_over = record.timestamp + wait
    return level_over if record.fault == UNREADABLE or not text.isdigit() else max(level_over, int(text[:16]))


def overdue_finding(
    partition: PartitionName, first: int, head: int, behind: int, owner: str | None, queries: Sequence[Reader] = ()
) -> Finding:
    """Return the finding for a partition whose record at `first` is `behind` ms late; `head` is not due yet.

    `queries`: the Spark queries that read the topic.
    """
    topic, number = partition
    text = f"{topic}[{number}]: the record at {first} was due {ago(behind)} ago and is not done; "
    text += f"due there: at most {plural(head - first, 'offset')}"
    mend = (
        f"{owner} has it: `partitions` in its /status says why (not_delivered, not_fetched); where it is `unread` and "
        "nothing keeps it from being fetched, restart it: nothing is lost by that"
    )
    if queries:
        mend = f"{queries[0].described} reads it: see the progress of its batches, and the log of its driver"
    elif owner is None:
        mend = "nobody reads the partition: start an instance, or the Spark job that consumes the group"
    return (fail if behind >= LONG else warn)(text, mend)


# --- members of the group --------------------------------------------------------------------------------------------


def groups(cluster: Cluster, group: GroupShape, state: ControlState | None = None) -> list[Finding]:
    """Report members of the group's own consumer groups that read other topics."""
    names = group.names
    described = cluster.groups([names.group, names.retry_group])
    retry = described.get(names.retry_group)
    findings = [
        *strangers(names.retry_group, retry, (*group.levels, names.ready, *removed(group, retry))),
        *strangers(names.group, described.get(names.group), (*group.topics, *relayed(group))),
    ]
    readers = "".join(f"; {query.described} reads the retries" for query in live_queries(state, wall()))
    return findings or [ok(f"only members that read this group's topics{readers}")]


def relayed(group: GroupShape) -> tuple[str, ...]:
    """Return what the service of a relay reads in addition to its main topics."""
    return (group.names.ready,) if group.mode == "relay" else ()


def removed(group: GroupShape, described: ConsumerGroup | None) -> Iterator[str]:
    """Yield the topics of members that are levels which left the ladder, or levels of main topics which left the
    configuration: sidecars empty them."""
    for member in () if described is None else described.members:
        for name in member.topics:
            role = group.names.role(name, group.topics)
            if (role is not None and role.kind is Kind.LEVEL) or removed_role(group.names, name, group.topics):
                yield name


def strangers(name: str, described: ConsumerGroup | None, topics: Iterable[str]) -> Iterator[Finding]:
    """Report members of this group's own consumer groups that read topics of others."""
    known = set(topics)
    for member in () if described is None else described.members:
        foreign = member.topics - known
        if foreign:
            yield fail(
                f"group {name} has a member ({member.client} at {member.host}) that reads {listed(foreign)}",
                f"only this group's instances, all with one configuration, may use the group {name}",
            )
