"""One record in the envelope form, which a push request and the answer to a pull share (contract 1.3, 6.2). Pure."""

from __future__ import annotations

import msgspec

from reconsume.sidecar.core.record import Record
from reconsume.sidecar.delivery.idempotency import ProducerKey
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.render_headers import DROPPED, RETRY_TRACEPARENT
from reconsume.topics.retry_headers import Headers

NOT_A_RECORDS_OWN = frozenset({RETRY_TRACEPARENT})
"""What tracing adds to a record of a main topic in memory."""


class Envelope(msgspec.Struct, gc=False, omit_defaults=True):
    """One record of the envelope form; msgspec writes bytes as base64, and no `cycle` of 0."""

    id: str
    idempotency_key: str
    times: int
    redrives: int
    topic: str
    partition: int
    offset: int
    timestamp: int
    key_base64: bytes | None
    value_base64: bytes | None
    headers: Headers
    cycle: int = 0


class Letter(msgspec.Struct, gc=False):
    """The body of the envelope form."""

    group: str
    records: list[Envelope]


def origin(record: Record) -> tuple[int, int]:
    """Return partition and offset of the first copy, from its id `topic:partition:offset`; else the present ones."""
    source, _, offset = ("" if record.retry_state is None else record.id).rpartition(":")
    partition = source.rpartition(":")[2]
    if partition.isdecimal() and offset.isdecimal() and partition.isascii() and offset.isascii():
        return int(partition), int(offset)
    return record.source.number, record.offset


def envelope(record: Record, group: str, producer_key: ProducerKey | None = None) -> Envelope:
    """Return the record in the envelope form, with its own headers but without ours.

    `group`: a Kafka name. `producer_key`: reads the text that identifies the record's effect; None: its id does.
    """
    retry_state, headers = record.retry_state, record.headers
    own = own_headers(headers, ours=retry_state is not None) if headers else []
    key, value, timestamp = record.key, record.value, record.timestamp
    # Positional arguments and few calls: every record of a batch takes this path.
    if retry_state is None and not record.range_cycle:
        (topic, number), offset = record.source, record.offset
        if not topic.isascii():
            topic = encodable(topic)
        identity = f"{topic}:{number}:{offset}"
        idempotency_key = (producer_key(record) if producer_key else None) or f"{group}/{identity}/0"
        return Envelope(identity, idempotency_key, record.again, 0, topic, number, offset, timestamp, key, value, own)
    retry_state = retry_state_of(record)
    number, offset = origin(record)
    topic, identity = encodable(retry_state.topic), encodable(retry_state.id)
    attempt = attempt_of(record)
    return Envelope(
        identity,
        (producer_key(record) if producer_key else None) or f"{group}/{identity}/{attempt.series}",
        attempt.times,
        attempt.redrives,
        topic,
        number,
        offset,
        retry_state.timestamp,
        key,
        value,
        own,
        attempt.cycle,
    )


def own_headers(headers: Headers, *, ours: bool) -> Headers:
    """Return the headers without ours, under names that JSON can carry. Usually they are so already.

    Without `ours` the record is of a main topic, where these names have no meaning of ours: they stay.
    """
    dropped = DROPPED if ours else NOT_A_RECORDS_OWN
    for name, _ in headers:
        if name in dropped or not name.isascii():
            return [(encodable(name), value) for name, value in headers if name not in dropped]
    return headers


def encodable(text: str) -> str:
    """Return the text with lone surrogates replaced.

    JSON in UTF-8 cannot carry them, and no Kafka header should hold one.
    """
    return text if text.isascii() else text.encode(errors="replace").decode()
