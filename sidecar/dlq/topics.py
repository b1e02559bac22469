"""A group's dead letter topics as they are now: their partitions, and what is known of earlier redrives.

Nothing is changed here. A redrive asks only after it has fenced all others; a dry run only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ConfigResource,
    ResourceType,
)

from sidecar.clock import now
from sidecar.core.record import Partition
from sidecar.dlq.redrive_history import NewerPast, RedriveHistory, decode_past
from sidecar.errors import BrokerError, ContractError
from sidecar.kafka.admin.topics import Admin, Offset
from sidecar.kafka.client_config import FETCH, reader_config
from sidecar.kafka.errors import (
    ANSWER_SECONDS,
    CONNECTION,
    COORDINATOR,
    OPEN_TRANSACTION,
    passing,
    raise_partition_errors,
    retry_transient,
    sentence_of,
)
from topics.names import Names

CLIENT = "reconsume-dlq"
_NOWHERE = logging.getLogger("reconsume.nowhere")
_NOWHERE.addHandler(logging.NullHandler())
_NOWHERE.propagate = False
QUIET: Mapping[str, object] = {"log_level": 0, "logger": _NOWHERE}
"""Settings for a command's Kafka clients. What matters comes back as an error, and librdkafka's own log lines would mix
with the command's output. librdkafka logs that it was fenced at any log level."""
CLOCKS = 3_600_000
"""ms by which the clocks of sidecars, brokers and this machine may differ."""
COORDINATOR_SECONDS = 30.0
"""Seconds that the group's coordinator may be unavailable: a hanging transaction is open for 10 s, a broker restarts in
20."""
RETENTION = 7 * 86_400_000
"""ms. Kafka's default of `offsets.retention.minutes`, used if the brokers' own value is not known."""


_PASSING = passing(COORDINATOR, OPEN_TRANSACTION, CONNECTION, frozenset({KafkaError._TIMED_OUT}))
"""Transient errors of the first request to a group."""


class Span(NamedTuple):
    """The offsets of a partition from `begin` up to `end`. `topic` is the id that Kafka gave its topic."""

    begin: int
    end: int
    topic: str = ""


Layout = Mapping[Partition, Span]


class DlqTopics:
    """The dead letter topics of one group. Every method raises BrokerError if Kafka does not answer."""

    def __init__(self, kafka: Mapping[str, str], names: Names, mains: Iterable[str], fetch: int = FETCH) -> None:
        """Remember the group's topics. `fetch`: bytes that a scan fetches at a time, as they are stored in the log."""
        self.names, self.fetch = names, fetch
        self.topics = names.dlqs_of(tuple(mains))
        self.kafka = kafka
        self._admin = Admin(kafka)

    def reader(self) -> Consumer:
        """Return a client of the redrive group that never joins it. The caller closes it."""
        return Consumer({**reader_config(self.kafka, self.names.redrive_group, CLIENT), **QUIET})

    def layout(self) -> Layout:
        """Return the span of every partition. Raises ContractError if a topic does not exist."""
        found = self._admin.find(self.topics)
        self.expect(found)
        counts = {name: topic.partitions for name, topic in found.items()}
        begins, ends = self._admin.offsets(counts, Offset.BEGIN), self._admin.offsets(counts, Offset.END)
        return {Partition(*place): Span(begins[place].offset, ends[place].offset, found[place[0]].id) for place in ends}

    def expect(self, found: Iterable[str]) -> None:
        """Raise ContractError if a dead letter topic is missing from `found`."""
        missing = sorted(set(self.topics) - set(found))
        if missing:
            raise ContractError(f"{', '.join(missing)} does not exist; `reconsume topics apply` creates it")

    def expect_targets(self) -> None:
        """Raise ContractError if a topic that a redrive writes to does not exist."""
        targets = {self.names.ready, self.names.events}
        missing = sorted(targets - self._admin.find(targets).keys())
        if missing:
            raise ContractError(f"{' and '.join(missing)} must exist before anything is redriven; "
                                "`reconsume topics apply` creates what is missing")  # fmt: skip

    def since(self, layout: Layout, since: int) -> Layout:
        """Return the layout without the records before the first one at or after `since` (epoch ms)."""
        if since <= 0 or not layout:
            return layout
        asked = [TopicPartition(place.topic, place.number, since) for place in layout]
        consumer = self.reader()
        try:
            found = consumer.offsets_for_times(asked, timeout=ANSWER_SECONDS)
        except KafkaException as failure:
            raise BrokerError(f"the dead letter topics cannot be searched by time: {sentence_of(failure)}") from failure
        finally:
            consumer.close()
        starts = {Partition(place.topic, place.partition): place.offset for place in found}
        # A negative offset means that no record is so new.
        return {
            place: span._replace(
                begin=min(span.end, max(span.begin, starts[place])) if starts[place] >= 0 else span.end
            )
            for place, span in layout.items()
        }

    def pasts(
        self, layout: Layout, reader: Consumer | None = None, *, only_shown: bool = False
    ) -> dict[Partition, RedriveHistory]:
        """Return what is known of redrives, by partition. Wait for a transaction that is still open.

        Raises ContractError if a newer version has stored the history of a partition. With `only_shown` nothing is
        known of such a partition: its letters are listed as forgotten, and no decision may depend on that.
        """
        consumer = reader or self.reader()
        places = [TopicPartition(place.topic, place.number) for place in layout]
        try:
            return self._told(layout, self._committed(consumer, places), only_shown)
        finally:
            if reader is None:
                consumer.close()

    def _committed(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        """Return what is committed. Retry while the group's coordinator is not available yet."""
        ask = partial(consumer.committed, places, timeout=ANSWER_SECONDS)
        try:
            return retry_transient(lambda: raise_partition_errors(ask()), COORDINATOR_SECONDS, _PASSING)
        except KafkaException as failure:
            raise BrokerError(
                f"the progress of group {self.names.redrive_group} cannot be read: {sentence_of(failure)}"
            ) from failure

    def _told(
        self, layout: Layout, committed: Iterable[TopicPartition], only_shown: bool
    ) -> dict[Partition, RedriveHistory]:
        wall, pasts = now().wall, dict[Partition, RedriveHistory]()
        kept: int | None = None
        for found in committed:
            place = Partition(found.topic, found.partition)
            history = decode_past(found.metadata)
            if isinstance(history, NewerPast):
                history = self._unread(place, only_shown)
            if history is None or history.topic != layout[place].topic:
                # An operator has reset the offset: nothing is known of the letters that are there today.
                foreign = found.offset >= 0 and history is None
                kept = self._offsets_kept() if kept is None and not foreign else kept
                history = RedriveHistory(layout[place].topic, wall if foreign else wall - max(0, (kept or 0) - CLOCKS))
            pasts[place] = history
        return pasts

    @staticmethod
    def _unread(place: Partition, only_shown: bool) -> None:
        """Raise ContractError unless `only_shown`: a newer version of Reconsume redrives here."""
        # Without the history of that version, letters could be redriven twice.
        if not only_shown:
            raise ContractError(
                f"what was redriven of {place} is kept by a newer version of Reconsume, and this one cannot read it: "
                "run `dlq` with that version; nothing was changed"
            )

    def _offsets_kept(self) -> int:
        """Return how long Kafka keeps committed offsets, in ms: the lowest value of all brokers, or the default."""
        client = AdminClient({"client.id": CLIENT, "log_level": 0, **self.kafka})
        try:
            brokers = client.list_topics(timeout=ANSWER_SECONDS).brokers
            asked = [ConfigResource(ResourceType.BROKER, str(number)) for number in brokers]
            answers = client.describe_configs(asked, request_timeout=ANSWER_SECONDS)
            told = [self._minutes(answer.result(ANSWER_SECONDS)) for answer in answers.values()]
        except KafkaException:  # it needs DESCRIBE_CONFIGS on the cluster, which few users have
            return RETENTION
        return min(told, default=RETENTION)

    @staticmethod
    def _minutes(config: Mapping[str, Any]) -> int:
        entry = config.get("offsets.retention.minutes")
        return RETENTION if entry is None else int(entry.value) * 60_000
