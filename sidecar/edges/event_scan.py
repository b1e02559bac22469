"""One record's events, found by reading the events topic: bounded in records, and honest about what it did not see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidecar.edges.admin import ANSWER_SECONDS, Admin, Offset, sentence_of
from sidecar.edges.clients import view_config
from sidecar.errors import BrokerError, ContractError
from topics.events import Event, decode_event, encode_event, order
from topics.names import Names

BATCH = 1_000
POLL = 0.1
CLIENT = "reconsume-journey"
MARGIN = 60_000
"""ms. So far apart may clocks be: a record's first event is looked for from so long before it failed."""

Place = tuple[str, int]
Told = Callable[[int, int], None]
"""Told how many records were read, of how many."""


class Scan(NamedTuple):
    """What was found, in the order of the record's life. `missing`: why there may be more; empty: that is all."""

    events: tuple[Event, ...]
    missing: str


class Span(NamedTuple):
    """From where to where a partition is read; `cut`: older events have left it that might have been the record's."""

    begin: int
    end: int
    cut: bool


def scan_events(kafka: Mapping[str, str], names: Names, record: str, since: int | None, most: int, told: Told) -> Scan:
    """The events of one record, since it failed first (epoch ms; None: unknown); at most `most` records are read.

    Raises ContractError without the topic, BrokerError.
    """
    consumer = Consumer(view_config(kafka, names.retry_group, CLIENT))
    try:
        spans = _spans(Admin(kafka), consumer, names.events, since)
        return _found(consumer, names, record, spans, most, told)
    except KafkaException as failure:
        raise BrokerError(f"{names.events} cannot be read: {sentence_of(failure)}") from failure
    finally:
        consumer.close()


def _spans(admin: Admin, consumer: Consumer, topic: str, since: int | None) -> dict[Place, Span]:
    found = admin.find([topic])
    if topic not in found:
        raise ContractError(f"{topic} does not exist; `reconsume topics apply` creates it")
    topics = {topic: found[topic].partitions}
    begins = {place: listed.offset for place, listed in admin.offsets(topics, Offset.BEGIN).items()}
    ends = {place: listed.offset for place, listed in admin.offsets(topics, Offset.END).items()}
    starts = dict(begins)
    if since is not None:
        asked = [TopicPartition(*place, max(0, since - MARGIN)) for place in begins]
        for listed in consumer.offsets_for_times(asked, timeout=ANSWER_SECONDS):
            place = (listed.topic, listed.partition)
            starts[place] = ends[place] if listed.offset < 0 else listed.offset  # negative: all is older
    return {place: Span(start, ends[place], 0 < start == begins[place]) for place, start in starts.items()}


def _found(consumer: Consumer, names: Names, record: str, spans: Mapping[Place, Span], most: int, told: Told) -> Scan:
    total, read, cut = sum(span.end - span.begin for span in spans.values()), 0, False
    key, events = record.encode(), dict[bytes, Event]()
    for message in _messages(consumer, spans, lambda count: told(count, total)):
        read += 1
        if message.key() == key:
            event = decode_event(message.value())
            if isinstance(event, Event) and event.group == names.group and event.id == record:
                events[encode_event(event)] = event  # a repeat is the same bytes
                cut |= spans[message.topic() or "", message.partition() or 0].cut
        if read >= most:
            break
    missing = ""
    if read >= most and read < total:
        missing = f"only {read} of some {total} records of the events topic were read"
    elif cut or (not events and any(span.cut for span in spans.values())):
        missing = "older events may have left the topic by its retention"
    return Scan(tuple(sorted(events.values(), key=order)), missing)


def _messages(consumer: Consumer, spans: Mapping[Place, Span], told: Callable[[int], None]) -> Iterator[Message]:
    """Every record of the spans. Raises BrokerError when nothing comes any more."""
    left = {place: span.end for place, span in spans.items() if span.begin < span.end}
    consumer.assign([TopicPartition(*place, spans[place].begin) for place in left])
    count, heard = 0, time.monotonic()
    while left:
        messages = consumer.consume(1, POLL)
        messages += consumer.consume(BATCH, 0) if messages else []
        if messages:
            heard = time.monotonic()
        elif time.monotonic() > heard + ANSWER_SECONDS:
            raise BrokerError(f"the events could not be read on for {ANSWER_SECONDS:.0f} s")
        for message in messages:
            place, offset, error = (
                (message.topic() or "", message.partition() or 0),
                message.offset() or 0,
                message.error(),
            )
            if error is None and place in left and offset < left[place]:
                count += 1
                yield message
            elif error is not None and error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise KafkaException(error)
            if offset + (error is None) >= left.get(place, offset + 2):
                del left[place]  # the end of the partition may be a transaction's marker
        told(count)
