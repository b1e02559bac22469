"""Nothing uses asyncio's default pool, which callers could fill: `sidecar/background.py` has what is used instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [file for folder in ("sidecar", "once") for file in sorted((ROOT / folder).rglob("*.py"))]
OWN_POOLS = {"sidecar/background.py", "sidecar/java/jars.py", "sidecar/groups/survey.py"}
"""Where a pool of threads is created: the one for calls, that of a command that downloads jars, and that of a pass over
all groups, which has ended when the pass returns."""


def uses_of_the_default_pool(tree: ast.Module) -> Iterator[str]:
    """Yield each expression that leaves work to the default pool, or replaces that pool."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="to_thread" | "set_default_executor"):
                yield ast.unparse(node)
            case ast.ImportFrom(module="asyncio") if any(name.name == "to_thread" for name in node.names):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="run_in_executor"), args=[ast.Constant(value=None), *_]):
                yield ast.unparse(node)
            case ast.Attribute(attr="getaddrinfo" | "getnameinfo", value=whose) if ast.unparse(whose) != "socket":
                yield ast.unparse(node)


@pytest.mark.parametrize(
    "text",
    [
        "await asyncio.to_thread(work)",
        "from asyncio import to_thread",
        "loop.run_in_executor(None, work)",
        "loop.getaddrinfo('host', 80)",
        "asyncio.get_running_loop().getnameinfo(address)",
        "loop.set_default_executor(pool)",
    ],
)
def test_the_search_finds_each_way_into_the_default_pool(text: str) -> None:
    assert list(uses_of_the_default_pool(ast.parse(f"async def use():\n    {text}\n")))


@pytest.mark.parametrize("text", ["loop.run_in_executor(self._pool, work)", "socket.getaddrinfo('host', 80)"])
def test_the_search_accepts_a_pool_of_ones_own(text: str) -> None:
    assert not list(uses_of_the_default_pool(ast.parse(text)))


def test_no_code_uses_the_default_pool() -> None:
    found = {str(file.relative_to(ROOT)): list(uses_of_the_default_pool(ast.parse(file.read_text()))) for file in FILES}
    assert {file: uses for file, uses in found.items() if uses} == {}


def test_no_other_code_makes_a_pool_that_could_be_without_a_bound() -> None:
    makers = {str(file.relative_to(ROOT)) for file in FILES if "ThreadPoolExecutor(" in file.read_text()}
    assert makers == OWN_POOLS
