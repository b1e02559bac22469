"""The progress of a group's two consumer groups: what is committed, and what is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from reconsume.sidecar.group_policy.queries import committed_with_queries
from reconsume.sidecar.kafka.admin.cluster import Cluster, DeniedError
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, led_partitions, unled_partitions
from reconsume.sidecar.settings import Settings


class Done(NamedTuple):
    """How far a partition is done, and its end offset. `fresh`: nothing is committed, so `at` is where it begins."""

    at: int
    end: int
    fresh: bool = False


class Lag(NamedTuple):
    """A consumer group's remaining work in one topic. `fresh`: partitions in which nothing is committed yet."""

    group: str
    topic: str
    partitions: int
    committed: int
    end: int
    fresh: int = 0

    @property
    def lag(self) -> int:
        """Records between the committed offset and the end."""
        return max(0, self.end - self.committed)


class Lags(NamedTuple):
    """The rows, the topics and groups that this user may not see, the lag of each partition by consumer group, and the
    partitions that have no leader, which are in no row."""

    rows: tuple[Lag, ...]
    unseen: tuple[str, ...]
    behind: Mapping[tuple[str, PartitionName], int]
    unled: tuple[str, ...] = ()

    def of(self, holds: Set[tuple[str, PartitionName]]) -> int | None:
        """Return the total lag of the partitions that an instance holds; None if none of their lags is known."""
        known = holds & self.behind.keys()
        return sum(self.behind[one] for one in known) if known else None


def read_lags(cluster: Cluster, settings: Settings) -> Lags:
    """Return the progress of the group's two consumer groups, one row per topic, as far as this user may see it.

    Raises BrokerError.
    """
    names = settings.names
    delays = {names.level(delay, topic): delay for delay in settings.delays for topic in settings.topic_names}
    levels = sorted(delays, key=lambda level: (delays[level], level))
    rows, unseen, behind = list[Lag](), list[str](), dict[tuple[str, PartitionName], int]()
    unled = list[str]()
    for group, topics in ((names.group, settings.topic_names), (names.retry_group, (*levels, names.ready))):
        there, denied = cluster.topics(topics)
        unseen += sorted(denied)
        unled += [f"{topic}[{number}]" for topic, number in unled_partitions(there.values())]
        try:
            done = _done_partitions(cluster, settings, group, led_partitions(there.values()))
        except DeniedError:
            unseen.append(group)
            continue
        rows += _lag_rows(group, topics, done)
        behind |= {(group, partition): max(0, one.end - one.at) for partition, one in done.items()}
    return Lags(tuple(rows), tuple(unseen), behind, tuple(unled))


def _done_partitions(
    cluster: Cluster, settings: Settings, group: str, partitions: Sequence[PartitionName]
) -> dict[PartitionName, Done]:
    """Return the progress in each partition.

    A partition without a committed offset counts from where the group would begin: a level topic that has a record for
    an hour has no commit for an hour.
    """
    spans = cluster.spans(partitions)
    committed = committed_with_queries(cluster, settings.names, group, partitions)
    late = settings.start == "latest" and group == settings.names.group
    return {
        partition: Done(committed[partition], end) if partition in committed else Done(begin, end, fresh=True)
        for partition, (begin, end) in spans.items()
        if partition in committed or not late
    }


def _lag_rows(group: str, topics: Sequence[str], done: Mapping[PartitionName, Done]) -> Iterator[Lag]:
    for name in topics:
        own = [one for partition, one in done.items() if partition[0] == name]
        if own:
            at, end = sum(one.at for one in own), sum(one.end for one in own)
            yield Lag(group, name, len(own), at, end, sum(one.fresh for one in own))
