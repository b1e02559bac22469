"""Refuse YAML that stands for far more than is written.

Aliases of aliases turn a few hundred bytes into millions of values. Everything is counted before a value is built: the
nodes while they are composed, then their values with every alias followed. PyYAML does neither. Numbers have a length.
"""

from __future__ import annotations

import yaml

MOST = 10_000
"""Keys and values of a document, with every alias followed. A configuration has a few hundred."""

DEEPEST = 100
"""Levels of nesting. PyYAML recurses, and so does the code that walks its values. The definition of a custom resource
has about forty."""

LONGEST_NUMBER = 100
"""Characters of a number. PyYAML reads 1:1:1… as digits of base 60, in quadratic time; Python prints no number of
thousands of digits."""
NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class Composer(yaml.SafeLoader):
    """A YAML loader for a document of at most `most` nodes.

    Raises yaml.YAMLError, with the line of the excess, if the document has more.
    """

    def __init__(self, text: str, most: int = MOST) -> None:
        super().__init__(text)
        self._most, self._count, self._depth = most, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Count one node, and compose it. Raises yaml.YAMLError if there are too many, or if it is too deep."""
        self._count += 1
        self._depth += 1
        if self._count > self._most:
            raise too_many(self.get_mark(), self._most)
        if self._depth > DEEPEST:
            problem = f"is nested deeper than {DEEPEST} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode) and node.tag in NUMBERS and len(node.value) > LONGEST_NUMBER:
            problem = f"has a number of more than {LONGEST_NUMBER} characters"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return node

    def document(self) -> yaml.Node | None:
        """Return the node of the one document. None for an empty text."""
        node = self.get_single_node()
        if node is not None:
            expect_few(node, self._most if self._most <= MOST else self._count + MOST)
        return node


def expect_few(root: yaml.Node, most: int) -> None:
    """Raise yaml.YAMLError if a value stands for more than `most` values, or contains itself.

    The error has the line of that value.
    """
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known == 0:
            raise yaml.MarkedYAMLError(
                problem="an alias refers to the value that holds it", problem_mark=node.start_mark
            )
        if known is None:
            sizes[id(node)] = 0
            known = 1 + sum(map(size, children(node)))
            if known > most:
                raise too_many(node.start_mark, most)
            sizes[id(node)] = known
        return known

    size(root)


def children(node: yaml.Node) -> list[yaml.Node]:
    """Return the nodes that a collection holds, including keys. Empty for a scalar."""
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def too_many(mark: yaml.Mark | None, most: int) -> yaml.MarkedYAMLError:
    """Return the error for a value that stands for more than `most` values."""
    return yaml.MarkedYAMLError(problem=f"stands for more than {most} values, aliases followed", problem_mark=mark)


def load(text: str, most: int) -> object:
    """Return the value of the one document in `text`. Raises yaml.YAMLError.

    The text may have `most` nodes. With every alias followed it may stand for `most` values, or, if `most` is above
    MOST, for MOST more than its nodes.
    """
    composer = Composer(text, most)
    try:
        node = composer.document()
        return None if node is None else composer.construct_document(node)
    finally:
        composer.dispose()
