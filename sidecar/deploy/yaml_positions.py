"""Turn a YAML document into a tree with the position of each node in the text. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import yaml


class Kind(StrEnum):
    """The kind of a node."""

    MAP = "map"
    SEQ = "seq"
    SCALAR = "scalar"
    ALIAS = "alias"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `start` and `end` are offsets in the text, without the comments and empty lines that follow.

    `column`: of the first key or dash. `children`: (key, value) of a map; (None, item) of a sequence.
    """

    kind: Kind
    flow: bool
    start: int
    end: int
    column: int
    value: str = ""
    children: tuple[tuple[Node | None, Node], ...] = ()

    def at(self, key: str) -> Node | None:
        """Return the value of a key as it is written. None if the key is missing, or comes from a merge."""
        return next((value for name, value in self.children if name is not None and name.value == key), None)


def locate(text: str) -> Node | None:
    """Return the tree of the one document in `text`. None if it is empty. Raises yaml.YAMLError."""
    events = iter(list(yaml.parse(text, Loader=yaml.SafeLoader)))
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            root = _node(text, events, event)
            return None if root.kind is Kind.SCALAR and not root.value else root
    return None


def _node(text: str, events: Iterator[yaml.Event], event: yaml.Event) -> Node:
    begin, behind = event.start_mark, event.end_mark
    if begin is None or behind is None:
        raise TypeError("PyYAML marks all that it parses from a text")
    start, column, end = begin.index, begin.column, behind.index
    if isinstance(event, yaml.AliasEvent):
        return Node(Kind.ALIAS, False, start, end, column)
    if isinstance(event, yaml.ScalarEvent):
        if event.style in ("|", ">"):  # PyYAML puts the end where the next token begins
            end = start + len(text[start:end].rstrip())
        return Node(Kind.SCALAR, False, start, end, column, event.value)
    if isinstance(event, yaml.MappingStartEvent):
        return _collection(text, Kind.MAP, bool(event.flow_style), start, column, tuple(_pairs(text, events)))
    items = tuple((None, item) for item in _items(text, events, yaml.SequenceEndEvent))
    return _collection(text, Kind.SEQ, bool(getattr(event, "flow_style", False)), start, column, items)


def _pairs(text: str, events: Iterator[yaml.Event]) -> Iterator[tuple[Node, Node]]:
    nodes = _items(text, events, yaml.MappingEndEvent)
    for key in nodes:
        yield key, next(nodes)


def _items(text: str, events: Iterator[yaml.Event], until: type[yaml.Event]) -> Iterator[Node]:
    for event in events:
        if isinstance(event, until):
            return
        yield _node(text, events, event)


def _collection(
    text: str, kind: Kind, flow: bool, start: int, column: int, children: tuple[tuple[Node | None, Node], ...]
) -> Node:
    if not flow:
        if text[start] in "&!":
            start, column = _first(text, children[0])
        return Node(kind, False, start, children[-1][1].end, column, "", children)
    opening = text.index("{" if kind is Kind.MAP else "[", start)
    inside = children[-1][1].end if children else opening + 1
    closing = _closing(text, inside, "}" if kind is Kind.MAP else "]")
    return Node(kind, True, opening, closing + 1, column, "", children)


def _first(text: str, child: tuple[Node | None, Node]) -> tuple[int, int]:
    """Return the offset and column of the first key or dash.

    PyYAML reports the anchor or tag before it as the start.
    """
    key, value = child
    if key is not None:
        return key.start, key.column
    position = text.rindex("-", 0, value.start)
    return position, position - (text.rfind("\n", 0, position) + 1)


def _closing(text: str, position: int, sign: str) -> int:
    """Return the offset where a flow collection closes.

    Between its last child and that position there are only commas, space and comments.
    """
    while text[position] != sign:
        position = text.index("\n", position) if text[position] == "#" else position + 1
    return position
