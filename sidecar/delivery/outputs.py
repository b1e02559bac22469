"""Read the records that an answer asks to be written (`produce`), strictly: a mistake must not lose one in silence.

Pure: what may not be written is told as one sentence, and nothing of the answer is written then.
"""

from __future__ import annotations

import re
import threading
from base64 import b64decode
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from reconsume.topics.outputs import OutputTopics, is_our_header
from reconsume.topics.retry_headers import LARGEST_LONG, LARGEST_PARTITION, Headers
from reconsume.topics.transition_records import Copy

MOST = 1_000
"""Records of one answer."""
MOST_HEADERS = 1_000
"""Headers of one of them."""
Text = str | None | UnsetType
ABSENT = msgspec.Raw()
TOO_MANY = f"produce must be a list of at most {MOST} records"
FAULT_AT = re.compile(r"(?P<text>.*?) - at `\$\[(?P<number>[0-9]+)\]\.?(?P<rest>.*)`", re.DOTALL)
"""How the decoder names the place of a fault."""


class OutputsRefusedError(ValueError):
    """The records of a response may not be written. `plain`: why, without any word of the response."""

    def __init__(self, text: str, plain: str | None = None) -> None:
        super().__init__(text)
        self.plain = plain or text


class HeaderForm(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One header of a record: `[name, Base64 or null]`."""

    name: str
    value: str | None

    def __post_init__(self) -> None:
        """Raise ValueError, which ends the reading, if the record has too many headers."""
        _read.headers += 1
        if _read.headers > MOST_HEADERS:
            raise ValueError(f"it has more than {MOST_HEADERS} headers")


class OutputForm(msgspec.Struct, forbid_unknown_fields=True):
    """One record of `produce`, as it is written in JSON. Absent and null are null; `json: null` is the text null."""

    topic: str
    key: Text = UNSET
    key_base64: Text = UNSET
    value: Text = UNSET
    value_base64: Text = UNSET
    json: msgspec.Raw = ABSENT
    headers: list[HeaderForm] = []
    partition: int | None = None
    timestamp: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError, which ends the reading, if the response has too many records."""
        _read.records, _read.headers = _read.records + 1, 0
        if _read.records > MOST:
            raise ValueError(TOO_MANY)


class Counts(threading.local):
    """What was read of the response that this thread reads: without it a response could become 30 times its size."""

    records = 0
    headers = 0


_read = Counts()
DECODE = msgspec.json.Decoder(list[OutputForm]).decode


def read_outputs(produce: Any, topics: OutputTopics | None) -> tuple[Copy, ...]:
    """Return the records that `produce` asks for. Raises OutputsRefusedError unless all may be written.

    `produce`: its JSON (`msgspec.Raw`), or what a call of the API had in it. `topics`: decides where they may go
    (contract 1.12); None: the operator has named no topic.
    """
    if topics is None:
        raise OutputsRefusedError("deliver.outputs names no topic")
    return tuple(_checked(number, form, topics) for number, form in enumerate(_forms(produce)))


def _forms(produce: Any) -> list[OutputForm]:
    _read.records = _read.headers = 0
    try:
        return DECODE(produce if isinstance(produce, msgspec.Raw) else msgspec.json.encode(produce))
    except (ValueError, TypeError, RecursionError) as fault:
        named = FAULT_AT.fullmatch(str(fault)[:300])
        if named is None or named["number"] is None:
            raise OutputsRefusedError(TOO_MANY) from None
        where = f" - at `{named['rest']}`" if named["rest"] else ""
        record_name, text = f"produce[{named['number']}]", named["text"]
        plain = "it has a field that is not known" if "unknown field" in text else text
        raise OutputsRefusedError(f"{record_name}: {text}{where}", f"{record_name}: {plain}") from None


def _checked(number: int, form: OutputForm, topics: OutputTopics) -> Copy:
    where = f"produce[{number}]"
    if why := topics.fault(form.topic, form.partition):
        raise OutputsRefusedError(f"{where}: {why}", f"{where}: no record may be written to its topic")
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


def _bytes(name: str, text: Text, base64: Text, json: msgspec.Raw = ABSENT) -> bytes | None:
    raw = bytes(json)
    if sum((text is not UNSET, base64 is not UNSET, raw != b"")) > 1:
        raise ValueError(f"it has more than one {name}")
    if raw:
        raw.decode("utf-8")  # the decoder skips what it passes on; a UnicodeDecodeError is a ValueError
        return msgspec.json.format(raw, indent=-1)  # as the service wrote it, without white space
    if isinstance(base64, str):
        return _decoded(f"{name}_base64", base64)
    return text.encode() if isinstance(text, str) else None


def _decoded(name: str, base64: str) -> bytes:
    try:
        return b64decode(base64, validate=True)
    except ValueError:
        raise ValueError(f"{name} is no Base64") from None


def _headers(forms: list[HeaderForm]) -> Headers:
    if any("\0" in form.name for form in forms):  # Kafka's client would cut the name there
        raise ValueError("the name of a header has a NUL")
    if (ours := next((number for number, form in enumerate(forms) if is_our_header(form.name)), None)) is not None:
        raise ValueError(f"the header {ours} is one that Reconsume writes")
    return [
        (form.name, None if form.value is None else _decoded(f"the header {number}", form.value))
        for number, form in enumerate(forms)
    ]
