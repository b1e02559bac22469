"""Every log line that the code may write, read from the code: kind, level and fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parents[2] / "sidecar"
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Line(NamedTuple):
    """One call that logs. `event` is empty where it has no name, and ends with `*` where the rest is computed."""

    where: str
    event: str
    level: str
    fields: frozenset[str]


class Forwarding(NamedTuple):
    """A function that logs under the name that it is given as its argument number `position`."""

    file: Path
    name: str
    position: int
    level: str
    fields: frozenset[str]


def lines(folder: Path = SOURCES) -> list[Line]:
    """Every line that files below `folder` may write."""
    files = [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(folder.rglob("*.py"))]
    found: list[Line] = []
    forwarding: list[Forwarding] = []
    for path, tree in files:
        for function, call in _calls(tree):
            if not _logs(call):
                continue
            told = _extra(call, function)
            level = LEVELS[call.func.attr]  # type: ignore[attr-defined]
            fields = frozenset(told) - {"event", "about"}  # `about` is explained once for all kinds
            event = told.get("event")
            parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
            if isinstance(event, ast.Name) and event.id in parameters:
                forwarding.append(Forwarding(path, function.name, parameters.index(event.id), level, fields))
            else:
                found.append(Line(f"{path.name}:{call.lineno}", _name(event), level, fields))
    return [*found, *_forwarded(files, forwarding)]


def _forwarded(files: list[tuple[Path, ast.Module]], forwarding: list[Forwarding]) -> Iterator[Line]:
    for path, tree in files:
        for _, call in _calls(tree):
            name = getattr(call.func, "attr", "")  # those that forward are methods
            for one in forwarding:
                if one.name == name and (one.file == path or not name.startswith("_")):
                    event = call.args[one.position] if len(call.args) > one.position else None
                    yield Line(f"{path.name}:{call.lineno}", _name(event), one.level, one.fields)


def _calls(tree: ast.Module) -> Iterator[tuple[Function, ast.Call]]:
    """Each call with the function that it stands in, the innermost one."""
    within: dict[ast.Call, Function] = {}
    for function in ast.walk(tree):  # from the outside to the inside
        if isinstance(function, Function):
            within |= {node: function for node in ast.walk(function) if isinstance(node, ast.Call)}
    yield from ((function, call) for call, function in within.items())


def _logs(call: ast.Call) -> bool:
    at = call.func
    return (
        isinstance(at, ast.Attribute) and at.attr in LEVELS and isinstance(at.value, ast.Name) and at.value.id == "_LOG"
    )


def _extra(call: ast.Call, function: Function) -> dict[str, ast.expr]:
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "extra"), None)
    return {} if given is None else _items(given, function)


def _items(node: ast.expr, function: Function) -> dict[str, ast.expr]:
    """The keys and values of a dict, written where it is used or assigned to a name in the same function."""
    if isinstance(node, ast.Name):
        node = _assigned(node.id, function)
    assert isinstance(node, ast.Dict), f"line {node.lineno}: extra is no dict that can be read"
    found: dict[str, ast.expr] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            found |= _items(value, function)
        else:
            assert isinstance(key, ast.Constant)
            found[str(key.value)] = value
    return found


def _assigned(name: str, function: Function) -> ast.expr:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            names = [target] if isinstance(target, ast.Name) else list(getattr(target, "elts", ()))
            values = [value] if isinstance(target, ast.Name) else list(getattr(value, "elts", ()))
            for one, what in zip(names, values, strict=False):
                if isinstance(one, ast.Name) and one.id == name and isinstance(what, ast.Dict):
                    return what
    raise AssertionError(f"{function.name}: {name} is no dict that can be read")


def _name(event: ast.expr | None) -> str:
    if isinstance(event, ast.Constant):
        return str(event.value)
    if isinstance(event, ast.JoinedStr) and isinstance(event.values[0], ast.Constant):
        return str(event.values[0].value) + "*"
    return ""
