"""The Spark queries of a group as commands, checks and pages see them: which read, and how far they are.

A query joins no consumer group. Its heartbeats in the control log say that it reads (`topics/ownership.py`), and the
offsets of its private consumer group say how far it is. So the progress of a group in a partition is that of its own
consumer group or that of a query, whichever is further: what is below either was handled, as a query begins behind what
others have handled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from msgspec.structs import replace

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.kafka.listed_records import progress_with_notes
from reconsume.topics.names import Names
from reconsume.topics.ownership import Kind, Reader
from reconsume.topics.policy_record import SubscriptionRecord


def query_groups(cluster: Cluster, names: Names) -> tuple[str, ...]:
    """Return the private consumer groups of the group's queries that this user may see. Raises BrokerError."""
    prefix = names.spark_group("")
    return tuple(name for name in cluster.group_names() if name.startswith(prefix))


def progress_with_queries(
    cluster: Cluster, names: Names, group: str | None, partitions: Iterable[PartitionName], *, stable: bool = False
) -> dict[PartitionName, Progress]:
    """Return the progress of one of the group's consumer groups in these partitions, or of a query that is further.

    What was settled before its turn counts as done. `group` None: of queries alone. `stable`: wait for commits that are
    under way. Raises BrokerError.
    """
    wanted = list(partitions)
    groups = (*([] if group is None else [group]), *(query_groups(cluster, names) if wanted else ()))
    progress: dict[PartitionName, Progress] = {}
    for name in groups:
        read = partial(cluster.progress, name, wanted, stable=stable)
        take_further(progress, progress_with_notes(cluster, names, read))
    return progress


def take_further(progress: dict[PartitionName, Progress], more: Mapping[PartitionName, Progress]) -> None:
    """Put what `more` has in place of what `progress` has, where it is further."""
    for partition, own in more.items():
        if partition not in progress or progress[partition].next < own.next:
            progress[partition] = own


def committed_with_queries(
    cluster: Cluster, names: Names, group: str, partitions: Iterable[PartitionName]
) -> dict[PartitionName, int]:
    """Return the same as offsets, without what is done above them."""
    return {at: one.next for at, one in progress_with_queries(cluster, names, group, partitions).items()}


def private_group(names: Names, query: Reader) -> str:
    """Return the consumer group that holds the progress of a query."""
    return names.spark_group(name_of(query))


def name_of(query: Reader) -> str:
    """Return the name of a query; empty for a sidecar."""
    return "" if query.query is None else query.query.name


def live_queries(state: ControlState | None, now_ms: int) -> list[Reader]:
    """Return the Spark queries that read the group at this time, by name."""
    return [] if state is None else [reader for reader in state.readers.live(now_ms) if reader.query is not None]


def heartbeats_with_queries(state: ControlState) -> dict[str, SubscriptionRecord]:
    """Return what each instance and each query said last, by name, with the time that the log has. It may be silent."""
    queries = {one.instance: replace(one.record, at=one.at) for one in state.readers.queries()}
    return {**state.beats.known(), **queries}


def reads_of(query: Reader) -> str:
    """Return what is said of a check that a sidecar's heartbeats would answer, where a query reads."""
    return f'the Spark job "{name_of(query)}" reads it'


def is_gated(query: Reader) -> bool:
    """Whether a query reads the level topics itself."""
    return query.kind is Kind.GATED
