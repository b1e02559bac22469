"""Read YAML: plain values with the line of each key, and never much more than is written.

Aliases of aliases turn a few hundred bytes into millions of values. So `Composer` counts while the nodes are composed,
before a value is built: each node that is written, and for an alias all nodes of what it refers to. Nesting and numbers
have a limit, too. PyYAML itself bounds nothing.

`read_yaml` is for what users write (files, variables, `--set`): it never raises because of what the text says; broken
YAML and duplicate keys become faults with their line. `load_manifest` is for manifests, and raises. No fault quotes the
text, because the line may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from reconsume.sidecar.settings.table import KeyPath, dotted

MOST = 10_000
"""Keys and values of a configuration, which has a few hundred; and those that aliases stand for, in any document."""
DEEPEST = 100
"""Levels of nesting. PyYAML recurses, and so does the code that walks its values. The definition of a custom resource
has about forty."""
LONGEST_NUMBER = 100
"""Characters of a number. PyYAML reads 1:1:1… as digits of base 60, in quadratic time; Python prints no number of
thousands of digits."""
NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
TAB = "character '\\t' that cannot start any token"
"""What PyYAML says of a tab in the indentation."""
GRAMMAR = re.compile(r"""([^'"\\]|'[^'"\\]'|'<[a-z ]+>')*""")
"""A message of PyYAML that quotes single signs and kinds of tokens alone, and nothing of the text."""


class Composer(yaml.SafeLoader):
    """A YAML loader for a document of at most `most` nodes, and of MOST nodes more that its aliases stand for.

    Raises yaml.MarkedYAMLError, with the line of the excess, if the document has more.
    """

    def __init__(self, text: str, most: int = MOST) -> None:
        super().__init__(text)
        self._most, self._written, self._aliased, self._depth = most, 0, 0, 0
        self._sizes: dict[int, int] = {}
        """How many nodes each complete node has, with its aliases followed, by its identity."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node, and count it. Raises yaml.MarkedYAMLError beyond a limit."""
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before = self._written + self._aliased
        self._written += 1
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"is nested deeper than {DEEPEST} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            problem = "an alias refers to the value that holds it"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        if is_alias:
            self._aliased += self._sizes[id(node)]
        else:
            self._sizes[id(node)] = self._written + self._aliased - before
        if self._written > self._most or self._aliased > MOST:
            limit = MOST if self._aliased > MOST else self._most
            problem = f"stands for more than {limit} values, aliases followed"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        if isinstance(node, yaml.ScalarNode) and node.tag in NUMBERS and len(node.value) > LONGEST_NUMBER:
            problem = f"has a number of more than {LONGEST_NUMBER} characters"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node


def load_manifest(text: str, most: int) -> object:
    """Return the value of the one document in `text`, which has at most `most` nodes. Raises yaml.YAMLError."""
    return Composer(text, most).get_single_data()


@dataclass(frozen=True, slots=True)
class Document:
    """A text that was read: its value, the line of each key or item, and the faults of the text itself."""

    value: object
    lines: dict[KeyPath, int]
    faults: tuple[str, ...] = ()


def read_yaml(text: str) -> Document:
    """Return the text as plain values. Never raises because of what the text says."""
    lines: dict[KeyPath, int] = {}
    faults: list[str] = []
    try:
        composer = Composer(text)
        node = composer.get_single_node()
        for path, line in () if node is None else walk(node, ()):
            if path in lines:
                faults.append(f"{dotted(path)}: is written twice, on lines {lines[path]} and {line}")
            lines.setdefault(path, line)
        return Document(None if node is None else composer.construct_document(node), lines, tuple(faults))
    except yaml.YAMLError as error:
        return Document(None, {}, (describe(error),))
    except (ValueError, OverflowError, RecursionError):
        # PyYAML passes on Python's own errors, for a date such as 2026-13-45 or a number of ten thousand digits.
        return Document(None, {}, ("holds a value that cannot be read (an impossible date or number)",))


def walk(node: yaml.Node, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield the path and line of every key and item below `node`."""
    pairs: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        keys = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        pairs = [(key.value, key, value) for key, value in keys if key.tag != "tag:yaml.org,2002:merge"]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(index, value, value) for index, value in enumerate(node.value)]
    for name, position, value in pairs:
        yield (*path, name), position.start_mark.line + 1
        yield from walk(value, (*path, name))


def describe(error: yaml.YAMLError) -> str:
    """Return what is wrong and where, without the text itself, because the line may hold a password."""
    problem, mark = getattr(error, "problem", None) or str(error), getattr(error, "problem_mark", None)
    words = str(problem).partition("\n")[0].replace(TAB, "a tab, where only spaces may be")
    hidden = words if GRAMMAR.fullmatch(words) else re.sub(r"['\"].{2,}['\"]", "…", words)
    where = "" if mark is None else f" on line {mark.line + 1}, column {mark.column + 1}"
    return f"is not YAML{where}: {hidden}"
