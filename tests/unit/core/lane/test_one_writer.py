"""Each field of a partition has one writer, and each word of the lane one room."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from sidecar.core.lane.partition import LanePartition

CORE = Path(__file__).parents[4] / "sidecar" / "core"
HOME = CORE / "lane" / "partition.py"
FIELDS = {field.name for field in fields(LanePartition)}


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement writes to; a tuple is taken apart."""
    if isinstance(node, ast.Assign):
        found: list[ast.expr] = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        found = [node.target]
    elif isinstance(node, ast.Delete):
        found = [target.value if isinstance(target, ast.Subscript) else target for target in node.targets]
    else:
        return
    while found:
        target = found.pop()
        if isinstance(target, ast.Tuple | ast.List):
            found += target.elts
        else:
            yield target


def writes(path: Path) -> Iterator[str]:
    """The places where a module writes a field of an object that is not its own, under a name of a partition's."""
    for node in ast.walk(ast.parse(path.read_text())):
        for target in targets(node):
            foreign = isinstance(target, ast.Attribute) and not (
                isinstance(target.value, ast.Name) and target.value.id in ("self", "watch", "cls")
            )
            if foreign and target.attr in FIELDS:
                yield f"{path.relative_to(CORE)}:{target.lineno}: {ast.unparse(target)}"


def test_only_a_partition_writes_its_own_fields() -> None:
    assert [found for path in sorted(CORE.rglob("*.py")) if path != HOME for found in writes(path)] == []


def test_the_search_finds_each_way_to_write() -> None:
    text = "part.load += 1\npart.paused, other = None, 1\ndel part.withheld[:2]\nself.load = 1\npart.level: str = ''\n"
    found = [ast.unparse(target) for node in ast.walk(ast.parse(text)) for target in targets(node)]
    assert sorted(found) == ["other", "part.level", "part.load", "part.paused", "part.withheld", "self.load"]
