"""What a sidecar's parts take of a cluster of 200 000 partitions whose every answer takes six seconds; see the test.

A program of its own: its clock goes on by what Kafka takes, and its memory is measured. It prints both as JSON.
"""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

TOPICS, PARTITIONS, ANSWER = 10_000, 20, 6.0


class Clock:
    """Monotonic seconds that pass only while Kafka is waited for."""

    now = 1e6

    def __call__(self) -> float:
        return self.now


clock = Clock()
time.monotonic = clock  # before the product is imported, so that all of it goes by this clock

from confluent_kafka import KafkaError, KafkaException  # noqa: E402
from confluent_kafka.admin import PartitionMetadata, TopicMetadata  # type: ignore[attr-defined]  # noqa: E402

from reconsume.sidecar.core.commit_batch import SettledRecord  # noqa: E402
from reconsume.sidecar.core.partition import WantedFetch  # noqa: E402
from reconsume.sidecar.core.record import Partition  # noqa: E402
from reconsume.sidecar.group_policy.follower import ClusterTopics  # noqa: E402
from reconsume.sidecar.kafka.client_config import producer_config  # noqa: E402
from reconsume.sidecar.kafka.clients import CredentialRegistry  # noqa: E402
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer  # noqa: E402
from reconsume.sidecar.kafka.committer.target_topics import State, Targets  # noqa: E402
from reconsume.sidecar.kafka.committer.transaction import LOOK_LIMIT, TOPIC_LIMIT  # noqa: E402
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedPartition  # noqa: E402
from reconsume.sidecar.kafka.consumer.log_checks import Leaders, OffsetLookup  # noqa: E402
from reconsume.sidecar.kafka.consumer.looks import Looks  # noqa: E402
from reconsume.sidecar.kafka.errors import named_topics  # noqa: E402
from reconsume.topics.levels import TABLE  # noqa: E402
from reconsume.topics.names import Names  # noqa: E402
from reconsume.topics.transition_records import Copy  # noqa: E402
from reconsume.topics.transitions import Commit  # noqa: E402
from tests.sim.samples import record  # noqa: E402

NAMES = Names("billing", "{topic}-{group}")
MAINS = tuple(f"orders-{number}" for number in range(8))
OURS = frozenset(
    {NAMES.policy, NAMES.events, NAMES.ready, *MAINS, *NAMES.levels_of(TABLE, MAINS), *NAMES.dlqs_of(MAINS)}
)


def described(name: str) -> Any:
    """A topic as the client describes it."""
    topic = TopicMetadata()
    topic.topic = name
    for number in range(PARTITIONS):
        topic.partitions[number] = part = PartitionMetadata()
        part.id, part.leader, part.replicas, part.isrs = number, number % 9, [1, 2, 3], [1, 2, 3]
    return topic


class Cluster:
    """A client of the cluster. It counts what it is asked."""

    def __init__(self, answer: float = ANSWER) -> None:
        self.lists, self._answer = 0, answer

    def _answers(self, timeout: float) -> None:
        clock.now += min(self._answer, timeout)
        if timeout < self._answer:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> Any:
        """All topics, or one."""
        self.lists += topic is None
        self._answers(timeout)
        names = [*OURS, *(f"others-{number}" for number in range(TOPICS - len(OURS)))] if topic is None else [topic]
        return SimpleNamespace(topics={name: described(name) for name in names})

    def get_watermark_offsets(self, place: Any, cached: bool) -> tuple[int, int]:
        """What the last fetch told of a partition: no question to Kafka."""
        assert cached
        return 0, 7

    def offsets_for_times(self, places: Any, timeout: float) -> list[Any]:
        """The offset of each place."""
        self._answers(timeout)
        return [SimpleNamespace(**vars(place), offset=7) for place in places]


class Producer:
    """In the place of a transactional one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def look_up_topics(self, names: Any, whole: float = LOOK_LIMIT) -> Targets:
        """As the real one."""
        told = named_topics(cast("Any", self._cluster), names, TOPIC_LIMIT, whole)
        return Targets({name: [State(0, 3)] * PARTITIONS for name in told.described}, told.absent)


def timed(turn: Any) -> tuple[Any, float]:
    """The result of a turn, and what it took."""
    begun = clock.now
    try:
        result = turn()
    except KafkaException:
        result = None
    return result, clock.now - begun


def committing(cluster: Cluster) -> dict[str, Any]:
    """A committer that writes to every level: how long it is until all are known, and the longest turn."""
    config = producer_config({"bootstrap.servers": "127.0.0.1:1"}, "t", "c")
    supply = ReplaceableProducer(config, cast("Any", threading.Event()), CredentialRegistry().register("main"))
    supply.producer = cast("Any", Producer(cluster))
    entries = [
        SettledRecord(record(n), Commit(None), (Copy(name, None, b"", [], 1),)) for n, name in enumerate(sorted(OURS))
    ]
    begun, longest, missing = clock.now, 0.0, 0
    while True:
        waits, took = timed(lambda: supply.targets.look_up_unlisted(entries))
        longest, missing = max(longest, took), missing + len(supply.targets._absent)
        clock.now += 1.0
        if not waits:
            return {"whole": clock.now - begun, "longest": longest, "missing": missing}


def following(cluster: Cluster) -> dict[str, Any]:
    """A follower of the policy: how long it is until all that is needed is known, and the longest turn."""
    topics = ClusterTopics(NAMES.policy)
    begun, longest = clock.now, 0.0
    while True:
        counts, took = timed(lambda: topics.ask(cast("Any", cluster), OURS))
        longest = max(longest, took)
        clock.now += 5.0
        if counts is not None:
            again, took = timed(lambda: topics.ask(cast("Any", cluster), OURS))
            missing = len(OURS - again.keys())
            return {"whole": clock.now - begun, "longest": max(longest, took), "missing": missing}


def consuming(cluster: Cluster) -> dict[str, Any]:
    """A consumer that looks at its partitions: the longest turn of its thread."""
    looks, leaders = Looks(), Leaders()
    owned_partitions = {
        (name, n): OwnedPartition(Partition(name, n), WantedFetch(1)) for name in MAINS for n in range(PARTITIONS)
    }
    longest = max(
        timed(lambda: looks.ask(OffsetLookup(cast("Any", cluster), leaders), owned_partitions, clock.now))[1]
        for _ in range(9)
    )
    return {"longest": longest}


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    cluster, prompt = Cluster(), Cluster(1.0)
    print(  # noqa: T201 - the test reads it
        json.dumps(
            {
                "committer": committing(cluster),
                "follower": following(cluster),
                "consumer": consuming(cluster),
                "lists": cluster.lists,
                "listed at once": following(prompt),
                "peak": peak(),
            }
        )
    )
