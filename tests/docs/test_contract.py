"""docs/contract.md: its numbers, the tests that it names, and whoever cites it. No other document may be cited that is
not in the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.docs.contract_page import PAGE, PROMISES, ROOT

FOLDERS = ("sidecar", "spark", "topics", "once", "tests", "docs", "examples", "deploy", "benchmarks")
SUFFIXES = {".py", ".md", ".html", ".yaml", ".toml", ".sh"}
CITATION = re.compile(r"ontract\s+(\d+\.\d+(?:,\s+\d+\.\d+|\s+(?:and|or|to)\s+\d+\.\d+)*)")
PARAGRAPH = re.compile(r"(?<!RFC \d{4} )§.*")
ABSENT = (
    *(f"{name}.md" for name in ("CONTRACT", "INTERFACE", "ARCHITECTURE", "DECISIONS", "HOUSE", "NEXT", "faults")),
    *(f"{before}{name}" for name in ("INTERFACE", "ARCHITECTURE", "DECISIONS", "HOUSE") for before in ("(", "of ")),
    *("architecture names", "http-delivery"),
)
"""How documents were cited that only their authors had."""
ALL_LONG = re.compile(r"^pytestmark = .*mark\.long", re.MULTILINE)
TESTS = re.compile(r"^((?:@.*\n(?:[ \])}].*\n)*)*)(?:async )?def test_", re.MULTILINE)
SOMEWHERE_LONG = re.compile(r"mark\.(?:long|soak)|\binner\(")


@cache
def texts() -> dict[str, str]:
    """The text of each file that may cite something, by its path."""
    files = [path for name in FOLDERS for path in (ROOT / name).rglob("*")] + list(ROOT.glob("*.md"))
    kept = [path for path in files if path.suffix in SUFFIXES and path != Path(__file__)]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in kept}


def all_long(text: str) -> bool:
    """Whether each test of a file is in the outer ring."""
    tests = TESTS.findall(text)
    return bool(ALL_LONG.search(text)) or (bool(tests) and all("@pytest.mark.long" in marks for marks in tests))


def files_of(named: str) -> list[Path]:
    return [path for path in ROOT.glob(named) if path.name.startswith("test_") and path.suffix == ".py"]


def test_the_numbers_rise_and_begin_with_the_number_of_their_part() -> None:
    numbers = [tuple(map(int, number.split("."))) for number in PROMISES]
    assert len(numbers) == PAGE.count("\n### ") > 100
    assert [later for former, later in pairwise(numbers) if later <= former] == []
    parts = re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE)
    assert [str(part) for part in dict.fromkeys(part for part, _ in numbers)] == parts
    assert re.findall(r"^\| \[(\d+)\]\(#", PAGE, re.MULTILINE) == parts


def test_each_promise_is_held_by_tests_that_exist_and_run_where_it_says() -> None:
    assert [promise.number for promise in PROMISES.values() if not (promise.text and promise.held)] == []
    named = {path for promise in PROMISES.values() for path in (*promise.held, *promise.longer)}
    assert sorted(path for path in named if not files_of(path)) == []
    inner = {path for promise in PROMISES.values() for path in promise.held}
    assert sorted(path for path in inner if any(all_long(file.read_text("utf-8")) for file in files_of(path))) == []
    outer = named - inner
    assert sorted(path for path in outer if not SOMEWHERE_LONG.search(files_of(path)[0].read_text("utf-8"))) == []


def test_a_promise_that_another_one_names_is_there() -> None:
    named = {number for promise in PROMISES.values() for number in re.findall(r"(?<![\d.])[1-9]\d?\.\d+", promise.text)}
    assert named - PROMISES.keys() == set()


def test_each_citation_leads_to_a_promise() -> None:
    found = list(citations())
    assert [f"{path}: {number}" for path, number in found if number not in PROMISES] == []
    assert len(found) > 50


def citations() -> Iterator[tuple[str, str]]:
    for path, text in texts().items():
        for cited in CITATION.findall(text):
            yield from ((path, number) for number in re.findall(r"\d+\.\d+", cited))


def test_no_document_is_cited_that_is_not_here() -> None:
    """A paragraph sign stands behind the number of an RFC alone."""
    signs = [f"{path}: {sign}" for path, text in texts().items() if "§" in text for sign in PARAGRAPH.findall(text)]
    assert signs == []
    assert [f"{path}: {name}" for path, text in texts().items() for name in ABSENT if name in text] == []
