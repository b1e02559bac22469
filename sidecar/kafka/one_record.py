"""Read one record of a main topic by its id: for a command that delivers it as a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.errors import RecordError
from reconsume.sidecar.hints import not_ours
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.kafka.messages import main_reading_of, to_record
from reconsume.sidecar.kafka.scan import Bounds, ScanClient

CLIENT = "reconsume-one-record"


def read_main_record(
    kafka: Mapping[str, str], group: str, topics: Sequence[str], ident: str, drains: Mapping[str, str]
) -> Record:
    """Return the record `topic:partition:offset`. `topics`: the main topics of the group; `drains`: those of drained
    topics.

    Raises RecordError if there is no such record, BrokerError if Kafka does not answer.
    """
    topic, number, offset_text = ident.rsplit(":", 2)
    source, offset = Partition(topic, int(number)), int(offset_text)
    if topic not in topics:
        raise RecordError(not_ours(topic, topics))
    cluster = Cluster(kafka, CLIENT)
    there = cluster.existing([topic]).get(topic)
    span = cluster.spans([source]).get(source) if there is not None and source.number < there.partitions else None
    if span is None or not span.begin <= offset < span.end:
        has = f"that partition has {span.begin} to {span.end - 1}" if span and span.end > span.begin else "it is empty"
        raise RecordError(f"there is no record {ident}: {has if span else 'there is no such partition'}")
    with ScanClient(kafka, group, CLIENT) as client:
        for message in client.scan({source: Span(offset, offset + 1)}, Bounds(ANSWER_SECONDS), expected=ident):
            if message.offset() == offset:
                return to_record(message, source, 0, main_reading_of((), drains))
    raise RecordError(f"there is no record {ident}: at this offset the log has none")
