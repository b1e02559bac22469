"""The settings of the push client, as one frozen value. No default here is read from the environment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from reconsume.sidecar.delivery.idempotency import ProducerKey, producer_key_of
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.topic_call import USUAL, TopicCall, TopicCalls
from reconsume.sidecar.delivery.verdict import FailureText, VerdictRules
from reconsume.sidecar.settings.model import Settings
from reconsume.topics import tags
from reconsume.topics.outputs import OutputTopics

LONGEST_BODY = 64 * 1024
LONGEST_ENTRY = 1024
"""Bytes for each record of a batch: its verdict has an id of 280 characters at most and a reason of 256."""


class PushSettings(msgspec.Struct, frozen=True):
    """How records are pushed. All times are in milliseconds."""

    group: str
    """The consumer group, sent as `Reconsume-Group`."""
    timeout_ms: int
    """From the call to the end of the answer (`deliver.timeout`). After the write, running out of it is a failed
    attempt."""
    forward_headers: tuple[str, ...] = ()
    """Names or globs of the record's own headers to send as HTTP headers, without regard to case."""
    tags_header: str = tags.HEADER
    """The header of a record that is sent as `Reconsume-Tags`."""
    content_type: str = "auto"
    """The media type of values whose record has none (`deliver.content_type`); `auto`: by their first and last byte."""
    content_types: Mapping[str, str] = {}
    """The same for those main topics that have one of their own."""
    verdict_bodies: bool = True
    """Whether an answer's body may be a verdict (`deliver.verdicts`)."""
    failure_text: FailureText = "none"
    """What is taken from the body of a failing answer, for people (`deliver.failure_text`)."""
    envelope: bool = False
    """Send the JSON envelope instead of the bare value: it carries header order, duplicates and nulls faithfully."""
    producer_key: ProducerKey | None = None
    """Reads the text that identifies the effect of a record (`deliver.idempotency`); None: its id does."""
    dead_letter_statuses: frozenset[int] = frozenset()
    """Statuses that refuse the record for good. They win over a throttle; a 2xx wins over them."""
    throttle_statuses: frozenset[int] = frozenset({429})
    """Statuses that ask for time. 503 with Retry-After always does."""
    connect_timeout_ms: int = 5_000
    """A connection on loopback is made at once or not at all. Waiting for `timeout_ms` would hide an outage."""
    idle_ms: int = 4_000
    """How long an idle connection is kept where the service does not say how long it keeps it (contract 1.8). Node and
    uvicorn close theirs after 5 s. Where one does so earlier, a request may cross that: it is sent once more."""
    batch_size: int = 1
    """Records in one request at most."""
    reserved: int = 0
    """Characters of a request's head that are kept free for the lines of its sender (`signature.py`)."""
    written: frozenset[str] = frozenset()
    """Names of the headers that the sidecar adds to requests (token, signature), which no record can have sent."""
    longest_answer: int = LONGEST_BODY
    """Bytes of an answer that may be a verdict, with its outputs."""
    answer_memory: int = 16 << 20
    """Bytes that answers which are longer than 64 KiB may take together."""
    outputs: OutputTopics | None = None
    """Where records may go that the service asks to be written with its verdict; None: nowhere."""
    in_place: bool = False
    """Whether failures are retried in place."""
    calls: TopicCalls = {}
    """What main topics have of their own."""
    longest_throttle_ms: int = 300_000
    """The cap on `Retry-After`. Without it a service could stop its group for a day by one header."""

    @property
    def longest_body(self) -> int:
        """Bytes of a body that may be a verdict, at most. Verdicts are far smaller.

        A service that streams without end must not fill the sidecar's memory.
        """
        return self.longest_answer + (self.batch_size * LONGEST_ENTRY if self.batch_size > 1 else 0)

    @property
    def rules(self) -> VerdictRules:
        """What the operator says about answers."""
        return VerdictRules(
            dead_letter_statuses=self.dead_letter_statuses,
            throttle_statuses=self.throttle_statuses,
            longest_throttle_ms=self.longest_throttle_ms,
            longest_body=self.longest_body,
            bodies=self.verdict_bodies,
            failure_text=self.failure_text,
            outputs=self.outputs,
            in_place=self.in_place,
        )


def push_settings_of(settings: Settings, access: Access, outputs: OutputTopics | None) -> PushSettings:
    """Return how records are pushed, by the configuration. `outputs`: where records of a verdict may go."""
    deliver = settings.deliver
    return PushSettings(
        group=settings.group,
        timeout_ms=deliver.timeout,
        forward_headers=deliver.forward_headers,
        tags_header=settings.tags_header,
        envelope=deliver.envelope,
        producer_key=producer_key_of(deliver.idempotency),
        verdict_bodies=deliver.verdicts == "all",
        content_type=deliver.content_type,
        content_types={topic.name: topic.content_type for topic in settings.topics if topic.content_type is not None},
        failure_text=deliver.response_text,
        dead_letter_statuses=frozenset(deliver.dead_letter_statuses),
        throttle_statuses=frozenset(deliver.throttle_statuses),
        batch_size=deliver.batch.max_size,
        longest_answer=deliver.max_answer,
        answer_memory=max(deliver.max_answer, deliver.buffer_memory // 4),
        outputs=outputs,
        in_place=deliver.order != "none",
        reserved=access.reserved,
        written=access.written,
        calls=calls_of(settings),
    )


def calls_of(settings: Settings) -> dict[str, TopicCall]:
    """Return what requests with the records of a topic have of their own, for the topics that have something."""
    calls = {}
    for topic in settings.topics:
        # Without batches a request is a record, and the dispatcher counts these.
        requests = topic.concurrency if settings.deliver.batch.max_size > 1 else None
        call = TopicCall(topic.path, topic.timeout, requests, "" if requests is None else topic.name)
        if call != USUAL:
            calls[topic.name] = call
    return calls
