"""Read the dead letters of another system from its topic on Kafka, for `dlq import --from` (contract 4.8).

`ForeignTopic` is read twice by one import: once for its plan, once to carry it out. Both read up to the end that the
topic had when the import began. Nothing is written or committed there. A record becomes a dead letter if its headers
name a record of one of the group's topics that Kafka has, or once had; every other record is left, with the reason. Its
Letter then has no retry state, and its id is its position in the foreign topic.

The topic is anybody's: `topics/foreign_letters.py` reads its headers, and an import takes `MOST_LETTERS_READ` of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.dead_letters import CLIENT, SILENCE, DeadLetters
from reconsume.sidecar.dlq.letters import Letter
from reconsume.sidecar.errors import ConfigError, ContractError
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient, partition_of
from reconsume.topics.foreign_letters import ForeignSystem, foreign_dead_letter, foreign_reason
from reconsume.topics.reasons import reason_class
from reconsume.topics.retry_headers import RetryState

MOST_LETTERS_READ = 500_000
"""Records that one import takes. The ids of all of them are kept until it ends."""


class ForeignTopic:
    """The dead letters in a topic of another system. `since`: epoch ms of the record there; None: from the beginning.

    `reasons`: classes of which a record must have one; empty: any. Making one raises ContractError if the topic does
    not exist, BrokerError and DeniedError.
    """

    is_foreign = True

    def __init__(
        self, letters: DeadLetters, system: ForeignSystem, topic: str, since: int | None, reasons: Collection[str]
    ) -> None:
        self._letters, self._system, self._reasons = letters, system, reasons
        self.what = topic
        cluster = letters.cluster
        topics = cluster.existing({topic, *letters.policy.topics})
        if topic not in topics:
            raise ContractError(f"topic {topic} does not exist")
        every = cluster.spans(
            (one for described in topics.values() for one in described.all_partitions), committed=False
        )
        self._ends: Mapping[PartitionName, int] = {one: span.end for one, span in every.items()}
        read = cluster.spans(topics[topic].all_partitions)
        self._spans: Mapping[PartitionName, Span] = cluster.spans_since(read, since)

    def read(self) -> Iterator[Letter]:
        """Yield a Letter for each record that the filter selects. Raises BrokerError, and ConfigError if it is too
        many."""
        ids = set[int]()
        with ScanClient(
            self._letters.cluster.kafka, self._letters.names.redrive_group, CLIENT, Fetches.LITTLE
        ) as client:
            bounds = Bounds(patience=SILENCE)
            selected = 0
            for message in client.scan(self._spans, bounds, expected=f"the records of {self.what}"):
                record = to_record(message, Partition(*partition_of(message)), 0, None)
                if not self._selects(record):
                    continue
                selected += 1
                if selected > MOST_LETTERS_READ:
                    text = f"{self.what}: has more than {MOST_LETTERS_READ} such records: use --since or --reason"
                    raise ConfigError([text])
                letter = self._letter(record)
                if letter.retry_state is not None:
                    if hash(letter.id) in ids:
                        letter = Letter(record, None, "the topic has an earlier dead letter of the same record")
                    ids.add(hash(letter.id))
                yield letter

    def _selects(self, record: Record) -> bool:
        """Whether the record has one of the classes that are asked for."""
        return not self._reasons or reason_class(foreign_reason(record.headers or [], self._system)) in self._reasons

    def _letter(self, record: Record) -> Letter:
        """Return the record as a dead letter of the group, or without a retry state and with the reason."""
        if record.headers is None:
            return Letter(record, None, "its headers cannot be read")
        position = (*record.source, record.offset)
        state = foreign_dead_letter(record.headers, self._system, position, record.timestamp, now().wall_ms)
        if not isinstance(state, RetryState):
            return Letter(record, None, state)
        if state.topic not in self._letters.policy.topics:
            # For RocketMQ this is the topic that is read.
            return Letter(record, None, f"its record is of topic {state.topic}, which is not in this configuration")
        _, partition, offset = state.id.rsplit(":", 2)
        if int(offset) >= self._ends.get((state.topic, int(partition)), 0):
            return Letter(record, None, f"topic {state.topic} has no record with its partition and offset")
        return Letter(record, state)
