"""The raw form of `POST /v1/retry`: the body is the value, and the rest stands in request headers, as push sends them.

So a service can send back what it got, without JSON and base64. What headers cannot carry (a null key beside an empty
one, the order of headers, odd bytes) needs the JSON form.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.verdict import VerdictFields, read_header
from reconsume.topics.retry_headers import LARGEST_LONG, LARGEST_PARTITION, Headers, RetryState

TYPE = "application/octet-stream"
TRACE = ("traceparent", "tracestate", "baggage")
EVENT = "ce-"
MOST_TIMES = 999_999
VERDICTS = ("retry", "dead-letter")


def raw_record(headers: Mapping[str, str], body: bytes, wall: Callable[[], int]) -> Record:
    """Return the record that a raw post carries. `headers`: of the request, in lower case. `wall`: epoch ms.

    Raises ValueError with a sentence.
    """
    topic = headers.get("reconsume-topic", "")
    if not topic:
        raise ValueError("the header Reconsume-Topic is missing")
    partition = _number(headers, "reconsume-partition", LARGEST_PARTITION)
    offset = _number(headers, "reconsume-offset", LARGEST_LONG)
    timestamp = _number(headers, "reconsume-timestamp", LARGEST_LONG, -1)
    times = _number(headers, "reconsume-times", MOST_TIMES, 0)
    redrives = _number(headers, "reconsume-redrives", MOST_TIMES, 0)
    cycle = _number(headers, "reconsume-cycle", MOST_TIMES, 0)
    identity = f"{topic}:{partition}:{offset}"
    if headers.get("reconsume-id", identity) != identity:
        raise ValueError("Reconsume-Id must be topic:partition:offset, of the three headers for these")
    retry_state = None
    if times or redrives or cycle:
        counts = (times, redrives)
        retry_state = RetryState(identity, topic, *counts, timestamp=timestamp, first_failed_at=wall(), cycle=cycle)
    value = None if headers.get("reconsume-null", "").lower() == "value" else body
    return Record(Partition(topic, partition), offset, 0, timestamp, _key(headers), value, _own(headers), retry_state)


def raw_wish(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return delay, level, reason and expires of `Reconsume-Verdict`, as the JSON form has them. Raises ValueError."""
    said = read_header([headers.get("reconsume-verdict", "retry").encode("latin-1", "replace")])
    if not isinstance(said, VerdictFields) or said.verdict not in VERDICTS:
        raise ValueError(
            "Reconsume-Verdict must be retry or dead-letter, perhaps with delay, level, reason and expires"
        )
    level = said.level
    if said.verdict == "dead-letter":
        level = -1
    elif isinstance(level, str):
        level = _number({"level": level.removeprefix("-")}, "level", 9_999) * (-1 if level.startswith("-") else 1)
    return {"delay": said.delay, "level": level, "reason": said.reason, "expires": said.expires}


def _number(headers: Mapping[str, str], name: str, most: int, usual: int | None = None) -> int:
    text = headers.get(name)
    if text is None and usual is not None:
        return usual
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= most):
        raise ValueError(f"{name} must be a whole number from 0 to {most}")
    return int(text)


def _key(headers: Mapping[str, str]) -> bytes | None:
    if "reconsume-key-omitted" in headers:
        raise ValueError("the key was too long for a header: post the JSON form")
    if (packed := headers.get("reconsume-key-base64")) is not None:
        try:
            return base64.b64decode(packed, validate=True)
        except binascii.Error:
            raise ValueError("reconsume-key-base64 is no base64") from None
    plain = headers.get("reconsume-key")
    return None if plain is None else plain.encode("latin-1", "replace")


def _own(headers: Mapping[str, str]) -> Headers:
    """Return the record's own headers that push sends without being asked: CloudEvents and the trace."""
    own: Headers = []
    for name, value in headers.items():
        if name.startswith(EVENT):
            own.append((f"ce_{name.removeprefix(EVENT)}", unquote_to_bytes(value)))
        elif name in TRACE:
            own.append((name, value.encode("latin-1", "replace")))
    return own
