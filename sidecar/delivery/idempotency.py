"""Read the text by which a producer identifies an effect (`deliver.idempotency`, contract 1.11). Pure.

A record without such a text has the key of its id, `<group>/<id>/<redrives>`. The text is sent as `Idempotency-Key`,
and unchanged in the envelope. What a header cannot carry is sent there as `sha256:<hex>` of its UTF-8. Whatever a
record holds, nothing is raised: any client that may produce to the topic chooses these bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from reconsume.sidecar.core.record import Record
from reconsume.sidecar.settings.idempotency import Idempotency, tokens_of

ProducerKey: TypeAlias = Callable[[Record], str | None]
"""Returns the text of a record; None if it has none, so that its id counts."""
LONGEST_IN_HEADER = 200
"""Characters of a text that is sent unchanged in a header."""
VISIBLE = bytes(range(0x21, 0x7F))
CE_ID = "ce_id"
OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
ARRAY = msgspec.json.Decoder(list[msgspec.Raw]).decode
TEXT = msgspec.json.Decoder(str).decode
MOST_DIGITS = 9
"""Digits of the position in an array."""


def producer_key_of(settings: Idempotency) -> ProducerKey | None:
    """Return what reads the producer's text; None if the id of each record counts."""
    match settings.source:
        case "id":
            return None
        case "ce_id":
            return header_reader(CE_ID)
        case "header":
            return header_reader(settings.at)
        case "json":
            return json_reader(tokens_of(settings.at))


def header_reader(name: str) -> ProducerKey:
    """Return what reads the last header of this name."""

    def read(record: Record) -> str | None:
        value = None
        for header, data in record.headers or ():
            if header == name:
                value = data
        if not value:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            return digest(value)

    return read


def json_reader(tokens: tuple[str, ...]) -> ProducerKey:
    """Return what reads a text, a number, true or false in a value that is JSON; numbers as they are written.

    Only the objects and arrays on the way are decoded, one level of each.
    """

    def read(record: Record) -> str | None:
        if not record.value:
            return None
        try:
            raw: bytes | msgspec.Raw = record.value
            for token in tokens:
                raw = member(raw, token)
            return scalar(bytes(raw).strip(b" \t\r\n"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError):
            return None

    return read


def member(raw: bytes | msgspec.Raw, token: str) -> msgspec.Raw:
    """Return a member of an object or array. Raises LookupError if there is none, msgspec.DecodeError."""
    try:
        return OBJECT(raw)[token]
    except msgspec.ValidationError:  # JSON, and not an object
        if not token.isascii() or not token.isdecimal() or len(token) > MOST_DIGITS or token != str(int(token)):
            raise LookupError(token) from None
    return ARRAY(raw)[int(token)]


def scalar(raw: bytes) -> str | None:
    """Return a single value as text; None for an object, an array, null and an empty text. Raises
    msgspec.DecodeError if it is not JSON."""
    if raw[:1] in (b"{", b"["):
        return None
    if raw[:1] == b'"':
        return TEXT(raw) or None
    return None if msgspec.json.decode(raw) is None else raw.decode()


def in_header(text: str) -> str:
    """Return the text as a header carries it: unchanged if it is visible ASCII and not too long."""
    if len(text) <= LONGEST_IN_HEADER and text.isascii() and not text.encode("ascii").translate(None, VISIBLE):
        return text
    return digest(text.encode(errors="replace"))


def digest(data: bytes) -> str:
    """Return what is sent for bytes that a header cannot carry."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
