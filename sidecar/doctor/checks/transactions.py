"""Find transactions that hang: no producer ends them, and every reader of committed records stops before them.

A partition has an open transaction if its last stable offset is behind its high watermark. The transaction hangs if the
first record that it holds back is older than any transaction of that topic may be. The age comes from an offset by
time, so no record is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from reconsume.sidecar.clock import wall
from reconsume.sidecar.doctor.findings import Finding, ago, fail, hidden_topics, not_checked, ok
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName
from reconsume.sidecar.printable import plural
from reconsume.topics.acls import GroupShape

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
    partitions = [partition for topic in topics.values() for partition in topic.led]
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
