"""YAML that stands for more than is written: aliases of aliases make millions of values of a few hundred bytes.

Counted before anything is made of the text: the nodes as they are composed, then what they stand for with every alias
followed. PyYAML does neither.
"""

from __future__ import annotations

import yaml

MOST = 10_000
"""Keys and values of a document, every alias followed. A configuration has a few hundred."""

DEEPEST = 100
"""Levels; PyYAML, and what walks its values, recurse. The definition of a custom resource has some forty."""


class Composer(yaml.SafeLoader):
    """Composes a document of so many nodes at most. Raises yaml.YAMLError with the line where it has more."""

    def __init__(self, text: str, most: int = MOST) -> None:
        super().__init__(text)
        self._most, self._count, self._depth = most, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """One more node."""
        self._count += 1
        self._depth += 1
        if self._count > self._most:
            raise too_many(self.get_mark(), self._most)
        if self._depth > DEEPEST:
            problem = f"is nested deeper than {DEEPEST} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def document(self) -> yaml.Node | None:
        """The one document's node, None for an empty text."""
        node = self.get_single_node()
        if node is not None:
            expect_few(node, self._most if self._most <= MOST else self._count + MOST)
        return node


def expect_few(root: yaml.Node, most: int) -> None:
    """Raise yaml.YAMLError, with its line, for a value that stands for more than `most`, or for itself."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known == 0:
            raise yaml.MarkedYAMLError(
                problem="an alias refers to the value that holds it", problem_mark=node.start_mark
            )
        if known is None:
            sizes[id(node)] = 0
            known = 1 + sum(map(size, parts(node)))
            if known > most:
                raise too_many(node.start_mark, most)
            sizes[id(node)] = known
        return known

    size(root)


def parts(node: yaml.Node) -> list[yaml.Node]:
    """The nodes that a collection holds, keys too; none for a scalar."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def too_many(mark: yaml.Mark | None, most: int) -> yaml.MarkedYAMLError:
    """What is said of it."""
    return yaml.MarkedYAMLError(problem=f"stands for more than {most} values, aliases followed", problem_mark=mark)


def load(text: str, most: int) -> object:
    """The value of the one document in `text`: at most `most` nodes, and MOST by aliases. Raises yaml.YAMLError."""
    composer = Composer(text, most)
    try:
        node = composer.document()
        return None if node is None else composer.construct_document(node)
    finally:
        composer.dispose()
