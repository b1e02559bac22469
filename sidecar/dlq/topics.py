"""A group's dead letter topics as they are now: their partitions, and what is known of earlier redrives.

Nothing is changed here. A redrive asks only after it has fenced all others; a dry run only reads.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.letters import Filter
from reconsume.sidecar.dlq.redrive_history import NewerPast, RedriveHistory, decode_past
from reconsume.sidecar.dlq.settlements import Settlements, read_settlements
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent
from reconsume.sidecar.kafka.admin.cluster import OFFSETS_KEPT, Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName, unled_partitions
from reconsume.sidecar.kafka.client_config import BATCH_BYTES, reader_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import (
    ANSWER_SECONDS,
    CONNECTION,
    COORDINATOR,
    OPEN_TRANSACTION,
    committed_of,
    passing,
    sentence_of,
)
from reconsume.topics.names import Names

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
SETTLED_AGAIN_S = 0.2
"""Seconds between two looks whether transactions have ended."""


_PASSING = passing(COORDINATOR, OPEN_TRANSACTION, CONNECTION, frozenset({KafkaError._TIMED_OUT}))
"""Transient errors of the first request to a group."""


POSITION = re.compile(r"(.+):([0-9]{1,9}):([0-9]{1,18})")


class Span(NamedTuple):
    """The offsets of a partition from `begin` up to `end`. `topic` is the id that Kafka gave its topic."""

    begin: int
    end: int
    topic: str = ""


Layout = Mapping[Partition, Span]


def position_in(ident: str, topics: Collection[str]) -> tuple[Partition, int] | None:
    """Return the partition and the offset that `ident` names, as `topic:partition:offset`; None if it names none in
    these topics."""
    match = POSITION.fullmatch(ident)
    return None if match is None or match[1] not in topics else (Partition(match[1], int(match[2])), int(match[3]))


def narrowed(layout: Layout, wanted: Filter, topics: Collection[str]) -> Layout:
    """Return the piece of the layout that has every letter with one of the filter's ids.

    That is less than all only if each id is a position in these topics.
    """
    positions = [position_in(ident, topics) for ident in wanted.ids]
    if not positions or None in positions:
        return layout
    offsets: dict[Partition, list[int]] = {}
    for partition, offset in filter(None, positions):
        offsets.setdefault(partition, []).append(offset)
    return {partition: _around(span, offsets.get(partition, ())) for partition, span in layout.items()}


def _around(span: Span, offsets: Collection[int]) -> Span:
    """Return the part of the span that has these offsets; an empty one if there are none."""
    if not offsets:
        return span._replace(begin=span.end)
    begin = max(span.begin, min(offsets))
    return span._replace(begin=begin, end=max(begin, min(span.end, max(offsets) + 1)))


class DlqTopics:
    """The dead letter topics of one group. Every method raises BrokerError if Kafka does not answer."""

    def __init__(
        self, kafka: Mapping[str, str], names: Names, mains: Iterable[str], say: Callable[[str], None] | None = None
    ) -> None:
        """Remember the group's topics. `say`: gets a sentence for people when partitions are left out; None: none
        may be."""
        self._say, self._left_out = say, list[PartitionName]()
        self.names = names
        self.topics = names.dlqs_of(tuple(mains))
        self.kafka = kafka
        self.cluster = Cluster(kafka, CLIENT)

    def reader(self) -> Consumer:
        """Return a client of the redrive group that never joins it. The caller closes it."""
        return make_client(Consumer, {**reader_config(self.kafka, self.names.redrive_group, CLIENT), **QUIET})

    def layout(self, *, whole: bool = False) -> Layout:
        """Return the span of every partition. Raises ContractError if a topic does not exist.

        Partitions without a leader are left out and named, if there is somebody to say it to. Unless it must be
        `whole`: then such a partition is a BrokerError.
        """
        topics = self.cluster.find(self.topics)
        self.expect(topics)
        left_out = [] if whole or self._say is None else unled_partitions(topics.values())
        self._name(left_out)
        spans = self.cluster.spans(
            {partition for topic in topics.values() for partition in topic.all_partitions}.difference(left_out)
        )
        return {Partition(*partition): Span(*span, topics[partition[0]].id) for partition, span in spans.items()}

    def settled_layout(self) -> Layout:
        """Return the span of every partition, once each transaction has ended that has written there by now.

        Nobody can read yet what lies behind an open one, and it would be taken for absent. Raises as `layout` does, and
        BrokerError if one is open for `COORDINATOR_SECONDS`.
        """
        deadline = time.monotonic() + COORDINATOR_SECONDS
        layout = self.layout(whole=True)
        listed = self.cluster.offsets(layout, Offset.END, committed=False)
        ends = {partition: end.offset for partition, end in listed.items()}
        while open_ := [partition for partition, span in layout.items() if span.end < ends.get(partition, 0)]:
            if time.monotonic() > deadline:
                text = "a transaction is open in {} for {:g} s, and what lies behind it cannot be read: try it again"
                raise BrokerError(text.format(open_[0], COORDINATOR_SECONDS))
            time.sleep(SETTLED_AGAIN_S)
            layout = self.layout(whole=True)
        return layout

    def _name(self, left_out: list[PartitionName]) -> None:
        """Say once which partitions are left out."""
        if left_out and left_out != self._left_out and self._say is not None:
            names = ", ".join(f"{topic}[{number}]" for topic, number in left_out)
            self._say(f"left out, as they have no leader now: {names}; run this again when they have one")
        self._left_out = left_out

    def expect(self, topics: Iterable[str]) -> None:
        """Raise ContractError if a dead letter topic is missing from `topics`."""
        missing = sorted(set(self.topics) - set(topics))
        if missing:
            raise ContractError(absent(missing))

    def expect_targets(self) -> None:
        """Raise ContractError if a topic that a redrive writes to does not exist."""
        targets = {self.names.ready, self.names.events}
        missing = sorted(targets - self.cluster.existing(targets).keys())
        if missing:
            raise ContractError(f"nothing can be redriven: {absent(missing)}")

    def batch_limit(self, topics: Iterable[str]) -> int:
        """Return the bytes that a batch of records may have in each of these topics, as far as this user may see it."""
        settings = self.cluster.settings(topics).values()
        limits = [int(one["max.message.bytes"]) for one in settings if one.get("max.message.bytes", "").isdecimal()]
        return max(1, min(limits, default=BATCH_BYTES))

    def since(self, layout: Layout, since: int) -> Layout:
        """Return the layout without the records before the first one at or after `since` (epoch ms)."""
        if since <= 0 or not layout:
            return layout
        starts = {partition: listed.offset for partition, listed in self.cluster.offsets(layout, since).items()}
        # A negative offset means that no record is so new.
        return {
            partition: span._replace(
                begin=min(span.end, max(span.begin, starts[partition])) if starts[partition] >= 0 else span.end
            )
            for partition, span in layout.items()
        }

    def pasts(
        self, layout: Layout, reader: Consumer | None = None, *, only_shown: bool = False, dismissals: bool = True
    ) -> dict[Partition, RedriveHistory]:
        """Return what is known of redrives, by partition. Wait for a transaction that is still open.

        Raises ContractError if a newer version has stored the history of a partition. With `only_shown` nothing is
        known of such a partition: its letters are listed as forgotten, and no decision may depend on that. Without
        `dismissals` no letter counts as dismissed.
        """
        consumer = reader or self.reader()
        partitions = [TopicPartition(partition.topic, partition.number) for partition in layout]
        try:
            pasts = self._histories(layout, self._committed(consumer, partitions), only_shown)
        finally:
            if reader is None:
                consumer.close()
        dismissed = self.settlements().dismissed if dismissals else {}
        return {partition: replace(history, dismissed=dismissed) for partition, history in pasts.items()}

    def _committed(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return what is committed. Retry while the group's coordinator is not available yet."""
        try:
            return committed_of(consumer, partitions, COORDINATOR_SECONDS, _PASSING, each=ANSWER_SECONDS)
        except KafkaException as failure:
            raise BrokerError(
                f"the progress of group {self.names.redrive_group} cannot be read: {sentence_of(failure)}"
            ) from failure

    def _histories(
        self, layout: Layout, committed: Iterable[TopicPartition], only_shown: bool
    ) -> dict[Partition, RedriveHistory]:
        wall, pasts = now().wall_ms, dict[Partition, RedriveHistory]()
        kept: int | None = None
        for position in committed:
            partition = Partition(position.topic, position.partition)
            history = decode_past(position.metadata)
            if isinstance(history, NewerPast):
                history = self._unread(partition, only_shown)
            if history is None or history.topic != layout[partition].topic:
                # An operator has reset the offset: nothing is known of the letters that are there today.
                foreign = position.offset >= 0 and history is None
                kept = self._retention() if kept is None and not foreign else kept
                history = RedriveHistory(
                    layout[partition].topic, wall if foreign else wall - max(0, (kept or 0) - CLOCKS)
                )
            pasts[partition] = history
        return pasts

    def settlements(self) -> Settlements:
        """Return what people have settled, as the policy topic has it now."""
        return read_settlements(self.kafka, self.names)

    @staticmethod
    def _unread(partition: Partition, only_shown: bool) -> None:
        """Raise ContractError unless `only_shown`: a newer version of Reconsume redrives here."""
        # Without the history of that version, letters could be redriven twice.
        if not only_shown:
            raise ContractError(
                f"what was redriven of {partition} is kept by a newer version of Reconsume, and this one cannot read "
                "it: run `dlq` with that version; nothing was changed"
            )

    def _retention(self) -> int:
        """Return how long Kafka keeps committed offsets, in ms."""
        try:
            return self.cluster.offset_retention()
        except BrokerError:
            return OFFSETS_KEPT
