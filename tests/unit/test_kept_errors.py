"""No error is kept beyond its handler: it would hold the frames that it has passed, and all that they hold.

An exception that a frame on its way names is part of a reference cycle, together with a client, a batch or a request of
a megabyte. So an error is raised where it is made, or goes on as a value: a word, a text, a class with its text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCES = ("sidecar", "spark", "topics", "once")
ROOT = Path(__file__).parents[2]

RAISED = {
    ("sidecar/kafka/committer/transaction.py", "failure"): "deleted in a `finally`",
    ("sidecar/kafka/committer/transaction_outcome.py", "failure"): "an argument that its caller is handling",
}
"""Names that are raised, and why that makes no cycle."""
KEPT = {
    ("sidecar/kafka/consumer/consumer.py", "self.failure"): "the thread has ended, and the process ends",
    ("sidecar/kafka/queues/queue_thread.py", "self.failure"): "the same",
    ("sidecar/kafka/owner_reader.py", "self.failure"): "the same",
    ("sidecar/background.py", "outcome.set_exception"): "no frame that the error has passed names the future",
}
"""Where an error is kept, and why that is harmless."""
KEEPING = ("append", "add", "put", "set_exception", "setdefault")
"""Methods that keep what they are given."""


@cache
def trees() -> list[tuple[str, ast.Module]]:
    files = (file for source in SOURCES for file in sorted((ROOT / source).rglob("*.py")))
    return [(str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))) for file in files]


def raised_names(tree: ast.Module) -> Iterator[str]:
    """Variables that are raised, except by the handler that has caught them."""
    caught = {
        id(raised)
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler)
        for raised in ast.walk(handler)
        if isinstance(raised, ast.Raise) and isinstance(raised.exc, ast.Name) and raised.exc.id == handler.name
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and id(node) not in caught and isinstance(node.exc, ast.Name | ast.Attribute):
            name = ast.unparse(node.exc)
            if not name.rpartition(".")[2].lstrip("_")[:1].isupper():
                yield name


def kept_errors(tree: ast.Module) -> Iterator[str]:
    """What a handler assigns the error to that it has caught, by name, by condition, or in a list or dictionary."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        for node in ast.walk(handler):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and _is_itself(node.value, handler.name):
                yield ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            elif isinstance(node, ast.Call) and _method(node) in KEEPING and _has(node.args, handler.name):
                yield ast.unparse(node.func)


def _has(arguments: list[ast.expr], name: str) -> bool:
    return any(_is_itself(argument, name) for argument in arguments)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_itself(value: ast.expr | None, name: str) -> bool:
    """Whether an expression may be the error itself, and not what is read from it."""
    match value:
        case ast.Name():
            return value.id == name
        case ast.BoolOp():
            return any(_is_itself(one, name) for one in value.values)
        case ast.IfExp():
            return _is_itself(value.body, name) or _is_itself(value.orelse, name)
        case ast.Tuple() | ast.List():
            return any(_is_itself(one, name) for one in value.elts)
    return False


def futures_errors(tree: ast.Module) -> Iterator[str]:
    """Exceptions that are put into a future: it is held by a frame of whoever waits for it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _method(node) == "set_exception":
            yield ast.unparse(node.func)


def test_no_error_is_raised_by_the_name_of_a_variable() -> None:
    found = {(file, name) for file, tree in trees() for name in raised_names(tree)}
    assert found - RAISED.keys() == set(), "raise it where it is made, or hand on its class and text"
    assert RAISED.keys() - found == set(), "no such exception is left"


def test_no_error_is_kept_beyond_its_handler() -> None:
    found = {(file, name) for file, tree in trees() for name in kept_errors(tree)}
    assert found - KEPT.keys() == set(), "keep what is read from it"
    assert KEPT.keys() - found == set(), "no such exception is left"


def test_no_error_is_put_into_a_future() -> None:
    found = {(file, name) for file, tree in trees() for name in futures_errors(tree)}
    assert found - KEPT.keys() == set()


@pytest.mark.parametrize(
    ("text", "raised", "kept"),
    [
        ("try: f()\nexcept E as fault: raise fault", [], []),
        ("try: f()\nexcept E as fault: first = first or fault\nraise first", ["first"], ["first"]),
        ("try: f()\nexcept E as fault: self.x = fault\nraise self.x", ["self.x"], ["self.x"]),
        ("try: f()\nexcept E as fault: q.put(fault)", [], ["q.put"]),
        ("try: f()\nexcept E as fault: why = str(fault)\nraise E(why)", [], []),
        ("try: f()\nexcept E as fault: a = fault if b else None", [], ["a"]),
        ("raise E", [], []),
    ],
)
def test_what_keeps_an_error_is_seen(text: str, raised: list[str], kept: list[str]) -> None:
    tree = ast.parse(text)
    assert (list(raised_names(tree)), list(kept_errors(tree))) == (raised, kept)
