"""docs/contract.md as data: each promise by its number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
PROMISE = re.compile(r"^### (\d+\.\d+) (.+)\n\n((?:.|\n)*?)(?=^##|\Z)", re.MULTILINE)
TEST = re.compile(r"`(tests/[^`]+)`")


class Promise(NamedTuple):
    """One promise. `text` has no line breaks. `held` and `longer`: the paths of its tests, which may be globs."""

    number: str
    title: str
    text: str
    held: tuple[str, ...]
    longer: tuple[str, ...]


def promise_of(number: str, title: str, body: str) -> Promise:
    text, _, tests = body.rpartition("Held by: ")
    held, _, longer = tests.partition("Longer: ")
    return Promise(number, title, " ".join(text.split()), tuple(TEST.findall(held)), tuple(TEST.findall(longer)))


PROMISES: dict[str, Promise] = {
    number: promise_of(number, title, body) for number, title, body in PROMISE.findall(PAGE)
}
