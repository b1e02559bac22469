"""The places of redriven letters among the records of their keys, in a group whose order survives long waits.

A letter goes behind everything of its key that was appended before it is redriven, also what no instance has read yet:
its order is where its main partition ends. Of letters with the same end, those of a later redrive are behind those of
an earlier one, because their sequence numbers begin where the queue ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.letters import Letter
from reconsume.sidecar.dlq.settlements import NONE
from reconsume.sidecar.dlq.topics import CLIENT, QUIET, DlqTopics
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent
from reconsume.sidecar.kafka.client_config import follower_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, sentence_of
from reconsume.topics.group_rules import number_of
from reconsume.topics.retry_order import LARGEST_OFFSET, Order

ANY = Order(LARGEST_OFFSET, LARGEST_OFFSET)
"""An order that is none: for what a copy weighs, and where it goes."""


class KeyOrders:
    """Knows the places of letters; used by one thread.

    There are none, and letters go to the ready topic, where neither the configuration nor the group's policy has such a
    ladder. Raises ContractError if a queue topic is missing. Its maker calls `close`.
    """

    def __init__(self, there: DlqTopics, policy: Policy) -> None:
        self._kafka, self._names = there.kafka, there.names
        settlements = there.settlements() if policy.has_queues else NONE
        is_kept = policy.queued or settlements.has_ladder
        self.topics = tuple(there.names.queues_of(policy.topics)) if is_kept else ()
        topics = there.cluster.find((*self.topics, *policy.topics)) if is_kept else {}
        if missing := sorted(set(self.topics) - topics.keys()):
            raise ContractError(absent(missing))
        self._partitions = frozenset(partition for topic in topics.values() for partition in topic.all_partitions)
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """End the client."""
        if self._consumer is not None:
            self._consumer.close()

    @property
    def any(self) -> Order | None:
        """An order that only says where a copy goes."""
        return ANY if self.topics else None

    def fault_of(self, letter: Letter) -> str:
        """Return why a letter has no order, as one sentence; empty if it has one, or needs none."""
        lacking = [str(one) for one in self._pair(letter) if one not in self._partitions] if self.topics else []
        return f"there is no {' and no '.join(lacking)}" if lacking else ""

    def of(self, letters: Sequence[Letter]) -> list[Order | None]:
        """Return the order of each of these letters, which go in this order. Raises BrokerError."""
        if not self.topics:
            return [None] * len(letters)
        following: dict[Partition, Order] = {}
        orders = list[Order | None]()
        for letter in letters:
            main, queue = self._pair(letter)
            order = following.get(queue) or Order(self._end_of(main), self._end_of(queue) + 1)
            following[queue] = Order(order.offset, order.sequence + 1)
            orders.append(order)
        return orders

    def _pair(self, letter: Letter) -> tuple[Partition, Partition]:
        """Return the partition of the letter's first copy, and its queue."""
        state = letter.retry_state
        assert state is not None, "only what a redrive takes has an order"
        number = number_of(state.id)
        return Partition(state.topic, number), Partition(self._names.ordered(state.topic), number)

    def _end_of(self, partition: Partition) -> int:
        """Return where a partition ends now, whatever of it is committed."""
        if self._consumer is None:
            config = follower_config(self._kafka, self._names.redrive_group, CLIENT)
            self._consumer = make_client(Consumer, {**config, **QUIET, "isolation.level": "read_uncommitted"})
        try:
            where = TopicPartition(*partition)
            _, end = self._consumer.get_watermark_offsets(where, timeout=ANSWER_SECONDS, cached=False)
        except KafkaException as failure:
            raise BrokerError(f"the end of {partition} cannot be read: {sentence_of(failure)}") from failure
        return end
