"""Read the policy topic for commands, the API, the view and `doctor`: a partition from an offset on, and owners' notes.

The policy topic has two partitions. Partition 0 is the control log (`group_policy/control_log.py` reads and writes it).
In partition 1 owners note in their transactions what they have done (`topics/owner_notes.py`): what was settled before
its turn, how far decisions are, and which resets were carried out. `NotesLog` is the one reader of it for all who are
not owners; owners read it up to the high watermark (`owner_reader.py`), because they may not miss a note.

Every call blocks, ends within seconds, and raises BrokerError otherwise. One thread uses a `NotesLog` at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from confluent_kafka import Message

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient
from reconsume.topics.names import Names
from reconsume.topics.owner_notes import PARTITION as NOTES
from reconsume.topics.owner_notes import OwnerNotes
from reconsume.topics.position_ranges import RESET, PartitionResets, Resets, topic_digest


def messages_from(
    cluster: Cluster, names: Names, partition: int, begin: int, within: float, end: int | None = None
) -> Iterator[Message]:
    """Yield the committed records of a partition of the policy topic from an offset on, up to `end`, or its end now.

    A partition that ends before `begin` belongs to a topic that was created again: it is read from its first record.
    """
    spans = cluster.spans([(names.policy, partition)])
    wanted = {
        source: Span(span.begin if begin > span.end else max(begin, span.begin), span.end if end is None else end)
        for source, span in spans.items()
    }
    if wanted and all(span.begin >= span.end for span in wanted.values()):
        return  # nothing is new: a hold looks four times a second
    with ScanClient(cluster.kafka, names.retry_group, cluster.client_id, Fetches.LITTLE) as client:
        yield from client.scan(wanted, Bounds(seconds=within), expected=names.policy)


class NotesLog:
    """What owners have noted, read on at each call.

    `kept`: the prefix of the keys of those notes that are kept: of others nothing stays in memory. `wanted`: as in
    `OwnerNotes`.
    """

    def __init__(
        self, cluster: Cluster, names: Names, kept: bytes, wanted: Collection[Partition] | None = None
    ) -> None:
        self.notes = OwnerNotes(wanted)
        self._cluster, self._names, self._kept = cluster, names, kept
        self._next_offset, self._is_there = 0, False

    def is_there(self) -> bool:
        """Whether the policy topic has the partition for notes: a topic that another tool has made may lack it."""
        if not self._is_there:
            topic = self._cluster.existing([self._names.policy]).get(self._names.policy)
            self._is_there = topic is not None and topic.partitions > NOTES
        return self._is_there

    def read_on(self, within: float = ANSWER_SECONDS) -> OwnerNotes:
        """Take in what was noted since the last call, and return all. Raises DeniedError if a right is missing."""
        if self.is_there():
            for message in messages_from(self._cluster, self._names, NOTES, self._next_offset, within):
                self._next_offset = (message.offset() or 0) + 1
                if (message.key() or b"").startswith(self._kept):
                    self.notes.take(message.key(), message.value())
        return self.notes

    def resets_of(self, source: Partition, topic_id: str) -> PartitionResets | None:
        """Return what is noted of resets in a partition of the topic with this id (`topic_digest`); None if nothing."""
        known = self.notes.of(source).resets
        return known if known is not None and known.topic == topic_id else None

    def present_resets(self) -> Resets:
        """Return the resets of the topics as they are now: a recreated topic has had none."""
        noted = {source: one.resets for source, one in self.notes.partitions.items() if one.resets is not None}
        topics = self._cluster.topics({source.topic for source in noted})[0] if noted else {}
        return {
            source: resets
            for source, resets in noted.items()
            if source.topic in topics and topic_digest(topics[source.topic].id) == resets.topic
        }


def read_present_resets(cluster: Cluster, names: Names) -> Resets:
    """Return what resets say of the records of a group now; nothing without a policy topic."""
    log = NotesLog(cluster, names, RESET)
    log.read_on()
    return log.present_resets()
