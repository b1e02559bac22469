"""Change a YAML document in place. What is not changed keeps its comments, order, quotes and spaces.

The text is not written anew: only the differences are inserted, removed or replaced. The result is then read, and must
have exactly the wanted value.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any, NamedTuple

import yaml

from reconsume.sidecar.deploy.yaml_positions import Kind, Node, locate

Value = Any
"""Any value that YAML can hold."""
WIDTH = 1_000_000
"""Columns. It is so large that no line is folded."""
SHARED = "what must change is shared with other lines (&name, *name): write it out in both"


class CannotReviseError(Exception):
    """A document that is written in a way that cannot be changed in place, such as by a merge or an alias."""


class Edit(NamedTuple):
    """A text that replaces what is between two offsets."""

    start: int
    end: int
    text: str


def revise(text: str, old: Value, new: Value) -> str:
    """Return the text of a document with the value `old`, changed to the value `new`. Raises CannotReviseError."""
    if old == new:
        return text
    root = locate(text)
    if root is None:
        raise CannotReviseError("it is empty")
    changed = _Reviser(text, root).apply(root, old, new)
    try:
        said = yaml.safe_load(changed)
    except yaml.YAMLError as error:
        raise CannotReviseError("its form is not understood") from error
    if said != new:
        shared = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader))
        raise CannotReviseError(SHARED if shared else "its form is not understood")
    return changed


class _Dumper(yaml.SafeDumper):
    """A dumper that indents sequences by two columns from their key. `offset` False: not at all."""

    offset = True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent a sequence if `offset` is set. PyYAML itself does not indent one below a key."""
        super().increase_indent(flow, indentless and not self.offset)


class _UnderKey(_Dumper):
    offset = False


class _Reviser:
    """The edits of one document."""

    def __init__(self, text: str, root: Node) -> None:
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._text = text if text.endswith("\n") else f"{text}{self._newline}"
        self._dumper = _Dumper if _has_offset(root) else _UnderKey
        self._edits: list[Edit] = []

    def apply(self, root: Node, old: Value, new: Value) -> str:
        self._revise(root, old, new)
        text = self._text
        # From the end to the beginning. At one offset, removals come first, and a later insertion ends up behind an
        # earlier one: text is added to an inner collection before it is added to the outer one.
        ordered = sorted(enumerate(self._edits), key=lambda one: (one[1].start, one[1].end, one[0]), reverse=True)
        for _, edit in ordered:
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    def _revise(self, node: Node, old: Value, new: Value) -> None:
        if old == new:
            return
        if node.kind is Kind.ALIAS:
            raise CannotReviseError(SHARED)
        emptied = not new and not node.flow  # a block cannot be empty
        if node.flow and _needs_new_commas(old, new):
            self._put(node.start, node.end, _flow(new))
            return
        if node.kind is Kind.MAP and isinstance(old, dict) and isinstance(new, dict) and not emptied:
            self._map(node, old, new)
        elif node.kind is Kind.SEQ and isinstance(old, list) and _keeps_order(old, new) and not emptied:
            self._seq(node, old, new)
        elif node.kind is Kind.SCALAR or node.flow:
            self._put(node.start, node.end, ("" if node.end > node.start else " ") + _flow(new))
        elif isinstance(new, dict | list) and new and (node.kind is Kind.MAP or isinstance(new, list)):
            self._put(node.start, node.end, self._block(new, node.column).strip())
        else:  # one space further: only a sequence may stand in the column of its key
            self._put(node.start, node.end, f" {_flow(new)}")

    def _map(self, node: Node, old: dict[str, Value], new: dict[str, Value]) -> None:
        for key in old:
            value = node.at(key)
            if key in new and old[key] == new[key]:
                continue
            if value is None:
                raise CannotReviseError(f"{key} comes in by a merge (<<)")
            if key in new:
                self._revise(value, old[key], new[key])
            else:
                self._take_out(node, [child for _, child in node.children].index(value))
        added = {key: value for key, value in new.items() if key not in old}
        if added:
            inner = _flow(added)[1:-1]
            self._add(node, inner, self._block(added, node.column))

    def _seq(self, node: Node, old: list[Value], new: list[Value]) -> None:
        wanted = {item["name"]: item for item in new}
        for number, item in enumerate(old):
            if item["name"] in wanted:
                self._revise(node.children[number][1], item, wanted[item["name"]])
            else:
                self._take_out(node, number)
        known = {item["name"] for item in old}
        added = [item for item in new if item["name"] not in known]
        if added:
            self._add(node, _flow(added)[1:-1], self._block(added, node.column))

    def _add(self, node: Node, inner: str, block: str) -> None:
        """Insert text behind the last child."""
        if not node.flow:
            position = self._after(node)
            self._put(position, position, block)
        elif node.children:
            self._put(node.children[-1][1].end, node.children[-1][1].end, f", {inner}")
        else:
            self._put(node.start + 1, node.start + 1, inner)

    def _take_out(self, node: Node, number: int) -> None:
        key, value = node.children[number]
        start = (key or value).start
        if not node.flow:
            mark = self._text.rindex("-", 0, start) if key is None else start
            self._put(self._text.rfind("\n", 0, mark) + 1, self._line_end(value.end), "")
        elif number:
            self._put(node.children[number - 1][1].end, value.end, "")
        else:
            following = node.children[1] if len(node.children) > 1 else None
            end = value.end if following is None else (following[0] or following[1]).start
            self._put(start, end, "")

    def _after(self, node: Node) -> int:
        """Return the offset of the line behind the node, after the comments that are indented as deep as the node."""
        position = self._line_end(node.end)
        under_key = node.kind is Kind.SEQ and self._dumper is _UnderKey
        while (end := self._line_end(position)) > position:
            line = self._text[position:end]
            depth = len(line) - len(line.lstrip(" "))
            if not line.lstrip(" ").startswith("#") or depth < node.column + under_key:
                break
            position = end
        return position

    def _line_end(self, position: int) -> int:
        end = self._text.find("\n", position)
        return len(self._text) if end < 0 else end + 1

    def _block(self, value: Value, column: int) -> str:
        text = yaml.dump(value, Dumper=self._dumper, sort_keys=False, default_flow_style=False, width=WIDTH)
        return textwrap.indent(text, " " * column)

    def _put(self, start: int, end: int, text: str) -> None:
        self._edits.append(Edit(start, end, text.replace("\n", self._newline)))


def _needs_new_commas(old: Value, new: Value) -> bool:
    """Whether more than one part of a collection is removed, or one is removed and others are added."""
    if isinstance(old, dict) and isinstance(new, dict):
        before, after = {*old}, {*new}
    elif isinstance(old, list) and _keeps_order(old, new):
        before, after = {item["name"] for item in old}, {item["name"] for item in new}
    else:
        return False
    return len(before - after) > 1 or bool(before - after and after - before)


def _keeps_order(old: list[Value], new: Value) -> bool:
    """Whether both are lists of named items, and the new list keeps the order of the old one.

    New items must come after all items that are kept.
    """
    if not isinstance(new, list) or not all(
        isinstance(item, dict) and isinstance(item.get("name"), str) for item in (*old, *new)
    ):
        return False
    before, after = [item["name"] for item in old], [item["name"] for item in new]
    if len({*before}) < len(before) or len({*after}) < len(after):
        return False
    kept = [name for name in before if name in after]
    return after[: len(kept)] == kept


def _has_offset(node: Node) -> bool:
    """Whether the document's first sequence below a key is indented from that key."""
    offset = _first_offset(node)
    return True if offset is None else offset


def _first_offset(node: Node) -> bool | None:
    for key, value in node.children:
        if key is not None and not node.flow and value.kind is Kind.SEQ and not value.flow:
            return value.column > key.column
        offset = _first_offset(value)
        if offset is not None:
            return offset
    return None


def _flow(value: Value) -> str:
    """Return a value on one line, as JSON, which is also YAML."""
    return json.dumps(value, ensure_ascii=False)
