"""The tree of settings as data: the path of every leaf, what it accepts, and how its value is written.

The sentences of errors, the JSON Schema, `config show` and the reference table all read this tree. None of them can
therefore contradict the check.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.sections.deliver import Subscription
from reconsume.sidecar.settings.values import Checked, KeyPath

SWITCH = "enabled"
"""A section with this key may also be given as true or false alone."""


def leaves(
    model: type[BaseModel] = Settings, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield every setting that is not a section, with its path, in the order of the file."""
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None:
            yield (*above, name), field
        else:
            yield from leaves(section, (*above, name))


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the class of a section. None for a leaf."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def field_at(path: KeyPath) -> FieldInfo | None:
    """Return the field that `path` names or leads into (an item of a list). None if there is no such key."""
    model: type[BaseModel] | None = Settings
    field: FieldInfo | None = None
    for name in path:
        if model is None or not isinstance(name, str):
            return field
        field = model.model_fields.get(name)
        if field is None:
            return None
        model = section_of(field)
    return field


def siblings(path: KeyPath) -> tuple[str, ...]:
    """Return the keys that are allowed instead of the last part of `path`."""
    if not path[:-1]:
        return tuple(Settings.model_fields)
    above = field_at(path[:-1])
    model = None if above is None else section_of(above) or member_of(above)
    return () if model is None else tuple(model.model_fields)


def member_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the class of a list's members. None if they are not mappings."""
    for kind in typing.get_args(field.annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def checked_of(field: FieldInfo) -> Checked | None:
    """Return the check of a field. None for choices, true/false, sections and the topics."""
    return next((mark for mark in field.metadata if isinstance(mark, Checked)), None)


def allowed(field: FieldInfo) -> str:
    """Return the values that a field accepts, as words that complete "must be …"."""
    checked = checked_of(field)
    if checked is not None:
        return checked.allowed
    if section_of(field) is not None:
        return "a mapping"
    if choices := choices_of(field):
        return " or ".join("null" if choice is None else str(choice) for choice in choices)
    if field.annotation is bool:
        return "true or false"
    member = member_of(field)
    if member is None or member is Subscription:
        return f"a list of topics, each a name or {{{', '.join(Subscription.model_fields)}}}"
    return f"a list of {{{', '.join(member.model_fields)}}}"


def choices_of(field: FieldInfo) -> list[object]:
    """Return the values that a field with a closed list accepts, None too if it may be null; none for other fields."""
    types = [one for one in (field.annotation, *typing.get_args(field.annotation)) if one is not None]
    choices = [choice for one in types if typing.get_origin(one) is Literal for choice in typing.get_args(one)]
    return [*choices, None] if choices and type(None) in types else choices


def written(field: FieldInfo, value: Any) -> Any:
    """Return a value of `field` as it is written in YAML."""
    checked = checked_of(field)
    if checked is not None:
        return checked.give(value)
    return [written_member(member) for member in value] if isinstance(value, tuple) else value


def written_member(member: BaseModel) -> Any:
    """Return a member of a list as it is written in YAML: without what has its default, and a name alone by itself."""
    fields = type(member).model_fields
    values = {name: getattr(member, name) for name in fields}
    changed = {name: written(fields[name], value) for name, value in values.items() if value != fields[name].default}
    return changed["name"] if changed.keys() == {"name"} and isinstance(member, Subscription) else changed


def takes_text(field: FieldInfo) -> bool:
    """Whether a text from outside is itself the value, and is not read as YAML.

    A group called `1e3` is a name, not a number.
    """
    checked = checked_of(field)
    return (checked is not None and checked.as_text) or typing.get_origin(field.annotation) is Literal


def is_nullable(field: FieldInfo) -> bool:
    """Whether the field accepts null."""
    return type(None) in typing.get_args(field.annotation)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file."""
    schema = Settings.model_json_schema()
    for model, properties in models_of(Settings, schema["properties"], schema["$defs"]):
        for name, field in model.model_fields.items():
            section = section_of(field)
            if section is not None:
                properties[name].pop("default", None)
                if SWITCH in section.model_fields:
                    whole = {"$ref": properties[name].pop("$ref")}
                    properties[name]["anyOf"] = [{"type": "boolean"}, whole]
            elif field.default is not PydanticUndefined:
                properties[name]["default"] = written(field, field.default)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "reconsume.yaml"}


def models_of(
    model: type[BaseModel], properties: dict[str, Any], classes: dict[str, Any]
) -> Iterator[tuple[type[BaseModel], dict[str, Any]]]:
    """Yield the class of each section with its properties in the schema."""
    yield model, properties
    for field in model.model_fields.values():
        section = section_of(field)
        if section is not None:
            yield from models_of(section, classes[section.__name__]["properties"], classes)
