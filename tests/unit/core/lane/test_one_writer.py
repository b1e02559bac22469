"""Each field of a partition has one writer, and a lane has a skin: nobody outside names its parts."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from reconsume.sidecar.core.lane.lane import Lane
from reconsume.sidecar.core.lane.partition import LanePartition

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
            if not isinstance(target, ast.Attribute) or target.attr not in FIELDS:
                continue
            owner = target.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "suspicion")):
                yield f"{path.relative_to(CORE)}:{target.lineno}: {ast.unparse(target)}"


def test_only_a_partition_writes_its_own_fields() -> None:
    assert [found for path in sorted(CORE.rglob("*.py")) if path != HOME for found in writes(path)] == []


def test_the_search_finds_each_way_to_write() -> None:
    text = "part.load += 1\npart.paused, other = None, 1\ndel part.withheld[:2]\nself.load = 1\npart.level: str = ''\n"
    found = [ast.unparse(target) for node in ast.walk(ast.parse(text)) for target in targets(node)]
    assert sorted(found) == ["other", "part.level", "part.load", "part.paused", "part.withheld", "self.load"]


def test_only_their_owner_makes_pauses() -> None:
    """Whoever else did so would have to have their times looked at."""
    assert {path.name for path in CORE.rglob("*.py") if "Pause" in set(called(path))} == {"paused.py"}


def called(path: Path) -> Iterator[str]:
    """The names that a module calls."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


# --- the organs ----------------------------------------------------------------------------------------------------

PRODUCT = CORE.parent
AROUND = [CORE, *(PRODUCT / part for part in ("runtime", "observability", "delivery"))]
"""The packages that have a lane. On pages a lane is a row."""
OPEN = {"counters", "queues", "shown"}
"""What a lane has beside its methods: its counts, its queues, which have methods for who reads them, what it shows."""


def organs(path: Path) -> Iterator[str]:
    """The places where a module names a part of a lane: `lane.x`, `self.lane.x` or `runner.lane.x`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute) or node.attr in OPEN or callable(getattr(Lane, node.attr, None)):
            continue
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        if owner in ("lane", "_lane"):
            yield f"{path.relative_to(PRODUCT)}:{node.lineno}: {ast.unparse(node)}"


def test_nothing_outside_a_lane_names_a_part_of_it() -> None:
    """The dispatcher has a port of its own, `LaneQueue`."""
    inside = {CORE / "pace" / "dispatcher.py", *(CORE / "lane").glob("*.py")}
    assert [
        found for part in AROUND for path in sorted(part.rglob("*.py")) if path not in inside for found in organs(path)
    ] == []
