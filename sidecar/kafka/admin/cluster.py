"""An admin client, how its answers are awaited, and the requests that only read: topics, settings, offsets, groups.

Every answer comes within seconds or is a BrokerError, with a sentence for people. A request that this user may not make
is a DeniedError. Nothing here creates or changes anything; `changes.py` does.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import decode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.errors import BrokerError, ConfigError
from reconsume.sidecar.kafka.admin.descriptions import (
    ConsumerGroup,
    ListedOffset,
    Offset,
    PartitionName,
    Span,
    Topic,
    group_of,
    topic_of,
)
from reconsume.sidecar.kafka.client_config import reader_config
from reconsume.sidecar.kafka.clients import make_client, return_client, take_client
from reconsume.sidecar.kafka.errors import (
    ANSWER_SECONDS,
    COORDINATOR,
    FIRST_ANSWER_SECONDS,
    LEADER,
    NEW_TOPIC,
    OPEN_TRANSACTION,
    code_of,
    committed_of,
    passing,
    retry_transient,
    sentence_of,
)

POLL_SECONDS = 0.1
"""Seconds until the client's callbacks run again while a request is out. Ctrl-C waits no longer."""
DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
SILENT = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})
busy = passing(COORDINATOR, LEADER, NEW_TOPIC)
"""Whether an error passes by itself: the cluster's first group, a new topic, a broker that has just started."""
settling = passing(COORDINATOR, LEADER, NEW_TOPIC, OPEN_TRANSACTION)
"""The same for committed offsets, which an open transaction may still change."""

K = TypeVar("K")


class DeniedError(BrokerError):
    """This user may not make this request."""


class SilentError(BrokerError):
    """No broker has answered: whatever is asked next would wait as long."""


class Connection:
    """An admin client, for many threads. Keep it until its futures have answered: they end with it."""

    def __init__(self, kafka: Mapping[str, str], client_id: str = "reconsume-admin") -> None:
        """Take the user's properties. Raises ConfigError if librdkafka refuses one of them."""
        self.kafka, self.client_id = dict(kafka), client_id
        self._reason = ""
        # Weak: a client that held its owner would live, with its threads, until a collection of cycles, and a sidecar
        # makes next to none.
        note = weakref.WeakMethod(self._note)
        config: dict[str, Any] = {
            "client.id": client_id,
            "log_level": 0,  # errors come back from the calls; librdkafka's own lines would mix with ours
            **kafka,
            "error_cb": lambda error: None if (alive := note()) is None else alive(error),
        }
        try:
            self.client = make_client(AdminClient, config)
        except KafkaException as error:
            raise ConfigError([f"kafka: {sentence_of(error)}"]) from error

    def _note(self, error: KafkaError) -> None:
        # "All brokers are down" says less than the refused connection before it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._reason = error.str()

    def answer(self, future: Future[Any], within: float = ANSWER_SECONDS) -> Any:
        """Return the result in bounded time, whatever the client does. Raises KafkaException."""
        deadline = time.monotonic() + within + 1  # librdkafka itself gives up earlier
        while True:
            try:
                failure = future.exception(POLL_SECONDS)
                break
            except FutureTimeoutError:
                self.client.poll(0)  # runs `_note`, which learns why a broker cannot be reached
                if time.monotonic() >= deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
        if failure is None:
            return future.result()
        # A copy: the future's own error, once raised, would hold the future and these frames in a cycle.
        raise KafkaException(*failure.args) if isinstance(failure, KafkaException) else RuntimeError(repr(failure))

    def errors_of(self, futures: Mapping[K, Future[Any]]) -> dict[K, KafkaError | None]:
        """Return the error of each request that is refused, None for each that was carried out."""
        errors = dict[K, KafkaError | None]()
        for key, future in futures.items():
            try:
                self.answer(future, 2 * ANSWER_SECONDS)
            except KafkaException as failure:
                errors[key] = failure.args[0]
            else:
                errors[key] = None
        return errors

    def fault(self, what: str, error: KafkaException) -> BrokerError:
        """Return the exception to raise for a request that failed."""
        if code_of(error) in DENIED:
            return DeniedError(f"this user may not see {what} ({sentence_of(error)})")
        if code_of(error) in SILENT:
            return SilentError(self.silence())
        return BrokerError(f"cannot ask for {what}: {sentence_of(error)} ({error.args[0].name()})")

    def silence(self) -> str:
        """Return the sentence to say when no broker has answered."""
        reason = f" ({self._reason})" if self._reason else ""
        return f"no broker of {self.kafka['bootstrap.servers']} answered within {ANSWER_SECONDS:.0f} s{reason}"

    def answers(
        self,
        what: Callable[[K], str],
        keys: Collection[K],
        send: Callable[[Collection[K]], Mapping[K, Future[Any]]],
        accepted: frozenset[int] = frozenset(),
        within: float = ANSWER_SECONDS,
    ) -> tuple[dict[K, Any], dict[K, int]]:
        """Return the answer for each key, and the error codes of those that were refused with an `accepted` code.

        One request is sent for all keys, and another for a key whose error passes by itself. Raises BrokerError.
        """
        results: dict[K, Any] = {}
        refused: dict[K, int] = {}

        def ask(key: K, sent: list[Future[Any]]) -> Any:
            return self.answer(sent.pop() if sent else send([key])[key], within)

        for key, future in (send(keys) if keys else {}).items():
            try:
                results[key] = retry_transient(partial(ask, key, [future]), within, busy)
            except KafkaException as error:
                if code_of(error) not in accepted:
                    raise self.fault(what(key), error) from error
                refused[key] = code_of(error)
        return results, refused


SPECS: Mapping[Offset, Callable[[], OffsetSpec]] = {
    Offset.BEGIN: OffsetSpec.earliest,
    Offset.END: OffsetSpec.latest,
}
ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND})
STABLE_SECONDS = 30.0
"""Seconds to wait for commits that are under way. Reconsume's transactions end, or are ended, after 10 s."""
OFFSETS_KEPT = 7 * 86_400_000
"""ms. Kafka's default of `offsets.retention.minutes`, used if this user may not see the brokers' value."""


class Cluster(Connection):
    """A connection to the cluster that only asks."""

    # --- topics and brokers ------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str]) -> tuple[dict[str, Topic], frozenset[str]]:
        """Return the topics that exist, and the names of those that this user may not see. Never creates one."""

        def send(some: Collection[str]) -> Mapping[str, Future[Any]]:
            return self.client.describe_topics(
                TopicCollection(list(some)), include_authorized_operations=True, request_timeout=ANSWER_SECONDS
            )

        descriptions, refused = self.answers("topic {}".format, sorted(set(names)), send, DENIED | ABSENT)
        denied = frozenset(name for name, code in refused.items() if code in DENIED)
        return {name: topic_of(described) for name, described in descriptions.items()}, denied

    def topic_names(self) -> frozenset[str]:
        """Return the names of all topics that this user may see."""
        return frozenset(self._listing("the list of topics").topics)

    def partitions_by_topic(self) -> dict[str, list[PartitionName]]:
        """Return the partitions that have a leader, of every topic that this user may see."""
        return {
            name: [(name, number) for number, one in sorted(topic.partitions.items()) if one.leader >= 0]
            for name, topic in self._listing("the list of topics").topics.items()
        }

    def _listing(self, what: str) -> ClusterMetadata:
        """Return all topics and brokers. Raises BrokerError, which names `what` was asked for."""
        try:
            return self.client.list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise self.fault(what, error) from error

    def existing(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return the topics that exist, without their settings, which a sidecar's own user may not see.

        Raises DeniedError if this user may not see the topics.
        """
        topics, denied = self.topics(names)
        if denied:
            raise DeniedError(f"this user may not see {', '.join(sorted(denied))}")
        return topics

    def visible(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return the topics that exist and that this user may see: for those that need not exist, since an absent one
        looks like a hidden one."""
        return self.topics(names)[0]

    def find_topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return the topics that exist, with their settings. Raises DeniedError if this user may not see them."""
        topics = self.existing(names)
        configs = self._configs(ResourceType.TOPIC, topics, frozenset())
        return {name: topic._replace(config=configs[name]) for name, topic in topics.items()}

    def settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of those topics that exist and whose settings this user may see."""
        return self._configs(ResourceType.TOPIC, names, DENIED | ABSENT)

    def broker_settings(self, name: str) -> list[str]:
        """Return each broker's value of a setting, where this user may see it."""
        return [config[name] for config in self.broker_configs() if name in config]

    def broker_configs(self) -> list[Mapping[str, str]]:
        """Return each broker's settings, where this user may see them."""
        brokers = self._listing("the list of brokers").brokers
        return list(self._configs(ResourceType.BROKER, map(str, brokers), DENIED | ABSENT).values())

    def offset_retention(self) -> int:
        """Return how long Kafka keeps committed offsets, in ms: the lowest value of all brokers, or Kafka's default."""
        told = self.broker_settings("offsets.retention.minutes")
        return min((int(minutes) * 60_000 for minutes in told if minutes.isdecimal()), default=OFFSETS_KEPT)

    def _configs(self, kind: ResourceType, names: Iterable[str], accepted: frozenset[int]) -> dict[str, dict[str, str]]:
        def send(some: Collection[str]) -> Mapping[str, Future[Any]]:
            resources = [ConfigResource(kind, name) for name in some]
            futures = self.client.describe_configs(resources, request_timeout=ANSWER_SECONDS)
            return {resource.name: future for resource, future in futures.items()}

        configs, _ = self.answers("the settings of {}".format, sorted(set(names)), send, accepted)
        return {name: {key: entry.value or "" for key, entry in entries.items()} for name, entries in configs.items()}

    # --- offsets -----------------------------------------------------------------------------------------------------

    def offsets(
        self,
        partitions: Iterable[PartitionName],
        which: Offset | int | Mapping[PartitionName, int],
        *,
        committed: bool = True,
    ) -> dict[PartitionName, ListedOffset]:
        """Return an offset of each partition.

        If `which` is a number, it is a time (epoch ms), and the first offset at that time or later is returned; a
        mapping has a time for each partition. If `committed` is False, records of open transactions count too.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def spec(partition: PartitionName) -> OffsetSpec:
            if isinstance(which, Offset):
                return SPECS[which]()
            at: OffsetSpec = OffsetSpec.for_timestamp(which[partition] if isinstance(which, Mapping) else which)
            return at

        def send(some: Collection[PartitionName]) -> Mapping[PartitionName, Future[Any]]:
            asked = {TopicPartition(*partition): spec(partition) for partition in some}
            futures = self.client.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_SECONDS)
            return {(partition.topic, partition.partition): future for partition, future in futures.items()}

        listing, _ = self.answers(lambda partition: f"the offsets of {partition[0]}", tuple(partitions), send)
        return {partition: ListedOffset(listed.offset, listed.timestamp) for partition, listed in listing.items()}

    def spans(self, partitions: Iterable[PartitionName], *, committed: bool = True) -> dict[PartitionName, Span]:
        """Return the first offset of each partition, and the end of what is committed, or of all records."""
        begins = self.offsets(wanted := tuple(partitions), Offset.BEGIN)
        return {
            partition: Span(begins[partition].offset, end.offset)
            for partition, end in self.offsets(wanted, Offset.END, committed=committed).items()
        }

    def unread(
        self, partitions: Iterable[PartitionName], done: Mapping[PartitionName, int]
    ) -> dict[PartitionName, int]:
        """Return how many offsets lie behind what is `done`, of each partition that has such. Markers count too."""
        spans = sorted(self.spans(partitions).items())
        return {one: count for one, (begin, end) in spans if (count := end - max(begin, done.get(one, 0))) > 0}

    def spans_since(
        self, spans: Mapping[PartitionName, Span], since: int | None, *, committed: bool = True
    ) -> dict[PartitionName, Span]:
        """Return the spans from the first record at or after `since` (epoch ms); the same spans if it is None."""
        if since is None:
            return dict(spans)
        firsts = self.offsets(spans, max(0, since), committed=committed)
        return {  # negative: all records are older
            partition: Span(end if firsts[partition].offset < 0 else max(begin, firsts[partition].offset), end)
            for partition, (begin, end) in spans.items()
        }

    # --- groups ------------------------------------------------------------------------------------------------------

    def group_names(self) -> tuple[str, ...]:
        """Return the names of the consumer groups that this user may see."""
        try:
            listing = self.answer(self.client.list_consumer_groups(request_timeout=ANSWER_SECONDS))
        except KafkaException as error:
            raise self.fault("the list of groups", error) from error
        return tuple(sorted(group.group_id for group in listing.valid))

    def groups(self, names: Iterable[str]) -> dict[str, ConsumerGroup]:
        """Return the state of the groups, without those that this user may not see."""

        def send(some: Collection[str]) -> Mapping[str, Future[Any]]:
            return self.client.describe_consumer_groups(
                list(some), include_authorized_operations=True, request_timeout=FIRST_ANSWER_SECONDS
            )

        asked = sorted(set(names))
        descriptions, refused = self.answers("group {}".format, asked, send, DENIED | ABSENT, FIRST_ANSWER_SECONDS)
        absent = {name: ConsumerGroup(False, (), frozenset()) for name, code in refused.items() if code in ABSENT}
        return {name: group_of(described) for name, described in descriptions.items()} | absent

    def committed(self, group: str, partitions: Iterable[PartitionName]) -> dict[PartitionName, int]:
        """Return the offsets of these partitions that a group has committed."""
        with CommittedOffsets(self, group) as reader:
            return {(one.topic, one.partition): one.offset for one in reader.read(partitions)}

    def progress(
        self, group: str, partitions: Iterable[PartitionName], *, stable: bool = False
    ) -> dict[PartitionName, Progress]:
        """Return the progress that a group has committed on these partitions: the offsets, and what is done above.

        `stable`: wait for commits that are under way, for STABLE_SECONDS.
        """
        wanted = tuple(partitions)
        if not wanted:
            return {}  # which costs no client
        with CommittedOffsets(self, group, stable=stable) as reader:
            return reader.progress(wanted)


class CommittedOffsets:
    """A client that asks for the offsets of one consumer group, any number of times. Used by one thread at a time.

    A context manager, whose end returns the client (`return_client`). `stable`: wait for commits that are under
    way, for STABLE_SECONDS.
    """

    def __init__(self, cluster: Cluster, group: str, *, stable: bool = False) -> None:
        self._cluster, self._group = cluster, group
        # With read_committed an open transaction delays the answer.
        level, self._within = ("committed", STABLE_SECONDS) if stable else ("uncommitted", FIRST_ANSWER_SECONDS)
        config = {**reader_config(cluster.kafka, group, cluster.client_id), "isolation.level": f"read_{level}"}
        # A consumer that never joins. The admin client's own request ends the process (segmentation fault) if the
        # group's coordinator has just moved (librdkafka 2.16, a null group in rd_kafka_handle_OffsetFetch).
        self._config = {**config, "log_level": 0}
        self._consumer = take_client(Consumer, self._config)

    def __enter__(self) -> CommittedOffsets:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(is_usable=kind is None)

    def read(self, partitions: Iterable[PartitionName]) -> list[TopicPartition]:
        """Return the committed offsets of those partitions that have one. Raises BrokerError."""
        asked = [TopicPartition(*partition) for partition in partitions]
        try:
            answers = committed_of(self._consumer, asked, self._within, settling) if asked else []
        except KafkaException as error:
            raise self._cluster.fault(f"the progress of group {self._group}", error) from error
        return [partition for partition in answers if partition.offset >= 0]

    def progress(self, partitions: Iterable[PartitionName]) -> dict[PartitionName, Progress]:
        """Return the progress on these partitions: the offsets, and what is done above. Raises BrokerError."""
        sources = [(Partition(one.topic, one.partition), one) for one in self.read(partitions)]
        return {source: decode(source, one.offset, one.metadata) for source, one in sources}

    def close(self, *, is_usable: bool = True) -> None:
        """Return the client (`return_client`). `is_usable`: False after an error."""
        return_client(self._consumer, self._config, is_usable=is_usable)
