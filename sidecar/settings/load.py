"""Load the settings: file, environment and `--set`, checked. If any are wrong, all faults are reported together.

Only this module reads settings from the process environment, and only when `load` is called.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.checks import cross_faults
from reconsume.sidecar.settings.faults import Fault, faults_of, sentence
from reconsume.sidecar.settings.fields import leaves, written
from reconsume.sidecar.settings.layers import Layers, read_environment, read_file, read_sets
from reconsume.sidecar.settings.masks import masked
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.values import KeyPath

DEFAULT_FILE = Path("reconsume.yaml")
STAND_INS: dict[str, Any] = {"group": "g", "topics": ["t"], "kafka": {"bootstrap.servers": "b:1"}}
"""Values for required settings that are missing or wrong. With them the other settings can still be checked against
each other."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, with the origin of each."""

    settings: Settings
    layers: Layers


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting in force, in a form that may be shown.

    `origin` is `default`, a file and line, a variable, or `--set`.
    """

    key: str
    value: Any
    origin: str


def load(file: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Return the checked settings. Raises ConfigError with every fault.

    Without `file`, reconsume.yaml is read if it exists.
    """
    return load_with_origins(file, sets, environ).settings


def load_with_origins(
    file: Path | None = None, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded:
    """Return the same settings as `load`, with the origin of each value. Raises ConfigError with every fault."""
    layers = Layers()
    read_file(layers, file or DEFAULT_FILE, needed=file is not None)
    if layers.faults and not layers.tree:
        raise ConfigError(layers.faults)  # an unreadable file must not also be reported for each setting that it lacks
    read_environment(layers, os.environ if environ is None else environ)
    read_sets(layers, sets)
    layers.drop_empty_sections()
    settings, faults = validate(layers.tree)
    problems = layers.faults + [sentence(fault, layers) for fault in faults]
    if faults and file is None and not DEFAULT_FILE.exists():
        missing = f"there is no {DEFAULT_FILE} here; name a file with -c"
        # Where nothing at all is given, what each setting lacks would hide the one sentence that helps.
        problems = [*(problems if layers.tree else layers.faults), missing]
    if settings is None or problems:
        raise ConfigError(problems)
    return Loaded(settings, layers)


def validate(tree: dict[str, Any]) -> tuple[Settings | None, list[Fault]]:
    """Return the settings and all faults, of single settings and between settings. None instead of faulty settings."""
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        faults = list(faults_of(error.errors(include_url=False)))
        return None, faults + faults_between(tree, faults)
    between = cross_faults(settings)
    return (None if between else settings), between


def faults_between(tree: dict[str, Any], faults: Sequence[Fault]) -> list[Fault]:
    """Return the faults between the valid settings, if other settings are wrong by themselves."""
    wrong = [fault.path for fault in faults]
    try:
        rest = Settings.model_validate(without(tree, wrong))
    except ValidationError:
        return []
    return cross_faults(rest, wrong)


def without(tree: dict[str, Any], wrong: Sequence[KeyPath]) -> dict[str, Any]:
    """Return the tree without the wrong settings, and with stand-ins for the required ones."""
    rest = copy.deepcopy(tree)
    for path in wrong:
        name, *below = path
        if name in STAND_INS or not below or not isinstance(rest.get(str(name)), dict):
            rest.pop(str(name), None)
        else:
            remove(rest[str(name)], below)
    return STAND_INS | rest


def remove(section: dict[str, Any], path: Sequence[str | int]) -> None:
    """Remove the setting that `path` leads to or into.

    Below a section, only `deliver.batch` and `deliver.tls` have one more level.
    """
    name, *below = path
    inner = section.get(str(name))
    if below and name in ("batch", "tls") and isinstance(inner, dict):
        inner.pop(str(below[0]), None)
    else:
        section.pop(str(name), None)


def effective(loaded: Loaded) -> list[Effective]:
    """Return every setting in force, with secrets masked and one row for each property of `kafka`."""
    rows: list[Effective] = []
    for path, field in leaves():
        value: Any = loaded.settings
        for step in path:
            value = getattr(value, step)
        plain = written(field, value)
        pairs = [((*path, name), text) for name, text in plain.items()] if path == ("kafka",) else [(path, plain)]
        for key, shown in pairs:
            origin = loaded.layers.origin(key) if loaded.layers.gives(key) else None
            rows.append(Effective(".".join(key), masked(key, shown), origin or "default"))
    return rows
