"""`deliver.idempotency`: which text of a record identifies its effect. Pure.

The value is a mapping whose other keys depend on `from`, so it has a kind of its own instead of rows (`from` is no name
of a field either). `delivery/idempotency.py` reads the text out of records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from reconsume.sidecar.settings.table import Fault, Kind, RefusedError, text

NAME = text("the name of a header of the record, like order-id", r"[!-~]{1,255}")
POINTER = text("a JSON pointer (RFC 6901), like /order/id", r"(?:/(?:[^~/]|~[01])*){0,64}")
LONGEST_POINTER = 1_024
KEYS: Mapping[str, str] = {"id": "", "ce_id": "", "header": "name", "json": "pointer"}
"""The key that each value of `from` needs next to it; empty: none."""
ALLOWED = "{from: id}, {from: ce_id}, {from: header, name: order-id}, or {from: json, pointer: /order/id}"


@dataclass(frozen=True, slots=True)
class Idempotency:
    """Which text of a record identifies its effect. `at`: the name of the header, or the JSON pointer."""

    source: Literal["id", "ce_id", "header", "json"] = "id"
    at: str = ""


def read_idempotency(value: object) -> Idempotency:
    """Return the value in our form. Raises ValueError if it is wrong."""
    if not isinstance(value, dict):
        raise ValueError(f"must be {ALLOWED}")
    source = value.get("from")
    if not isinstance(source, str) or source not in KEYS:
        raise RefusedError([Fault(("from",), f"must be one of {', '.join(KEYS)}", source, has_value="from" in value)])
    needed = KEYS[source]
    known = ("from", needed) if needed else ("from",)
    unknown = [str(name) for name in value if name not in known]
    if unknown:
        raise RefusedError([Fault((name,), "unknown key", has_value=False, known=known) for name in unknown])
    if not needed:
        return Idempotency(source)  # type: ignore[arg-type]  # KEYS has the words of the annotation
    if needed not in value:
        raise RefusedError([Fault((needed,), f"is required with from: {source}", has_value=False)])
    try:
        at = (NAME if source == "header" else POINTER).take(value[needed])
        if len(at) > LONGEST_POINTER:
            raise ValueError(f"has at most {LONGEST_POINTER} characters")
    except ValueError as fault:
        raise RefusedError([Fault((needed,), str(fault), value[needed])]) from None
    return Idempotency(source, at)  # type: ignore[arg-type]  # as above


def write_idempotency(value: Idempotency) -> dict[str, Any]:
    """Return the value as it is written in YAML."""
    needed = KEYS[value.source]
    return {"from": value.source, **({needed: value.at} if needed else {})}


def _schema(source: str, needed: str) -> dict[str, object]:
    keys: dict[str, object] = {"from": {"const": source}}
    if needed:
        keys[needed] = dict((NAME if source == "header" else POINTER).schema)
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


IDEMPOTENCY = Kind(
    read_idempotency,
    ALLOWED,
    {"oneOf": [_schema(source, needed) for source, needed in KEYS.items()]},
    write_idempotency,
)


def tokens_of(pointer: str) -> tuple[str, ...]:
    """Return the names that a JSON pointer leads through; empty for the whole value."""
    return tuple(re.sub("~1", "/", token).replace("~0", "~") for token in pointer.split("/")[1:])
