"""The two clients that read queues: one follows what is committed, the other reads whatever lies there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import Properties, follower_config, whole_fetches
from reconsume.sidecar.kafka.credentials.new_client import new_client
from reconsume.sidecar.kafka.credentials.registry import ClientCredentials
from reconsume.sidecar.kafka.errors import sentence_of
from reconsume.sidecar.kafka.queues.offset_reads import closed
from reconsume.sidecar.observability.thread_watch import StopRequest

EDGES_WITHIN = 2.0
"""Seconds for the request for the ends of a log."""
NO_PARTITION = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
"""Answers by which a partition does not exist."""


class NoEdges(Enum):
    """Why a log has no edges: there is no such partition, or Kafka does not tell, as while its leader moves."""

    MISSING = "missing"
    UNTOLD = "untold"


class QueueClients:
    """The clients of one reader of queues, on its thread. In a group without queues there are none."""

    def __init__(
        self, kafka: Properties, group: str, client_id: str, credentials: ClientCredentials, stopping: StopRequest
    ) -> None:
        config = whole_fetches(follower_config(kafka, group, client_id))
        # A position that the log has no more is a fault to look at: a reset would pass over what waits.
        self._config = {**config, "auto.offset.reset": "error"}
        self._credentials, self._stopping = credentials, stopping
        self._has_both = False
        self._followed = set[Partition]()
        """The queues that `following` is assigned."""
        self.following: Consumer
        """Reads what is committed, from where the group has read each queue to."""
        self.reader: Consumer
        """Reads single records, and asks. It waits for no open transaction: what it reads is known to be committed."""
        self.last_error = ""

    def ready(self, begin: Callable[[], None]) -> bool:
        """Make the clients if there are none, or others are to be made of newer credentials; False: a stop came.

        `begin` is called once others were made, which read nothing yet.
        """
        if self._has_both and self._credentials.apply_to(self.following, self.reader):
            return True
        self.drop()
        made = new_client(Consumer, self._config, self._credentials, self._stopping)
        other = {**self._config, "isolation.level": "read_uncommitted"}
        reader = None if made is None else new_client(Consumer, other, self._credentials, self._stopping)
        if made is None or reader is None:
            closed(made)
            return False
        self.following, self.reader, self._has_both = made, reader, True
        begin()
        return True

    def keep_up(self) -> None:
        """Take newer credentials although nothing is read: what was made of former ones ends, and the clients of others
        get theirs only after this one (`CredentialWatcher`)."""
        if self._credentials.due:
            self.drop()
            self._credentials.adopt(self._config)

    def drop(self) -> None:
        """Close the clients, if there are any."""
        if self._has_both:
            closed(self.following)
            closed(self.reader)
            self._has_both = False
            self._followed.clear()

    def follow(self, queue: Partition, offset: int) -> None:
        """Follow a queue from an offset on."""
        self.leave(queue)
        self.following.incremental_assign([TopicPartition(*queue, offset)])
        self._followed.add(queue)

    def follow_all(self, offsets: Mapping[Partition, int]) -> None:
        """Follow queues of which none is followed, from these offsets on: 10 000 one by one take ten times as long."""
        if offsets:
            self.following.incremental_assign([TopicPartition(*queue, offset) for queue, offset in offsets.items()])
            self._followed.update(offsets)

    def leave(self, queue: Partition) -> None:
        """Follow a queue no more, if it was followed."""
        if queue in self._followed:
            self.following.incremental_unassign([TopicPartition(*queue)])
            self._followed.discard(queue)

    def edges(self, queue: Partition) -> tuple[int, int] | NoEdges:
        """Return where the log of a queue begins and ends now. An error is noted as the last one."""
        try:
            low, high = self.reader.get_watermark_offsets(TopicPartition(*queue), timeout=EDGES_WITHIN, cached=False)
        except KafkaException as failure:
            self.last_error = f"{queue}: {sentence_of(failure)}"
            return NoEdges.MISSING if failure.args[0].code() in NO_PARTITION else NoEdges.UNTOLD
        return NoEdges.UNTOLD if OFFSET_INVALID in (low, high) else (low, high)

    def exist(self, queue: Partition) -> bool:
        """Return whether a queue exists; True if Kafka does not say."""
        return self.edges(queue) is not NoEdges.MISSING
