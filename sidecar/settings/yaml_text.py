"""Turn one YAML text into plain values, with the line of each key.

Broken YAML and duplicate keys become faults with their line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from reconsume.sidecar.settings.values import KeyPath
from reconsume.sidecar.settings.yaml_bounds import Composer

TAB = "character '\\t' that cannot start any token"
"""What PyYAML says of a tab in the indentation."""
GRAMMAR = re.compile(r"""([^'"\\]|'[^'"\\]'|'<[a-z ]+>')*""")
"""A message of PyYAML that quotes single signs and kinds of tokens alone, and nothing of the text."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text that was read: its value, the line of each key or item, and the faults of the text itself."""

    value: object
    lines: dict[KeyPath, int]
    faults: tuple[str, ...] = ()


def read_yaml(text: str) -> Document:
    """Return the text as plain values. Never raises because of what the text says."""
    try:
        return compose(text)
    except yaml.YAMLError as error:
        return Document(None, {}, (describe(error),))
    except (ValueError, OverflowError, RecursionError):
        # PyYAML passes on Python's own errors, for a date such as 2026-13-45 or a number of ten thousand digits.
        return Document(None, {}, ("holds a value that cannot be read (an impossible date or number)",))


def compose(text: str) -> Document:
    """Return the text as plain values. Raises yaml.YAMLError."""
    loader = Composer(text)
    try:
        node = loader.document()
        if node is None:
            return Document(None, {})
        positions = list(walk(node, ()))
        value = loader.construct_document(node)
    finally:
        loader.dispose()
    lines: dict[KeyPath, int] = {}
    faults: list[str] = []
    for path, line in positions:
        if path in lines:
            faults.append(f"{dotted(path)}: is written twice, on lines {lines[path]} and {line}")
        lines.setdefault(path, line)
    return Document(value, lines, tuple(faults))


def walk(node: yaml.Node, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield the path and line of every key and item below `node`."""
    for name, position, value in children(node):
        yield (*path, name), position.start_mark.line + 1
        yield from walk(value, (*path, name))


def children(node: yaml.Node) -> Iterator[tuple[str | int, yaml.Node, yaml.Node]]:
    """Yield each key or index, the node where it is written, and the node of its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                yield key.value, key, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value, value


def describe(error: yaml.YAMLError) -> str:
    """Return what is wrong and where, without the text itself, because the line may hold a password."""
    problem, mark = getattr(error, "problem", None) or str(error), getattr(error, "problem_mark", None)
    words = str(problem).partition("\n")[0].replace(TAB, "a tab, where only spaces may be")
    hidden = words if GRAMMAR.fullmatch(words) else re.sub(r"['\"].{2,}['\"]", "…", words)
    where = "" if mark is None else f" on line {mark.line + 1}, column {mark.column + 1}"
    return f"is not YAML{where}: {hidden}"


def dotted(path: KeyPath) -> str:
    """Return a path as users write it: `topics[1].name`."""
    text = ""
    for name in path:
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text
