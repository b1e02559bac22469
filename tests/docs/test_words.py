"""docs/glossary.md: one word for one thing, and the words that are no names in the code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
PACKAGES = ("sidecar", "spark", "topics", "once")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""One word of an identifier."""

MOST: dict[str, int] = {
    "place": 4,
    "places": 2,
    "slot": 0,
    "part": 27,
    "parts": 44,
    "found": 53,
    "told": 121,
    "given": 45,
    "asked": 54,
    "heard": 34,
    "seen": 34,
    "left": 92,
    "anew": 12,
    "again": 57,
    "apart": 12,
    "aside": 8,
    "alone": 1,
    "together": 8,
    "story": 0,
    "stories": 0,
    "account": 0,
    "accounts": 0,
    "life": 0,
    "lives": 0,
    "watch": 15,
    "wish": 0,
    "desk": 0,
    "parcel": 0,
    "roster": 0,
    "board": 0,
}
"""The most times that each word may be an identifier of the product. The numbers only go down."""
FEW = 5
"""A count may be this much below its number: else each change of a line would have to change the table."""

TIME_WORDS = frozenset(
    {"now", "steady", "wall", "at", "since", "until", "due", "delay", "wait", "interval", "backoff", "lasted", "age"}
    | {"after", "alarm"}
)
"""The last words of names that hold a time. In the core such a name ends in its unit: `now_ms`, `level_delay_ms`."""
NUMBERS = frozenset({"int", "float", "int | None", "float | None"})
MOST_WITHOUT_UNIT = 3
"""The most times of the core that have no unit in their names. The number only goes down."""

IDENTIFIERS = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.keyword: "arg",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.alias: "asname",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
}
"""The field of each node that holds an identifier: of a variable, attribute, parameter, function or class."""


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Every identifier of a module, as often as it stands there."""
    for node in ast.walk(tree):
        field = IDENTIFIERS.get(type(node))
        if field is not None and (name := getattr(node, field)) is not None:
            yield name


@cache
def counts() -> Counter[str]:
    """How often each identifier stands in the product."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return Counter(name for file in files for name in identifiers(ast.parse(file.read_text(encoding="utf-8"))))


def annotated(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name and the type of each parameter, field and variable of a module that says its type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, ast.unparse(node.annotation)
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target).rpartition(".")[2], ast.unparse(node.annotation)


def without_unit(source: str) -> list[str]:
    """The names of times in a module that do not say their unit."""
    names = [name for name, kind in annotated(ast.parse(source)) if kind in NUMBERS]
    return [name for name in names if name.rpartition("_")[2] in TIME_WORDS]


def plain(name: str) -> str:
    """An identifier as it is compared: `_place` and `PLACE` are `place`, and `in_place` is another word."""
    return "" if name.startswith("__") else name.strip("_").lower()


def complaint(word: str, count: int, most: int) -> str:
    """What is to be done about a count; empty if nothing."""
    if count > most:
        return f"{word} is the name of {count} things, and of {most} at most: name the new ones by docs/glossary.md"
    return f"{word}: lower the number to {count}" if count < most - FEW else ""


def rows(section: str) -> list[list[str]]:
    """The cells of each row of the tables in a section of the page."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]
    return [row for row in cells if row[0] not in ("word", "not") and set(row[0]) != {"-"}]


def test_words_that_are_no_names_become_fewer() -> None:
    numbers: Counter[str] = Counter()
    for name, count in counts().items():
        numbers[plain(name)] += count
    assert [sentence for word, most in MOST.items() if (sentence := complaint(word, numbers[word], most))] == []


@pytest.mark.parametrize(
    ("count", "sentence"), [(11, "the name of 11 things"), (10, ""), (10 - FEW, ""), (4, "lower the number to 4")]
)
def test_more_of_them_is_a_fault_and_much_fewer_is_a_new_number(count: int, sentence: str) -> None:
    assert sentence in complaint("place", count, 10)
    assert bool(sentence) == bool(complaint("place", count, 10))


def test_times_of_the_core_without_a_unit_become_fewer() -> None:
    files = {file: without_unit(file.read_text("utf-8")) for file in (ROOT / "sidecar" / "core").rglob("*.py")}
    count = sum(map(len, files.values()))
    most = MOST_WITHOUT_UNIT
    assert count <= most, (
        f"add the unit, such as _ms: { ({file.name: names for file, names in files.items() if names}) }"
    )
    assert count >= most - FEW, f"lower the number to {count}"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("def f(now: int, until_ms: int, *, level_delay: int | None): pass", ["now", "level_delay"]),
        ("class A:\n    due: int = 0\n    due_ms: int = 0\n    now: Now", ["due"]),
        ("self._joined_at: int = 1", ["_joined_at"]),
        ("at = 1", []),
        ("def f(offset: int, waiting: int, at: Partition): pass", []),
    ],
)
def test_each_time_that_says_its_type_is_looked_at(line: str, names: list[str]) -> None:
    assert without_unit(line) == names


MODULE = """
import a as place
class Place:
    def place(self, place, *, PLACE=1): self._place = f(place=place)
in_place, places, __place__ = 1, 2, "place"
try: pass
except E as place: pass
match x:
    case 1 as place: pass
"""


def test_each_way_to_name_a_thing_is_counted() -> None:
    assert [plain(name) for name in identifiers(ast.parse(MODULE))].count("place") == 10


def test_the_page_has_the_words_that_are_counted() -> None:
    assert [word for row in rows("Words that are no names") for word in row[0].split(", ")] == list(MOST)


def test_there_are_forty_seven_words_each_once_and_each_is_a_word_of_the_code() -> None:
    words = [row[0] for row in rows("The words")]
    assert len(words) == len(set(words)) == 47
    known = {part.lower() for name in counts() for part in WORD.findall(name)}
    assert [word for word in words if not set(word.split()) <= known] == []
    assert set(words) & MOST.keys() == set()
