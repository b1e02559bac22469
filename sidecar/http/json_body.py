"""Read the fields of a call's JSON body one by one, with one sentence for each error.

Strict: an unknown field or a wrong type is refused, never guessed. Each call decides which fields it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from reconsume.topics.durations import parse_duration, render_duration

MEDIA_TYPE = "application/json"
LONGEST_HANDLE = 256
MOST_HANDLES = 1_024
"""Handles in one call at most: as many as one receive can give."""
OBJECT = msgspec.json.Decoder(dict[str, Any])


class RefusedError(ValueError):
    """The call is not well-formed. The message is a sentence that `api/app.py` sends to its caller."""


class Fields:
    """The fields that the caller gave. Each reader raises RefusedError."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field, of whatever type; None if it is missing."""
        return self._values.get(name)

    def whole(self, name: str, least: int, most: int, usual: int) -> int:
        """Return a whole number within bounds."""
        value = self._values.get(name, usual)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise RefusedError(f"{name} must be a whole number from {least} to {most}.")
        return value

    def duration(self, name: str, least: int, most: int, usual: int | None = None) -> int:
        """Return a duration within bounds, in ms. It is required if there is no usual one."""
        value = self._values.get(name)
        if value is None and usual is not None and name not in self._values:
            return usual
        try:
            length = parse_duration(value) if isinstance(value, str) else -1
        except ValueError:
            length = -1
        if not least <= length <= most:
            raise RefusedError(
                f"{name} must be a duration from {render_duration(least)} to {render_duration(most)}, written like 30s."
            )
        return length

    def handles(self) -> list[str]:
        value = self._values.get("handles")
        if not isinstance(value, list) or not 1 <= len(value) <= MOST_HANDLES or not all(map(is_handle, value)):
            raise RefusedError(f"handles must be a list of 1 to {MOST_HANDLES} handles of records that were received.")
        return value


def is_handle(value: object) -> bool:
    """Return whether the value could be a handle."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_HANDLE


def fault_of_json(fault: msgspec.MsgspecError) -> str:
    """Return why a JSON text is not accepted, without any word of it: msgspec quotes the names of unknown fields."""
    text = str(fault)
    return "it has a field that this call does not know" if "unknown field" in text else text


async def read_fields(request: Request, known: Collection[str]) -> Fields:
    """Return the body's fields. Raises RefusedError if it is not a JSON object of known fields."""
    try:
        values = OBJECT.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a ValidationError is a DecodeError
        raise RefusedError("The body must be one JSON object.") from None
    if not values.keys() <= set(known):
        raise RefusedError(f"The body has a field that this call does not know; it knows {', '.join(known)}.")
    return Fields(values)
