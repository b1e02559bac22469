"""The table of settings: the kinds of values, what a row has, and how a section of the file is read by its rows.

A section of reconsume.yaml is a frozen dataclass. Each of its fields is one row of the table:

    timeout: int = setting("30s", "How long one delivery may take.", duration("10ms", "1d"), in_policy=True)

- the default is written as in YAML (`"30s"`), and read by the row's kind; a setting without one is `REQUIRED`;
- the meaning is the sentence of the reference page, and the description in the JSON Schema;
- the kind says what is accepted; a `bool` or a `Literal` needs none, because its annotation says it;
- `in_policy` marks a key that `policy set` may set for the whole group (contract 10.1). Unless `is_agreed` is False,
  all instances also agree on its value where no policy sets it (contract 10.7).

Everything that lists, checks or shows settings reads these rows: `load` (file, environment, `--set`), `group_policy`
(the policy's keys), `reference` (schema and page), `config show`, `init`. There is no second list of settings. The rows
are in `model`, `deliver`, `sections` and `kafka`; no setting is named here, and nothing outside is read.

A `Kind` is the only source of what a setting accepts: the check, the sentence of an error, the JSON Schema and the
column *allowed* of the reference page all come from it. `read` turns a value of YAML into our form: `10s` into 10 000
ms. If it refuses the value it raises ValueError, whose text completes "deliver.timeout = 5: …". `write` is the
opposite. A kind that consists of parts (a list, a mapping, a section) raises `RefusedError`, which has one `Fault` for
each wrong part. So all faults of a file are reported together, each with its own path. Kinds and rows are immutable and
made at import; any thread may use them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.rates import PATTERN, Rate, parse_rate, render_rate

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path of a value: keys of mappings and positions in lists."""


def dotted(path: KeyPath) -> str:
    """Return a path as users write it: `topics[1].name`."""
    text = ""
    for name in path:
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong setting: its path, and a text that completes "path = value: …".

    `has_value`: whether there is a value to show. `known`: for an unknown key, the keys that are allowed instead.
    """

    path: KeyPath
    text: str
    value: object = None
    has_value: bool = True
    known: tuple[str, ...] = ()


class RefusedError(ValueError):
    """Several faults inside one value.

    `rest` is the value with defaults in place of its wrong parts, so that those parts which are right can still be
    checked against other settings. It is None if no such value can be made.
    """

    def __init__(self, faults: Sequence[Fault], rest: object = None) -> None:
        self.faults = faults
        self.rest = rest
        super().__init__("; ".join(fault.text for fault in faults))


def unchanged(value: Any) -> Any:
    """Return the value: it is written in YAML as it is kept."""
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of values.

    `allowed` completes "must be …". `schema` is the JSON Schema of the form of YAML. `as_text`: a text from the
    environment or from `--set` is used unchanged, instead of being read as YAML; a group called `1e3` is a name, not a
    number. `section` is the class of a section of the file, and None for a single value.
    """

    read: Callable[[Any], Any]
    allowed: str
    schema: Mapping[str, object]
    write: Callable[[Any], Any] = unchanged
    as_text: bool = False
    nullable: bool = False
    section: type[Any] | None = None

    def or_null(self) -> Kind:
        """Return the same kind, which also accepts null."""
        schema = {"anyOf": [dict(self.schema), {"type": "null"}]}
        return replace(self, allowed=f"{self.allowed}, or null", schema=schema, nullable=True)

    def or_word(self, word: str) -> Kind:
        """Return the same kind, which also accepts a word."""
        schema = {"anyOf": [{"enum": [word]}, dict(self.schema)]}
        allowed = f"{self.allowed}, or {word}"

        def read(value: object) -> Any:
            if value == word:
                return word
            try:
                return self.read(value)
            except ValueError:
                raise ValueError(f"must be {allowed}") from None

        def write(value: object) -> Any:
            return value if value == word else self.write(value)

        return replace(self, read=read, allowed=allowed, schema=schema, write=write)

    def take(self, value: object) -> Any:
        """Return `value` in our form. Raises ValueError if it is refused."""
        return None if value is None and self.nullable else self.read(value)

    def give(self, value: object) -> Any:
        """Return the value as it is written in YAML."""
        return None if value is None else self.write(value)


Reader: TypeAlias = Callable[[Any], Any]


def read_parts(named_values: Iterable[tuple[str | int, object, Reader]]) -> tuple[dict[str | int, Any], list[Fault]]:
    """Read each part of a value, with its name or position, by its reader.

    Return what was accepted, by name or position, and the faults of the rest, each with the path from here.
    """
    values: dict[str | int, Any] = {}
    faults: list[Fault] = []
    for name, value, read in named_values:
        try:
            values[name] = read(value)
        except RefusedError as refused:
            faults += [replace(fault, path=(name, *fault.path)) for fault in refused.faults]
            if refused.rest is not None:
                values[name] = refused.rest
        except ValueError as refused:
            faults.append(Fault((name,), str(refused), value))
    return values, faults


# --- numbers ----------------------------------------------------------------------------------------------------------


def number(low: float, high: float, of: type[int] | type[float] = float) -> Kind:
    """Return the kind of a number from `low` to `high`, kept as `of`. True and false are not numbers."""
    allowed = f"a {'whole ' if of is int else ''}number from {low} to {high}"

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | of) or not low <= value <= high:
            raise ValueError(f"must be {allowed}")
        return of(value)

    return Kind(read, allowed, {"type": "integer" if of is int else "number", "minimum": low, "maximum": high})


whole = functools.partial(number, of=int)
"""Whole numbers between two bounds."""

BARE = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,9})?")
"""A number without its unit: 15, or "15" from the environment."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is measured: its noun, and how a text of it is parsed and rendered.

    `parse` raises ValueError for a text that has another form. `units` are those that a bare number might have meant.
    `like` ends the sentence about another form.
    """

    noun: str
    parse: Callable[[str], int]
    render: Callable[[int], str]
    pattern: str
    units: tuple[str, ...]
    like: str = ""

    def kind(self, low: str, high: str) -> Kind:
        """Return the kind of an amount from `low` to `high`. A number alone is refused; the unit is never guessed."""
        least, most = self.parse(low), self.parse(high)
        allowed = f"a {self.noun} from {low} to {high}"

        def read(value: object) -> int:
            if BARE.fullmatch(str(value)):
                meant = " or ".join(f"{value}{unit}" for unit in self.units)
                raise ValueError(f"must be {allowed}, with a unit: {meant}, say")
            try:
                amount = self.parse(value if isinstance(value, str) else "")
            except ValueError:
                raise ValueError(f"must be {allowed}{self.like}") from None
            if not least <= amount <= most:
                raise ValueError(f"must be {allowed}")
            return amount

        schema = {"type": "string", "pattern": self.pattern, "examples": [low, high]}
        return Kind(read, allowed, schema, self.render, as_text=True)


SIZES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def parse_size(text: str) -> int:
    """Return the bytes of `64KiB` or `16MiB`. Raises ValueError for anything else, also for a number without a unit."""
    match = re.fullmatch(r"([0-9]{1,12})(B|KiB|MiB|GiB)", text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a size: write it like 64KiB or 16MiB")
    return int(match[1]) * SIZES[match[2]]


def render_size(count: int) -> str:
    """Return the bytes in the largest unit that divides them: 65 536 is `64KiB`."""
    unit = next(unit for unit, size in SIZES.items() if count % size == 0 and (count > 0 or unit == "B"))
    return f"{count // SIZES[unit]}{unit}"


def parse_percent(text: str) -> int:
    """Return the number of `50%`. Raises ValueError for anything else."""
    if re.fullmatch(r"[0-9]{1,3}%", text) is None:
        raise ValueError(f"{text[:40]!r} is not a percentage: write it like 50%")
    return int(text[:-1])


DURATION_PATTERN = r"^(?=.)([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"
duration = Unit(
    "duration", parse_duration, render_duration, DURATION_PATTERN, ("s", "ms"), ", like 500ms, 10s or 1h30m"
).kind
"""Durations between two bounds, kept in ms."""
size = Unit("size", parse_size, render_size, r"^[0-9]+(B|KiB|MiB|GiB)$", ("KiB", "MiB"), ", in KiB, MiB or GiB").kind
"""Sizes between two bounds, kept in bytes."""
percent = Unit("percentage", parse_percent, "{}%".format, "^[0-9]{1,3}%$", ("%",), ", like 50%").kind
"""Percentages between two bounds, kept as whole numbers."""

RATE_ALLOWED = "a rate like 100/s, 600/m or 5/h, up to 1000000"


def read_rate(value: object) -> Rate:
    """Return the rate of a text. Raises ValueError for anything else, also for a number without its time."""
    if BARE.fullmatch(str(value)):
        raise ValueError(f"must be {RATE_ALLOWED}, with its time: {value}/s, say")
    try:
        return parse_rate(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"must be {RATE_ALLOWED}") from None


RATE = Kind(read_rate, RATE_ALLOWED, {"type": "string", "pattern": PATTERN}, render_rate, as_text=True)
"""Records in a second, minute or hour."""


# --- choices and texts ------------------------------------------------------------------------------------------------


def read_flag(value: object) -> bool:
    """Return true or false. Raises ValueError for anything else, also for texts and numbers that mean the same."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


FLAG = Kind(read_flag, "true or false", {"type": "boolean"})


def one_of(choices: Sequence[str], *, nullable: bool = False) -> Kind:
    """Return the kind of a closed list of words."""
    words = " or ".join([*choices, "null"] if nullable else choices)

    def read(value: object) -> object:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"must be {words}")
        return value

    schema = {"enum": [*choices, None] if nullable else list(choices)}
    return Kind(read, words, schema, as_text=True, nullable=nullable)


def kind_of_annotation(annotation: Any) -> Kind:
    """Return the kind that a type alone describes: `bool`, or a `Literal` of words, which may also be null."""
    if annotation is bool:
        return FLAG
    members = typing.get_args(annotation)
    literals = [one for one in (annotation, *members) if typing.get_origin(one) is Literal]
    if not literals:
        raise TypeError(f"{annotation} alone describes no setting: its row needs a kind")
    return one_of([word for one in literals for word in typing.get_args(one)], nullable=types.NoneType in members)


def expect_visible(text: str) -> None:
    """Raise ValueError if a text has a character that nobody sees: a control, a direction mark, another space.

    Such a text is not what it looks like: whoever reads the configuration would approve another one.
    """
    hidden = next((sign for sign in text if not sign.isprintable()), None)
    if hidden is not None:
        name = unicodedata.name(hidden, "")
        shown = f"U+{ord(hidden):04X}" + (f" ({name})" if name else "")
        raise ValueError(f"has {shown}, which cannot be seen; leave it out")


def text(allowed: str, pattern: str, finish: Callable[[str], Any] = unchanged) -> Kind:
    """Return the kind of a text that matches `pattern` as a whole, and whose characters can all be seen.

    `finish` gets the text. It returns what is kept, which `str` writes back, or raises ValueError with a sentence.
    """
    form = re.compile(pattern)

    def read(value: object) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"must be {allowed}; write it in quotes if it is meant as text")
        expect_visible(value)
        if form.fullmatch(value) is None:
            raise ValueError(f"must be {allowed}")
        return finish(value)

    return Kind(read, allowed, {"type": "string", "pattern": f"^(?:{pattern})$"}, str, as_text=True)


# --- lists and alternatives -------------------------------------------------------------------------------------------


LONGEST_LISTED = 60
"""Characters of a value that is shown again as the list that was probably meant."""


def many(
    item: Kind,
    what: str,
    least: int = 0,
    most: int = 1024,
    same: Callable[[Any], object] | None = unchanged,
    repeated: str = "leave one of them out",
) -> Kind:
    """Return the kind of a list of `item`. The faults of all members are reported, each at its position.

    `same`: returns what two members must not have in common; None: a member may be repeated, as a delay of a ladder.
    `repeated` says what to do then.
    """

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list of {what}{as_list(value)}")
        if not least <= len(value) <= most:
            raise ValueError(f"must be a list of {least} to {most} {what}")
        members, faults = read_parts((index, member, item.take) for index, member in enumerate(value))
        first: dict[object, str | int] = {}
        for index, member in members.items():
            if same is not None and (before := first.setdefault(same(member), index)) != index:
                faults.append(
                    Fault(
                        (index,), f"{same(member)} is in [{before}] of this list already; {repeated}", value[int(index)]
                    )
                )
        if faults:
            raise RefusedError(faults)
        return tuple(members.values())

    def as_list(value: object) -> str:
        """Return how a value that is one member, or several with commas, is written as a list; empty if it is none."""
        members = [word.strip() for word in value.split(",")] if isinstance(value, str) else [value]
        if isinstance(value, Mapping) or len(str(value)) > LONGEST_LISTED:
            return ""
        _, faults = read_parts((index, member, item.take) for index, member in enumerate(members))
        return "" if faults else f"; write [{', '.join(map(str, members))}]"

    def write(members: Sequence[object]) -> list[object]:
        return [item.give(member) for member in members]

    schema = {"type": "array", "items": dict(item.schema), "minItems": least, "maxItems": most}
    unique = {} if same is None else {"uniqueItems": True}
    return Kind(read, f"a list of {what}", schema | unique, write)


def either(names: Sequence[str], listed: Kind, mapped: Kind | None, allowed: str) -> Kind:
    """Return the kind of a value that is one of `names`, a list, or a mapping if `mapped` is given."""

    def read(value: object) -> Any:
        if isinstance(value, str) and value in names:
            return value
        if isinstance(value, list | tuple):
            return listed.take(value)
        if isinstance(value, Mapping) and mapped is not None:
            return mapped.take(value)
        raise ValueError(f"must be {allowed}")

    def write(value: object) -> Any:
        if isinstance(value, str):
            return value
        return listed.give(value) if mapped is None or isinstance(value, tuple) else mapped.give(value)

    forms = [dict(kind.schema) for kind in (listed, mapped) if kind is not None]
    return Kind(read, allowed, {"anyOf": [{"enum": list(names)}, *forms], "examples": list(names)}, write)


# --- rows and sections ------------------------------------------------------------------------------------------------

REQUIRED = object()
"""The default of a setting that has none."""
BY_ANNOTATION = Kind(str, "", {})
"""Stands for the kind that the field's annotation describes."""
SWITCH = "enabled"
"""A section with this key may also be given as true or false alone."""
ROW = "row"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. `default` is in the form of YAML, or REQUIRED."""

    kind: Kind
    default: object
    meaning: str
    in_policy: bool = False
    is_agreed: bool = False


class Section:
    """A section of the file, or a mapping in a list of it; each is a frozen dataclass."""

    @classmethod
    @functools.cache
    def rows(cls) -> Mapping[str, Row]:
        """Return the rows of the section by their keys, in the order of the file."""
        annotations = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # each subclass is a dataclass
        rows = {field.name: field.metadata[ROW] for field in fields if ROW in field.metadata}
        return {
            name: replace(row, kind=kind_of_annotation(annotations[name])) if row.kind is BY_ANNOTATION else row
            for name, row in rows.items()
        }


def setting(
    default: object, meaning: str, kind: Kind = BY_ANNOTATION, *, in_policy: bool = False, is_agreed: bool | None = None
) -> Any:
    """Return the field of one setting, for a class of the table. A key of the policy is agreed, unless it says not."""
    metadata = {ROW: Row(kind, default, meaning, in_policy, in_policy if is_agreed is None else is_agreed)}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default if kind is BY_ANNOTATION else kind.take(default), metadata=metadata)


def section(of: type[Section], meaning: str) -> Any:
    """Return the field of a section, whose rows are the fields of the class `of`."""
    short = {"type": "boolean"} if SWITCH in of.rows() else None
    kind = mapping_kind(of, "a mapping", short, is_section=True)
    return dataclasses.field(default=of(), metadata={ROW: Row(kind, {}, meaning)})


def keys_of(of: type[Section]) -> str:
    """Return the keys of a mapping as a sentence names them: `{name, tags}`."""
    return f"{{{', '.join(of.rows())}}}"


def read_rows(of: type[Section], mapping: Mapping[Any, object]) -> tuple[dict[str, Any], list[Fault]]:
    """Return the values that `mapping` has for the rows of a section, and every fault: wrong, missing, unknown."""
    rows = of.rows()
    values, faults = read_parts((name, mapping[name], row.kind.take) for name, row in rows.items() if name in mapping)
    missing = [name for name, row in rows.items() if row.default is REQUIRED and name not in mapping]
    faults += [Fault((name,), "is required", has_value=False) for name in missing]
    unknown = [str(name) for name in mapping if name not in rows]
    faults += [Fault((name,), "unknown key", has_value=False, known=tuple(rows)) for name in unknown]
    return typing.cast(dict[str, Any], values), faults


def mapping_kind(
    of: type[Section], allowed: str, short: Mapping[str, object] | None = None, *, is_section: bool = False
) -> Kind:
    """Return the kind of a mapping that is read by the rows of `of`: a section, or a member of a list.

    `short` is the JSON Schema of a shorter form. For a member that is a text, which stands for its `name`. For a
    section it is true or false, which `load` has put below its SWITCH. A section may be null, because YAML reads one
    whose keys are all commented out as null; `load` has removed it. A wrong value of a section has its default in
    the `rest` of the error.
    """

    def read(value: object) -> Any:
        mapping = {"name": value} if short is not None and isinstance(value, str) and not is_section else value
        if not isinstance(mapping, Mapping):
            raise ValueError(f"must be {allowed}")
        values, faults = read_rows(of, mapping)
        if faults:
            raise RefusedError(faults, rest=of(**values) if is_section else None)
        return of(**values)

    def write_changed(member: Section) -> object:
        changed = {name: value for name, value in written(member).items() if value != of.rows()[name].default}
        return changed["name"] if short is not None and changed.keys() == {"name"} else changed

    schema = schema_of(of) | ({"type": ["object", "null"]} if is_section else {})
    if short is not None:
        schema = {"anyOf": [dict(short), schema]}
    write = written if is_section else write_changed
    return Kind(read, allowed, schema, write, section=of if is_section else None)


def written(whole: Section) -> dict[str, Any]:
    """Return a section, or all settings, as in a file in which every key is written."""
    return {name: row.kind.give(getattr(whole, name)) for name, row in type(whole).rows().items()}


def schema_of(of: type[Section]) -> dict[str, Any]:
    """Return the JSON Schema of a section."""
    rows = of.rows()
    properties = {
        name: {
            "description": row.meaning,
            **row.kind.schema,
            **({} if row.kind.section or row.default is REQUIRED else {"default": row.default}),
        }
        for name, row in rows.items()
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [name for name, row in rows.items() if row.default is REQUIRED]
    return schema | ({"required": required} if required else {})
