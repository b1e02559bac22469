"""Find levels that are overdue: compare what the retry group has done with the first offset that is not due yet.

Offsets alone do not show it. There may be only transaction markers after what is done, and a record may have asked for
a longer wait than its level's. So the first record of each partition that looks overdue is read, and its own due time
counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Message

from reconsume.sidecar.clock import wall
from reconsume.sidecar.doctor.findings import Finding, ago, fail, hidden_topics, not_checked, ok, warn
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName, Span, Topic
from reconsume.sidecar.kafka.errors import FIRST_ANSWER_SECONDS
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.scan import Bounds, ScanClient, partition_of
from reconsume.sidecar.printable import plural
from reconsume.topics.acls import GroupShape
from reconsume.topics.retry_headers import RETRY_DUE_AT
from reconsume.topics.transitions import UNREADABLE

SLACK = 60_000
"""ms by which a record must be late. A record that is delivered seconds late is work under way."""
LONG = 600_000
"""ms from which on it is a failure. A service that was too slow for a burst has caught up by then, or never will."""


class Overdue(NamedTuple):
    """A partition that is behind: its first record that is not done, and the first offset that is not due (`head`)."""

    partition: PartitionName
    first: int
    head: int
    due: int


def overdue(cluster: Cluster, group: GroupShape, now: int | None = None) -> list[Finding]:
    """Report what is due in the group's levels and not done. `now`: epoch ms; None: the current time."""
    if group.broadcast:
        return [ok("a broadcast retries nothing")]
    moment = wall() if now is None else now
    waits = waits_of(group)
    topics, denied = cluster.topics(waits)
    hidden = (
        hidden_topics(denied)
        if topics or denied
        else [not_checked("none of the group's levels exists", hint("topics apply"))]
    )
    behind = sorted(late(cluster, group, waits, topics, moment), key=lambda one: one.due)
    if not behind:
        return hidden or [ok(f"nothing is due for longer than {ago(SLACK)}")]
    owners = owners_of(cluster, group)
    return [*(finding_of(one, owners.get(one.partition), moment) for one in behind), *hidden]


def waits_of(group: GroupShape) -> dict[str, int]:
    """Return the delay of each level topic, in ms.

    Waits that are shorter than every level are spent in the ready topic, which counts as the shortest level.
    """
    names = group.names
    waits = {names.level(delay, topic): delay for delay in group.delays for topic in group.topics}
    return {**waits, names.ready: min(group.delays, default=0)}


def late(
    cluster: Cluster, group: GroupShape, waits: Mapping[str, int], topics: Mapping[str, Topic], now: int
) -> Iterator[Overdue]:
    """Yield the partitions whose first record that is not done is overdue."""
    partitions = [partition for topic in topics.values() for partition in topic.led]
    # Heads are read first and progress last, so that a record done in between does not count as overdue.
    ends = cluster.offsets(partitions, Offset.END)
    heads: dict[PartitionName, int] = {}
    for topic in topics.values():
        due = now - waits[topic.name] - SLACK
        for partition, (offset, _) in cluster.offsets(topic.led, due).items():
            heads[partition] = offset if offset >= 0 else ends[partition][0]
    begins = cluster.offsets(partitions, Offset.BEGIN)
    done = cluster.committed(group.names.retry_group, partitions)
    firsts = {partition: max(begins[partition][0], done.get(partition, 0)) for partition in partitions}
    behind = {
        partition: Span(first, heads[partition]) for partition, first in firsts.items() if first < heads[partition]
    }
    for partition, (first, due_at) in first_records(cluster, group, waits, behind).items():
        if due_at + SLACK <= now:
            yield Overdue(partition, first, heads[partition], due_at)


def first_records(
    cluster: Cluster, group: GroupShape, waits: Mapping[str, int], spans: Mapping[PartitionName, Span]
) -> dict[PartitionName, tuple[int, int]]:
    """Return the first record of each span, if there is one: its offset, and when it was due (epoch ms).

    Raises BrokerError.
    """
    firsts: dict[PartitionName, tuple[int, int]] = {}
    if not spans:
        return firsts
    with ScanClient(cluster.kafka, group.names.retry_group, cluster.client_id) as client:
        scan = client.scan(spans, Bounds(seconds=FIRST_ANSWER_SECONDS))
        for message in scan:
            partition = partition_of(message)
            firsts[partition] = message.offset() or 0, due_of(message, waits[partition[0]])
            scan.finish(partition)
    return firsts


def due_of(message: Message, wait: int) -> int:
    """Return when a record was due, epoch ms: the end of its level, or the time in its header if that is later."""
    record = to_record(message, None, 0, None)  # type: ignore[arg-type]  # its position is not used
    text = dict(record.headers or ()).get(RETRY_DUE_AT) or b""
    level_over = record.timestamp + wait
    return level_over if record.fault == UNREADABLE or not text.isdigit() else max(level_over, int(text[:16]))


def owners_of(cluster: Cluster, group: GroupShape) -> dict[PartitionName, str]:
    """Return the client name of the retry group's member that has each partition."""
    groups = cluster.groups([group.names.retry_group]).values()
    return {partition: member.client for one in groups for member in one.members for partition in member.partitions}


def finding_of(one: Overdue, owner: str | None, now: int) -> Finding:
    """Return the finding for one partition."""
    (topic, number), behind = one.partition, now - one.due
    text = f"{topic}[{number}]: the record at {one.first} was due {ago(behind)} ago and is not done; "
    text += f"due there: at most {plural(one.head - one.first, 'offset')}"
    if owner is None:
        return (fail if behind >= LONG else warn)(text, "no instance has the partition: start one")
    mend = (
        f"{owner} has it: see `partitions` in its /status for why (state, overdue_for), and the pace; where neither is "
        "the reason, restart it: nothing is lost by that"
    )
    return (fail if behind >= LONG else warn)(text, mend)
