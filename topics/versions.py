"""Recognise a JSON value that a newer version of Reconsume wrote, by its `v`, whatever else is in it.

`v` rises only for a change that an older reader would misunderstand. Such a value is left alone and is not reported as
garbage. The operator then knows to finish or revert a roll-out, and does not search for a faulty writer.
"""

from __future__ import annotations

from typing import Annotated, Protocol, TypeVar

import msgspec

READ = 1
"""The highest `v` that this version reads, of every kind of value. Values that leave `v` out have 1."""


class _Versioned(msgspec.Struct):
    v: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = READ


_DECODER = msgspec.json.Decoder(_Versioned)


def newer(value: bytes) -> int | None:
    """Return the `v` of a JSON object that a newer version wrote. None for every other value. Never raises."""
    try:
        version = _DECODER.decode(value).v
    # RecursionError: an unknown field may nest as deep as the value is long.
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return version if version > READ else None


class Versioned(Protocol):
    """A value with the version of its form."""

    @property
    def v(self) -> int: ...


T = TypeVar("T", bound=Versioned)


def decoded(decoder: msgspec.json.Decoder[T], value: bytes, what_is: str) -> T | str:
    """Return a value of this version, or why it is none, in one sentence for people. Never raises.

    `what_is`: the beginning of that sentence, such as "the hold is".
    """
    try:
        record = decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError) as fault:
        v = newer(value)
        return f"{what_is} not as agreed: {fault}"[:300] if v is None else sentence(v)
    return record if record.v == READ else sentence(record.v)


def sentence(v: int) -> str:
    """Return a sentence for people about a value with this `v`."""
    return f"a newer version of Reconsume wrote it (v {v}), and this one reads v {READ}"
