"""The progress of a group's two consumer groups: what is committed, and what is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from reconsume.sidecar.group_policy.queries import committed_with_queries
from reconsume.sidecar.kafka.admin.cluster import Cluster, DeniedError
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Topic, led_partitions, unled_partitions
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


class Progress:
    """The progress of one group, as Kafka has it. Call it on threads."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster, self._settings = cluster, settings

    def lags(self) -> Lags:
        """Return the progress of the group's two consumer groups, one row per topic, as far as this user may see it."""
        settings, names = self._settings, self._settings.names
        delays = {names.level(delay, topic): delay for delay in settings.delays for topic in settings.topic_names}
        levels = sorted(delays, key=lambda level: (delays[level], level))
        rows, unseen, behind = list[Lag](), list[str](), dict[tuple[str, PartitionName], int]()
        unled = list[str]()
        for group, topics in ((names.group, settings.topic_names), (names.retry_group, (*levels, names.ready))):
            there, denied = self._cluster.topics(topics)
            unseen += sorted(denied)
            unled += [f"{topic}[{number}]" for topic, number in unled_partitions(there.values())]
            try:
                done = self._done(group, there.values())
            except DeniedError:
                unseen.append(group)
                continue
            rows += self._lags(group, topics, done)
            behind |= {(group, partition): max(0, one.end - one.at) for partition, one in done.items()}
        return Lags(tuple(rows), tuple(unseen), behind, tuple(unled))

    def _done(self, group: str, topics: Iterable[Topic]) -> dict[PartitionName, Done]:
        """Return the progress in each partition. Raises BrokerError if Kafka does not answer.

        A partition without a committed offset counts from where the group would begin: a level topic that has a record
        for an hour has no commit for an hour.
        """
        partitions = led_partitions(topics)
        spans = self._cluster.spans(partitions)
        committed = committed_with_queries(self._cluster, self._settings.names, group, partitions)
        late = self._settings.start == "latest" and group == self._settings.names.group
        return {
            partition: Done(committed[partition], end) if partition in committed else Done(begin, end, fresh=True)
            for partition, (begin, end) in spans.items()
            if partition in committed or not late
        }

    def _lags(self, group: str, topics: Sequence[str], done: Mapping[PartitionName, Done]) -> Iterator[Lag]:
        for name in topics:
            own = [one for partition, one in done.items() if partition[0] == name]
            if own:
                at, end = sum(one.at for one in own), sum(one.end for one in own)
                fresh = sum(one.fresh for one in own)
                yield Lag(group, name, len(own), at, end, fresh)
