"""`deliver.idempotency`: which text of a record identifies its effect. Pure.

The value is a mapping whose other key depends on `from`: each form of it has the rows of a section of its own.
`delivery/idempotency.py` reads the text out of records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from reconsume.sidecar.settings.table import (
    REQUIRED,
    Fault,
    Kind,
    RefusedError,
    Section,
    read_rows,
    schema_of,
    setting,
    text,
)

Source: TypeAlias = Literal["id", "ce_id", "header", "json"]
NAME = text("the name of a header of the record, like order-id", r"[!-~]{1,255}")
POINTER = text(
    "a JSON pointer (RFC 6901) of at most 1024 characters, like /order/id", r"(?!.{1025})(?:/(?:[^~/]|~[01])*){0,64}"
)
ALLOWED = "{from: id}, {from: ce_id}, {from: header, name: order-id}, or {from: json, pointer: /order/id}"


@dataclass(frozen=True, slots=True)
class Idempotency:
    """Which text of a record identifies its effect. `at`: the name of the header, or the JSON pointer."""

    source: Source = "id"
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class OfRecord(Section):
    """The key next to `from: id` and `from: ce_id`: none."""


@dataclass(frozen=True, kw_only=True)
class OfHeader(Section):
    """The key next to `from: header`."""

    name: str = setting(REQUIRED, "The header's name.", NAME)


@dataclass(frozen=True, kw_only=True)
class OfJson(Section):
    """The key next to `from: json`."""

    pointer: str = setting(REQUIRED, "Where the text is in the value.", POINTER)


FORMS: Mapping[Source, type[Section]] = {"id": OfRecord, "ce_id": OfRecord, "header": OfHeader, "json": OfJson}


def read_idempotency(value: object) -> Idempotency:
    """Return the value in our form. Raises ValueError if it is wrong."""
    if not isinstance(value, dict):
        raise ValueError(f"must be {ALLOWED}")
    source = next((one for one in FORMS if one == value.get("from")), None)
    if source is None:
        words = f"must be one of {', '.join(FORMS)}"
        raise RefusedError([Fault(("from",), words, value.get("from"), has_value="from" in value)])
    rest, faults = read_rows(FORMS[source], {name: one for name, one in value.items() if name != "from"})
    if faults:
        raise RefusedError(faults)
    return Idempotency(source, *rest.values())


def write_idempotency(value: Idempotency) -> dict[str, Any]:
    """Return the value as it is written in YAML."""
    return {"from": value.source, **dict.fromkeys(FORMS[value.source].rows(), value.at)}


def _schema(source: Source) -> dict[str, object]:
    schema = schema_of(FORMS[source])
    properties = {"from": {"const": source}, **schema["properties"]}
    return {**schema, "properties": properties, "required": list(properties)}


IDEMPOTENCY = Kind(read_idempotency, ALLOWED, {"oneOf": [_schema(source) for source in FORMS]}, write_idempotency)


def tokens_of(pointer: str) -> tuple[str, ...]:
    """Return the names that a JSON pointer leads through; empty for the whole value."""
    return tuple(re.sub("~1", "/", token).replace("~0", "~") for token in pointer.split("/")[1:])
