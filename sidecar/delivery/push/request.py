"""Render one record, or a batch, as the bytes of one HTTP/1.1 request (contract 1.3). Pure.

Every record takes this path. So what does not change is written once per target or once per partition, and the rest is
one f-string. Names from Kafka are trusted no more than a record's headers. Whatever they hold, a request has exactly
the headers that are written here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.pace.refusals import Sent
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.envelope import NOT_A_RECORDS_OWN, Letter, encodable, envelope, origin
from reconsume.sidecar.delivery.idempotency import ProducerKey, in_header
from reconsume.sidecar.delivery.push.forwarded_headers import BUDGET_BYTES, NOTHING, Forward
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import Target
from reconsume.sidecar.delivery.push.topic_call import USUAL, TopicCall
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.masking import url_without_secrets
from reconsume.topics.retry_headers import RetryState

ENVELOPE_TYPE = "application/vnd.reconsume+json"
JSON, OCTET_STREAM = "application/json", "application/octet-stream"
AUTO = "auto"
"""`deliver.content_type`: by the value's first and last byte."""
JSON_ENDS = {b"{": b"}", b"[": b"]"}
JSON_WHITE = b" \t\n\r"
VISIBLE = bytes(range(0x21, 0x7F))
# Visible ASCII without `%`, so that a name that had to be percent-encoded cannot be mistaken for another name.
NAME_SAFE = "".join(map(chr, VISIBLE)).replace("%", "")
LONGEST_KEY = 4 * 1024
"""Bytes of a key that is sent as a header, at most."""
ROOM = BUDGET_BYTES - 384
"""Characters of a head at most, without the lines about the body: its type, its length, and that it is null."""
TIMEOUT_LINE = re.compile(rb"\r\nReconsume-Timeout: [0-9]+\r\n")
"""The first one of a request is in its head: its lines come before those of the record."""
# One entry for each partition; only a test or an attack has so many.
PARTITIONS_REMEMBERED = 10_000


class Render:
    """Render records for one target."""

    __slots__ = (
        "_calls",
        "_content_type",
        "_content_types",
        "_encode",
        "_envelope",
        "_enveloped",
        "_forward",
        "_forward_first",
        "_group",
        "_head",
        "_heads",
        "_openings",
        "_paths",
        "_producer_key",
        "_room",
        "_target",
    )

    def __init__(self, target: Target, settings: PushSettings) -> None:
        self._target, self._calls = target, settings.calls
        self._paths = {"": target.path} | {topic: call.path for topic, call in settings.calls.items() if call.path}
        """The path of each topic with one of its own; that of all others under the empty name."""
        self._content_type = fixed_type(settings.content_type)
        self._content_types = {topic: fixed_type(kind) for topic, kind in settings.content_types.items()}
        """The types of values without one of their own, by main topic; empty: by their bytes."""
        self._group = settings.group
        self._envelope = settings.envelope
        self._producer_key = settings.producer_key
        self._enveloped = settings.envelope or settings.batch_size > 1
        # The envelope carries all headers in its body; only tracing needs them outside as well.
        self._room = ROOM - settings.reserved
        forward = partial(
            Forward,
            settings.forward_headers,
            trace_only=settings.envelope,
            written=settings.written,
            tags_header=settings.tags_header,
        )
        self._forward = forward()
        self._forward_first = forward(dropped=NOT_A_RECORDS_OWN)
        self._openings: dict[Partition, tuple[str, str]] = {}
        """The beginning of every first delivery of a partition: up to the first offset, and from it to the second
        offset."""
        self._encode = msgspec.json.Encoder().encode
        self.set_timeout(settings.timeout_ms)

    def set_timeout(self, ms: int) -> None:
        """Set the timeout (ms) that requests name, unless their topic has one of its own."""
        self._head = opening(self._target, self._group, ms)
        self._heads = {
            topic: opening(of_call(self._target, call), self._group, call.timeout_ms or ms)
            for topic, call in self._calls.items()
            if call.path is not None or call.timeout_ms is not None
        }
        """The beginning of every head of a topic that has a path or a timeout of its own."""
        self._openings.clear()

    def __call__(self, record: Record) -> bytes:
        """Return the whole request. Never raises, whatever the record holds."""
        retry_state = record.retry_state
        # Most are first deliveries. A record that was retried in place is written like one from a retry topic.
        first = retry_state is None and not (record.again or record.range_cycle)
        head = self._first(record) if first else self._again(record, retry_state_of(record))
        key, headers = record.key, record.headers
        if key is not None and not self._envelope:
            line = key_line(key)
            head += line if len(head) + len(line) <= self._room else omitted(key)
        forward = self._forward if record.retry_state is not None else self._forward_first
        own = forward(headers, self._room - len(head)) if headers else NOTHING
        lines = own.lines
        if self._envelope:
            body = self._encode(Letter(self._group, [envelope(record, self._group, self._producer_key)]))
            return f"{head}{lines}{framing(ENVELOPE_TYPE, len(body))}".encode("ascii") + body
        value = record.value
        if value is None:
            return f"{head}{lines}Reconsume-Null: value\r\nContent-Length: 0\r\n\r\n".encode("ascii")
        content_type = own.content_type or self._type_of(record, value)
        head = f"{head}{lines}Content-Type: {content_type}\r\nContent-Length: {len(value)}\r\n\r\n"
        return head.encode("ascii") + value

    def sent(self, record: Record) -> Sent:
        """Return what a request with this record is. What the path's query holds is masked."""
        path = url_without_secrets(self._paths.get(record.main_topic) or self._paths[""])
        if self._enveloped:
            return Sent("POST", path, ENVELOPE_TYPE)
        if record.value is None:
            return Sent("POST", path)
        own = self._forward(record.headers).content_type if record.headers else ""
        return Sent("POST", path, own or self._type_of(record, record.value))

    def _type_of(self, record: Record, value: bytes) -> str:
        """Return the content type of a value whose record has none."""
        if self._content_types:
            fixed = self._content_types.get(record.main_topic, self._content_type)
        else:
            fixed = self._content_type
        return fixed or (JSON if looks_like_json(value) else OCTET_STREAM)

    def _first(self, record: Record) -> str:
        """Return the head of a record from a main topic: its own position is its origin."""
        source, offset = record.source, str(record.offset)  # written once, used three times
        to_id, to_key = self._openings.get(source) or self._open(source)
        if self._producer_key is not None and (own := self._producer_key(record)) is not None:
            to_key, end = f"\r\nIdempotency-Key: {in_header(own)}\r\n", ""
        else:
            end = f"{offset}/0\r\n"
        return f"{to_id}{offset}{to_key}{end}Reconsume-Offset: {offset}\r\nReconsume-Timestamp: {record.timestamp}\r\n"

    def _open(self, source: Partition) -> tuple[str, str]:
        topic = visible(source.topic)
        prefix = f"{topic}:{source.number}:"
        if len(self._openings) >= PARTITIONS_REMEMBERED:
            self._openings.clear()
        head = self._heads.get(source.topic, self._head)
        opening = self._openings[source] = (
            f"{head}Reconsume-Times: 0\r\nReconsume-Redrives: 0\r\nReconsume-Topic: {topic}\r\n"
            f"Reconsume-Partition: {source.number}\r\nReconsume-Id: {prefix}",
            f"\r\nIdempotency-Key: {visible(self._group)}/{prefix}",
        )
        return opening

    def _again(self, record: Record, retry_state: RetryState) -> str:
        """Return the head of a retried record: topic, partition and offset are those of its first copy."""
        identity, attempt = visible(retry_state.id), attempt_of(record)
        cycle = f"Reconsume-Cycle: {attempt.cycle}\r\n" if attempt.cycle else ""
        partition, offset = origin(record)
        own = None if self._producer_key is None else self._producer_key(record)
        key = f"{visible(self._group)}/{identity}/{attempt.series}" if own is None else in_header(own)
        return (
            f"{self._heads.get(retry_state.topic, self._head)}"
            f"Reconsume-Times: {attempt.times}\r\nReconsume-Redrives: {attempt.redrives}\r\n{cycle}"
            f"Reconsume-Topic: {visible(retry_state.topic)}\r\nReconsume-Partition: {partition}\r\n"
            f"Reconsume-Id: {identity}\r\nIdempotency-Key: {key}\r\n"
            f"Reconsume-Offset: {offset}\r\nReconsume-Timestamp: {retry_state.timestamp}\r\n"
        )


class RenderBatch:
    """Render batches for one target.

    Each record is rendered when it comes, so that the size of the body is always known.
    """

    __slots__ = ("_before", "_encode", "_group", "_heads", "_producer_key", "_target", "_timeout_ms")

    def __init__(self, target: Target, group: str, timeout_ms: int, producer_key: ProducerKey | None = None) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._target, self._group, self._producer_key = target, group, producer_key
        self._timeout_ms = timeout_ms
        self._heads: dict[TopicCall, bytes] = {}
        """The beginning of a request, by what its topics have of their own."""
        self._before = b'{"group":%b,"records":[' % self._encode(encodable(group))

    @property
    def empty(self) -> int:
        """Bytes of a body without records."""
        return len(self._before) + len(b"]}")

    def part(self, record: Record) -> bytes:
        """Return one record as it is written in the body. Never raises, whatever the record holds."""
        return self._encode(envelope(record, self._group, self._producer_key))

    def set_timeout(self, ms: int) -> None:
        """Set the timeout (ms) that requests name, unless their topics have one of their own."""
        self._timeout_ms = ms
        self._heads.clear()

    def __call__(self, parts: Sequence[bytes], call: TopicCall = USUAL) -> bytes:
        """Return the whole request. `call`: what its topics have of their own."""
        records = b",".join(parts)
        head = self._heads.get(call) or self._open(call)
        return b"%b%d\r\n\r\n%b%b]}" % (head, self.empty + len(records), self._before, records)

    def _open(self, call: TopicCall) -> bytes:
        start = opening(of_call(self._target, call), self._group, call.timeout_ms or self._timeout_ms)
        head = f"{start}Content-Type: {ENVELOPE_TYPE}\r\nContent-Length: "
        return self._heads.setdefault(call, head.encode("ascii"))


def of_call(target: Target, call: TopicCall) -> Target:
    """Return where the requests of a topic go."""
    return target if call.path is None else replace(target, path=call.path)


def opening(target: Target, group: str, timeout_ms: int) -> str:
    """Return the beginning of every head."""
    line = f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n"
    return f"{line}Reconsume-Group: {visible(group)}\r\nReconsume-Timeout: {timeout_ms}\r\n"


def with_time_left(request: bytes, ms: int) -> bytes:
    """Return a rendered request that names the time (ms) which is left of its timeout: it is sent once more."""
    return TIMEOUT_LINE.sub(b"\r\nReconsume-Timeout: %d\r\n" % max(0, ms), request, count=1)


def fixed_type(content_type: str) -> str:
    """Return the media type of a `deliver.content_type`; empty for `auto`."""
    return "" if content_type == AUTO else content_type


def looks_like_json(value: bytes) -> bool:
    """Return whether the value begins and ends, but for JSON's white space, with brackets that match.

    Its middle is not read: that would cost as much as all the rest of a delivery.
    """
    if value[:1] in JSON_WHITE or value[-1:] in JSON_WHITE:
        value = value.strip(JSON_WHITE)
    return JSON_ENDS.get(value[:1]) == value[-1:]


def framing(content_type: str, length: int) -> str:
    """Return the end of a head."""
    return f"Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"


def key_line(key: bytes) -> str:
    """Return the key as a header line: base64 if it is not visible ASCII, an empty header for an empty key.

    For a key that is longer than servers accept in a header, only its length is sent. The envelope carries such a key.
    """
    if len(key) > LONGEST_KEY:
        return omitted(key)
    if key.translate(None, VISIBLE):
        return f"Reconsume-Key-Base64: {base64.b64encode(key).decode('ascii')}\r\n"
    return f"Reconsume-Key: {key.decode('ascii')}\r\n"


def omitted(key: bytes) -> str:
    """Return the header line that replaces a key too long for a header."""
    return f"Reconsume-Key-Omitted: {len(key)}\r\n"


def visible(name: str) -> str:
    """Return the name unchanged if it is visible ASCII, as every Kafka name is; else percent-encoded."""
    if name.isascii() and not name.encode("ascii").translate(None, VISIBLE):
        return name
    return quote(name, safe=NAME_SAFE, errors="replace")
