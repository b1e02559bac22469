"""The settings of several groups that one process runs: `-c billing.yaml -c shipping.yaml`.

Each file describes one group, as it would alone. Some settings are about the process, which has one API, one log, one
dashboard, one end and one bound of memory (`PROCESS`). They are written in one of the files, or with equal values in
several of them, for example in a `base` that all of them name; either way they hold for every group. `--set` and
variables `RECONSUME_…` may give settings of the process and no others: with several groups nobody could say whose they
are.

`load_groups` is called by commands, once, at their start. It reports the faults of all files together, each with its
file, and returns nothing if there is one. With one file it is `load_with_origins`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reconsume.sidecar.core.room import LEAST
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.faults import masked
from reconsume.sidecar.settings.kafka import good_properties
from reconsume.sidecar.settings.load import (
    Judge,
    Layers,
    Loaded,
    load_with_origins,
    read_environment,
    read_file,
    read_sets,
    remove_empty_sections,
)
from reconsume.sidecar.settings.model import LEAVES
from reconsume.sidecar.settings.table import KeyPath, dotted

SECTIONS = ("api", "log", "ui", "operators")
"""The sections of which every setting is about the process."""
PROCESS: tuple[tuple[str, ...], ...] = tuple(
    path
    for path in LEAVES
    if path[0] in SECTIONS or path in (("view", "folder"), ("deliver", "buffer_memory"), ("drain_timeout",))
)
"""The settings of the process."""
_ABSENT = object()


class ChosenValue(NamedTuple):
    """A value of a setting of the process, and the file that gives it. `origin`: its line, a variable, or `--set`."""

    file: Path
    value: object
    origin: str


def load_groups(
    files: Sequence[Path],
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    judge: Judge = lambda properties: (),
) -> tuple[Loaded, ...]:
    """Return the settings of each file's group, in the order of the files. Raises ConfigError with every fault.

    Without files, or with one, the result has one group, whose settings may come from anywhere.
    """
    if len(files) < 2:
        return (load_with_origins(files[0] if files else None, sets, environ, judge),)
    overlay = read_overlay(sets, os.environ if environ is None else environ)
    all_layers, problems = [read_layers(file) for file in files], list(overlay.faults)
    for path in PROCESS:
        problems += share_value(path, files, all_layers, overlay)
    loaded = list[Loaded]()
    for file, layers in zip(files, all_layers, strict=True):
        try:
            loaded.append(checked_group(layers))
        except ConfigError as refused:
            found = [*refused.problems, *judge(good_properties(layers.tree.get("kafka")))]
            problems += [one if one.startswith(f"{file}: ") else f"{file}: {one}" for one in found]
    if not problems:
        problems = repeated_groups(files, loaded)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return tuple(loaded)


def read_overlay(sets: Sequence[str], environ: Mapping[str, str]) -> Layers:
    """Return what variables and `--set` give. A setting that is not of the process is a fault."""
    overlay = Layers()
    read_environment(overlay, environ)
    read_sets(overlay, sets)
    for path, origin in overlay.origins.items():
        if path not in PROCESS and path[0] not in SECTIONS:
            text = f"with several -c only settings of the process can be given here ({origin}); write it in the files"
            overlay.faults.append(f"{dotted(path)}: {text}")
    return overlay


def read_layers(file: Path) -> Layers:
    """Return the values of one file and its base."""
    layers = Layers()
    read_file(layers, file, needed=True)
    remove_empty_sections(layers.tree)
    return layers


def share_value(
    path: tuple[str, ...], files: Sequence[Path], all_layers: Sequence[Layers], overlay: Layers
) -> list[str]:
    """Give every group the value of one setting of the process. Return a sentence if the files have two values."""
    if (value := value_at(overlay.tree, path)) is not _ABSENT:
        chosen = ChosenValue(Path(), value, overlay.origin(path) or "--set")
    else:
        values = [
            ChosenValue(file, value, layers.origin(path) or str(file))
            for file, layers in zip(files, all_layers, strict=True)
            if (value := value_at(layers.tree, path)) is not _ABSENT
        ]
        if not values:
            return []
        chosen = values[0]
        if other := next((one for one in values if one.value != chosen.value), None):
            both = f"{masked(path, chosen.value)} ({chosen.origin}) and {masked(path, other.value)} ({other.origin})"
            return [f"{dotted(path)}: {both} differ, and it is about the whole process: leave one of them out"]
    for layers in all_layers:
        if is_open(layers.tree, path):
            layers.put(path, chosen.value, chosen.origin)
    return []


def value_at(tree: Mapping[str, Any], path: KeyPath) -> object:
    """Return the value at a path; _ABSENT if nothing is given there."""
    node: object = tree
    for name in path:
        if not isinstance(node, Mapping) or name not in node:
            return _ABSENT
        node = node[name]
    return node


def is_open(tree: Mapping[str, Any], path: KeyPath) -> bool:
    """Return whether a value can be put there: a section that is not one stays, and is reported."""
    sections = [value_at(tree, path[:length]) for length in range(1, len(path))]
    return all(section is _ABSENT or isinstance(section, Mapping) for section in sections)


def checked_group(layers: Layers) -> Loaded:
    """Return the settings of one group. Raises ConfigError."""
    if layers.faults and not layers.tree:
        raise ConfigError(layers.faults)
    settings = layers.checked()
    if not settings.group:
        raise ConfigError(["group: is required in each file of several -c"])
    return Loaded(settings, layers)


def repeated_groups(files: Sequence[Path], loaded: Sequence[Loaded]) -> list[str]:
    """Return a sentence for each group that two files describe."""
    first: dict[str, Path] = {}
    problems = []
    for file, one in zip(files, loaded, strict=True):
        group = one.settings.group
        if (other := first.setdefault(group, file)) is not file:
            problems.append(f"group = {group}: {other} and {file} are both about it; leave one of them out")
    return problems


def shared_memory(buffer_memory: int, groups: int) -> int:
    """Return the bytes of memory that so many groups share: `deliver.buffer_memory`, or what they need at least."""
    return max(buffer_memory, groups * LEAST)
