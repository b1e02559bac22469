"""One YAML text to plain values, with the line of each key; broken YAML and doubled keys are faults with a place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from sidecar.settings.values import KeyPath
from sidecar.settings.yaml_bounds import Composer


@dataclass(frozen=True, slots=True)
class Document:
    """A text read: its value, the line on which each key or item stands, and what is wrong with it as a text."""

    value: object
    lines: dict[KeyPath, int]
    faults: tuple[str, ...] = ()


def read_yaml(text: str) -> Document:
    """The text as plain values; never raises for what the text says."""
    try:
        return compose(text)
    except yaml.YAMLError as error:
        return Document(None, {}, (describe(error),))
    except (ValueError, OverflowError, RecursionError):
        # A date such as 2026-13-45, or a number of ten thousand digits: PyYAML lets Python's own errors through.
        return Document(None, {}, ("holds a value that cannot be read (an impossible date or number)",))


def compose(text: str) -> Document:
    """The text as plain values; yaml.YAMLError."""
    loader = Composer(text)
    try:
        node = loader.document()
        if node is None:
            return Document(None, {})
        places = list(walk(node, ()))
        value = loader.construct_document(node)
    finally:
        loader.dispose()
    lines: dict[KeyPath, int] = {}
    faults: list[str] = []
    for path, line in places:
        if path in lines:
            faults.append(f"{dotted(path)}: is written twice, on lines {lines[path]} and {line}")
        lines.setdefault(path, line)
    return Document(value, lines, tuple(faults))


def walk(node: yaml.Node, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """The path and line of every key and item below `node`."""
    for part, place, value in children(node):
        yield (*path, part), place.start_mark.line + 1
        yield from walk(value, (*path, part))


def children(node: yaml.Node) -> Iterator[tuple[str | int, yaml.Node, yaml.Node]]:
    """Each key or index, the node where it is written, and the node of its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                yield key.value, key, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value, value


def describe(error: yaml.YAMLError) -> str:
    """What is wrong and where, without the text itself: the line may hold a password."""
    problem, mark = getattr(error, "problem", None) or str(error), getattr(error, "problem_mark", None)
    hidden = re.sub(r"['\"].{2,}['\"]", "…", str(problem).partition("\n")[0])
    place = "" if mark is None else f" on line {mark.line + 1}, column {mark.column + 1}"
    return f"is not YAML{place}: {hidden}"


def dotted(path: KeyPath) -> str:
    """A path as users write it: `topics[1].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
