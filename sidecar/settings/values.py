"""The kinds of values that a setting can have: how each is read, written back and described.

`Checked` connects a kind to pydantic. The check, the sentence of an error, the JSON Schema and the reference table
therefore have one source. No setting is named here, and nothing outside is read.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.rates import PATTERN, Rate, parse_rate, render_rate

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path of a value: keys of mappings and positions in lists."""


class RefusedError(ValueError):
    """Several faults inside one value. `parts` holds, for each, the path below that value and a sentence."""

    def __init__(self, parts: list[tuple[KeyPath, str]]) -> None:
        self.parts = parts
        super().__init__("; ".join(text for _, text in parts))


@dataclass(frozen=True, slots=True)
class Checked:
    """A pydantic annotation for one kind of value.

    `read` turns the form of YAML into ours, or raises ValueError with a sentence. `write` does the opposite. `allowed`
    completes "must be …". `plain` is the JSON Schema of the form of YAML. `as_text`: a text from the environment is
    used unchanged, instead of being read as YAML.
    """

    read: Callable[[object], Any]
    allowed: str
    plain: Mapping[str, object]
    write: Callable[[Any], object] = field(default=lambda value: value)
    as_text: bool = False
    nullable: bool = False

    def or_null(self) -> Checked:
        """Return the same kind, which also accepts null."""
        kind = {"anyOf": [dict(self.plain), {"type": "null"}]}
        return replace(self, allowed=f"{self.allowed}, or null", plain=kind, nullable=True)

    def take(self, value: object) -> Any:
        """Return `value` in our form. Raises ValueError if it is refused."""
        return None if value is None and self.nullable else self.read(value)

    def give(self, value: object) -> object:
        """Return the value as it is written in YAML."""
        return None if value is None else self.write(value)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.take)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.plain)


def whole(low: int, high: int) -> Checked:
    """Return the kind of a whole number from `low` to `high`. True and false are not numbers."""
    allowed = f"a whole number from {low} to {high}"

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be {allowed}")
        return value

    return Checked(read, allowed, {"type": "integer", "minimum": low, "maximum": high})


def percent(low: int, high: int) -> Checked:
    """Return the kind of a percentage from `low` to `high`, kept as a whole number; the sign is never guessed."""
    allowed = f"a percentage from {low}% to {high}%"

    def read(value: object) -> int:
        match = re.fullmatch(r"([0-9]{1,3})%", value) if isinstance(value, str) else None
        if match is None or not low <= int(match[1]) <= high:
            raise ValueError(f"must be {allowed}, like 50%")
        return int(match[1])

    plain = {"type": "string", "pattern": "^[0-9]{1,3}%$", "examples": [f"{low}%", f"{high}%"]}
    return Checked(read, allowed, plain, write=lambda value: f"{value}%", as_text=True)


def duration(low: str, high: str) -> Checked:
    """Return the kind of a duration from `low` to `high`, kept in ms.

    A number without a unit is refused; the unit is never guessed.
    """
    least, most = parse_duration(low), parse_duration(high)
    allowed = f"a duration from {low} to {high}"
    read = functools.partial(read_duration, least=least, most=most, allowed=allowed)
    plain = {"type": "string", "pattern": DURATION_PATTERN, "examples": [low, high]}
    return Checked(read, allowed, plain, write=render_duration, as_text=True)


DURATION_PATTERN = r"^(?=.)([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"


def read_duration(value: object, least: int, most: int, allowed: str) -> int:
    """Return the milliseconds of a duration. Raises ValueError unless it is between `least` and `most`."""
    if is_bare_number(value):
        raise ValueError(f"must be {allowed}, with a unit: {value}s or {value}ms, say")
    if not isinstance(value, str):
        raise ValueError(f"must be {allowed}, like 500ms, 10s or 1h30m")
    try:
        ms = parse_duration(value)
    except ValueError:
        raise ValueError(f"must be {allowed}, like 500ms, 10s or 1h30m") from None
    if not least <= ms <= most:
        raise ValueError(f"must be {allowed}")
    return ms


def is_bare_number(value: object) -> bool:
    """Whether a duration or size has no unit: 15, or "15" from the environment."""
    if isinstance(value, str):
        return re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?", value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


SIZE_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
SIZE_PATTERN = r"^[0-9]+(B|KiB|MiB|GiB)$"


def parse_size(text: str) -> int:
    """Return the bytes of `64KiB` or `16MiB`.

    Raises ValueError for anything else, also for a number without a unit.
    """
    match = re.fullmatch(r"([0-9]{1,12})(B|KiB|MiB|GiB)", text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a size: write it like 64KiB or 16MiB")
    return int(match[1]) * SIZE_UNITS[match[2]]


def render_size(count: int) -> str:
    """Return the bytes in the largest unit that divides them: 65 536 is `64KiB`."""
    unit = next(unit for unit, size in SIZE_UNITS.items() if count % size == 0 and (count > 0 or unit == "B"))
    return f"{count // SIZE_UNITS[unit]}{unit}"


def size(low: str, high: str) -> Checked:
    """Return the kind of a number of bytes from `low` to `high`, written with a unit."""
    least, most = parse_size(low), parse_size(high)
    allowed = f"a size from {low} to {high}"

    def read(value: object) -> int:
        if is_bare_number(value):
            raise ValueError(f"must be {allowed}, with a unit: {value}KiB or {value}MiB, say")
        try:
            count = parse_size(value) if isinstance(value, str) else -1
        except ValueError:
            count = -1
        if not least <= count <= most:
            raise ValueError(f"must be {allowed}")
        return count

    return Checked(read, allowed, {"type": "string", "pattern": SIZE_PATTERN}, write=render_size, as_text=True)


RATE = "a rate like 100/s, 600/m or 5/h, up to 1000000"


def read_rate(value: object) -> Rate:
    """Return the rate of a text. Raises ValueError if it is none; a number alone is refused, as its time is unknown."""
    if is_bare_number(value):
        raise ValueError(f"must be {RATE}, with its time: {value}/s, say")
    try:
        return parse_rate(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"must be {RATE}") from None


def rate() -> Checked:
    """Return the kind of a rate: records in a second, minute or hour."""
    return Checked(read_rate, RATE, {"type": "string", "pattern": PATTERN}, write=render_rate, as_text=True)


def expect_visible(text: str) -> None:
    """Raise ValueError if a text has a character that nobody sees: a control, a direction mark, another space.

    Such a text is not what it looks like: whoever reads the configuration would approve another one.
    """
    hidden = next((sign for sign in text if not sign.isprintable()), None)
    if hidden is not None:
        name = unicodedata.name(hidden, "")
        shown = f"U+{ord(hidden):04X}" + (f" ({name})" if name else "")
        raise ValueError(f"has {shown}, which cannot be seen; leave it out")


def text(allowed: str, pattern: str, check: Callable[[str], object] | None = None) -> Checked:
    """Return the kind of a text that matches `pattern` as a whole, and whose characters can all be seen.

    `check` may raise ValueError with its own sentence.
    """
    form = re.compile(pattern)

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be {allowed}; write it in quotes if it is meant as text")
        expect_visible(value)
        if form.fullmatch(value) is None:
            raise ValueError(f"must be {allowed}")
        if check is not None:
            check(value)
        return value

    return Checked(read, allowed, {"type": "string", "pattern": f"^(?:{pattern})$"}, as_text=True)


def many(item: Checked, what: str, least: int = 0, most: int = 1024) -> Checked:
    """Return the kind of a list of `item`. The faults of all members are reported, each at its position."""

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list of {what}")
        if not least <= len(value) <= most:
            raise ValueError(f"must be a list of {least} to {most} {what}")
        return read_each(item, value)

    plain = {"type": "array", "items": dict(item.plain), "minItems": least, "maxItems": most}
    return Checked(read, f"a list of {what}", plain, write=lambda values: [item.give(value) for value in values])


def read_each(item: Checked, values: list[object] | tuple[object, ...]) -> tuple[Any, ...]:
    """Return each of `values` as `item` reads it. Raises RefusedError with every fault."""
    taken: list[Any] = []
    faults: list[tuple[KeyPath, str]] = []
    for index, value in enumerate(values):
        try:
            taken.append(item.take(value))
        except ValueError as fault:
            faults.append(((index,), str(fault)))
    if faults:
        raise RefusedError(faults)
    return tuple(taken)


class Section(BaseModel):
    """A section of the configuration: frozen, strict about types, without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
