"""The headers that a dead letter has beside the retry headers: the six of KIP-1191, and the audit of an edit."""

from __future__ import annotations

from reconsume.topics.retry_headers import Headers, RetryState

DLQ_TOPIC = "__dlq.errors.topic"
DLQ_PARTITION = "__dlq.errors.partition"
DLQ_OFFSET = "__dlq.errors.offset"
DLQ_GROUP = "__dlq.errors.group"
DLQ_DELIVERY_COUNT = "__dlq.errors.delivery.count"
DLQ_MESSAGE = "__dlq.errors.message"
DEAD_LETTER: frozenset[str] = frozenset(
    {DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_GROUP, DLQ_DELIVERY_COUNT, DLQ_MESSAGE}
)
"""The six keys of KIP-1191. Tools for share groups read a dead letter by them."""

EDITED = "RETRY_EDITED"
"""The audit header of a dead letter that was changed by hand. It is JSON with who, at (epoch ms), and the SHA-256 of
the old and the new value. It stays with the record like its own headers. A second edit adds a second one."""


def dead_letter_headers(retry_state: RetryState, group: str, deliveries: int) -> Headers:
    """Return the six `__dlq.errors.*` headers of KIP-1191. Topic, partition and offset are those of the first copy."""
    topic, partition, offset = retry_state.id.rsplit(":", 2)
    return [
        (DLQ_TOPIC, topic.encode()),
        (DLQ_PARTITION, partition.encode()),
        (DLQ_OFFSET, offset.encode()),
        (DLQ_GROUP, group.encode()),
        (DLQ_DELIVERY_COUNT, b"%d" % deliveries),
        (DLQ_MESSAGE, retry_state.reason.encode()),
    ]
