"""Read the records that an answer asks to be written (`produce`), strictly: a mistake must not lose one in silence.

Pure: what may not be written is told as one sentence, and nothing of the answer is written then.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from reconsume.topics.outputs import OutputTopics, header_fault
from reconsume.topics.retry_headers import LARGEST_LONG, LARGEST_PARTITION, Headers
from reconsume.topics.transition_records import Copy

MOST = 1_000
"""Records of one answer."""
MOST_HEADERS = 1_000
"""Headers of one of them."""
Text = str | None | UnsetType


class OutputsRefusedError(ValueError):
    """Why a record of an answer may not be written, as one sentence; nothing of the answer is."""


class OutputForm(msgspec.Struct, forbid_unknown_fields=True):
    """One record of `produce`, as it is written in JSON. Absent and null are null; `json: null` is the text null."""

    topic: str
    key: Text = UNSET
    key_base64: Text = UNSET
    value: Text = UNSET
    value_base64: Text = UNSET
    json: Any = UNSET
    headers: list[tuple[str, str | None]] = []
    partition: int | None = None
    timestamp: int | None = None


def read_outputs(produce: Any, topics: OutputTopics | None) -> tuple[Copy, ...]:
    """Return the records that `produce` asks for. Raises OutputsRefusedError unless all may be written.

    `topics`: decides where they may go (contract 1.12); None: the operator has named no topic.
    """
    if topics is None:
        raise OutputsRefusedError("deliver.outputs names no topic")
    if not isinstance(produce, list) or len(produce) > MOST:
        raise OutputsRefusedError(f"produce must be a list of at most {MOST} records")
    return tuple(_read(number, one, topics) for number, one in enumerate(produce))


def _read(number: int, value: Any, topics: OutputTopics) -> Copy:
    where = f"produce[{number}]"
    try:
        form = msgspec.convert(value, OutputForm)
    except msgspec.ValidationError as fault:
        raise OutputsRefusedError(f"{where}: {fault}"[:300]) from None
    if why := topics.fault(form.topic, form.partition):
        raise OutputsRefusedError(f"{where}: {why}")
    try:
        return _copy(form)
    except ValueError as fault:
        raise OutputsRefusedError(f"{where}: {fault}"[:300]) from None


def _copy(form: OutputForm) -> Copy:
    key = _bytes("key", form.key, form.key_base64)
    value = _bytes("value", form.value, form.value_base64, form.json)
    partition = -1 if form.partition is None else form.partition
    if form.partition is not None and not 0 <= partition <= LARGEST_PARTITION:
        raise ValueError("partition is no partition")
    if form.timestamp is not None and not 0 <= form.timestamp <= LARGEST_LONG:
        raise ValueError("timestamp is no time in epoch ms")
    exact = form.partition is not None
    spread, stamp = (partition if exact else 0), form.timestamp or 0
    return Copy(form.topic, key, value, _headers(form.headers), spread, scattered=exact, exact=exact, timestamp=stamp)


def _bytes(name: str, text: Text, base64: Text, json: Any = UNSET) -> bytes | None:
    if sum(one is not UNSET for one in (text, base64, json)) > 1:
        raise ValueError(f"it has more than one {name}")
    if json is not UNSET:
        return msgspec.json.encode(json)
    if isinstance(base64, str):
        return _decoded(f"{name}_base64", base64)
    return text.encode() if isinstance(text, str) else None


def _decoded(name: str, base64: str) -> bytes:
    try:
        return b64decode(base64, validate=True)
    except ValueError:
        raise ValueError(f"{name} is no Base64") from None


def _headers(pairs: list[tuple[str, str | None]]) -> Headers:
    if len(pairs) > MOST_HEADERS:
        raise ValueError(f"it has more than {MOST_HEADERS} headers")
    if any("\0" in name for name, _ in pairs):  # Kafka's client would cut the name there
        raise ValueError("the name of a header has a NUL")
    if why := next((fault for name, _ in pairs if (fault := header_fault(name))), ""):
        raise ValueError(why)
    return [(name, None if value is None else _decoded(f"the header {name[:60]!r}", value)) for name, value in pairs]
