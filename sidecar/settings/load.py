"""The one way to settings: file, environment and `--set`, checked, or every fault together.

The sidecar's only reader of the environment's `RECONSUME_…`, and nothing is read before `load` is called.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sidecar.errors import ConfigError
from sidecar.settings.checks import cross_faults
from sidecar.settings.faults import Fault, faults_of, sentence
from sidecar.settings.fields import leaves, written
from sidecar.settings.layers import Layers, read_environment, read_file, read_sets
from sidecar.settings.masks import masked
from sidecar.settings.model import Settings
from sidecar.settings.values import KeyPath

DEFAULT_FILE = Path("reconsume.yaml")
STAND_INS: dict[str, Any] = {"group": "g", "topics": ["t"], "kafka": {"bootstrap.servers": "b:1"}}
"""Put where a required setting is missing or wrong, so that the others can still be checked against each other."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and for each where it came from."""

    settings: Settings
    layers: Layers


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting in force, as it may be shown; `origin` is `default`, a file and line, a variable, or `--set`."""

    key: str
    value: Any
    origin: str


def load(file: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """The checked settings; ConfigError with every fault. Without `file`, reconsume.yaml is read if it is there."""
    return load_with_origins(file, sets, environ).settings


def load_with_origins(
    file: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded:
    """As `load`, with the origin of each value."""
    layers = Layers()
    read_file(layers, file or DEFAULT_FILE, needed=file is not None)
    if layers.faults and not layers.tree:
        raise ConfigError(layers.faults)  # what cannot be read must not be told to lack each setting too
    read_environment(layers, os.environ if environ is None else environ)
    read_sets(layers, sets)
    layers.drop_empty_sections()
    settings, faults = validate(layers.tree)
    problems = layers.faults + [sentence(fault, layers) for fault in faults]
    if faults and file is None and not DEFAULT_FILE.exists():
        problems.append(f"there is no {DEFAULT_FILE} here; name a file with -c")
    if settings is None or problems:
        raise ConfigError(problems)
    return Loaded(settings, layers)


def validate(tree: dict[str, Any]) -> tuple[Settings | None, list[Fault]]:
    """The settings, or None, and all faults of the single settings and of those between them."""
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        faults = list(faults_of(error.errors(include_url=False)))
        return None, faults + faults_between(tree, faults)
    found = cross_faults(settings)
    return (None if found else settings), found


def faults_between(tree: dict[str, Any], faults: Sequence[Fault]) -> list[Fault]:
    """What the good settings do not agree on, when others are wrong by themselves."""
    wrong = [fault.path for fault in faults]
    try:
        rest = Settings.model_validate(without(tree, wrong))
    except ValidationError:
        return []
    return cross_faults(rest, wrong)


def without(tree: dict[str, Any], wrong: Sequence[KeyPath]) -> dict[str, Any]:
    """The tree with the wrong settings taken out, and stand-ins for those that are required."""
    rest = copy.deepcopy(tree)
    for path in wrong:
        name, *below = path
        if name in STAND_INS or not below or not isinstance(rest.get(str(name)), dict):
            rest.pop(str(name), None)
        else:
            remove(rest[str(name)], below)
    return STAND_INS | rest


def remove(section: dict[str, Any], path: Sequence[str | int]) -> None:
    """Take out the setting that `path` leads to or into; below a section only `deliver.batch` goes deeper."""
    name, *below = path
    inner = section.get(str(name))
    if below and name == "batch" and isinstance(inner, dict):
        inner.pop(str(below[0]), None)
    else:
        section.pop(str(name), None)


def effective(loaded: Loaded) -> list[Effective]:
    """Every setting in force, secrets masked, each property of `kafka` by itself."""
    rows: list[Effective] = []
    for path, field in leaves():
        value: Any = loaded.settings
        for part in path:
            value = getattr(value, part)
        plain = written(field, value)
        parts = [((*path, name), text) for name, text in plain.items()] if path == ("kafka",) else [(path, plain)]
        for key, shown in parts:
            origin = loaded.layers.origin(key) if loaded.layers.gives(key) else None
            rows.append(Effective(".".join(key), masked(key, shown), origin or "default"))
    return rows
