"""mkdocs.yml against the pages: each has one place in the navigation, each link a target. Needs no mkdocs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
HOOK = runpy.run_path(str(ROOT / CONFIG["hooks"][0]))
SECTIONS: dict[str, list[str]] = {name: pages for section in CONFIG["nav"] for name, pages in section.items()}
PLACES = [place for pages in SECTIONS.values() for place in pages]
SOURCES = [HOOK["source"](place) for place in PLACES]


def test_the_sections_are_tasks() -> None:
    assert list(SECTIONS) == ["Start", "Adopt", "Operate", "Reference", "Design"]


def test_each_page_is_in_the_navigation_once() -> None:
    pages = {str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md")}
    assert sorted(source for source in SOURCES if source.startswith("docs/")) == sorted(pages)
    assert len(set(SOURCES)) == len(SOURCES)


def test_each_entry_is_a_file() -> None:
    assert [source for source in SOURCES if not (ROOT / source).is_file()] == []
    assert [HOOK["place"](source) for source in SOURCES] == PLACES


def test_each_link_to_a_file_has_a_target() -> None:
    for source in SOURCES:
        text = without_code((ROOT / source).read_text(encoding="utf-8"))
        assert set(HOOK["LINK"].findall(text)) == set(HOOK["targets"](source, text)), source


def test_pages_outside_that_are_linked_are_in_the_navigation() -> None:
    texts = {source: (ROOT / source).read_text(encoding="utf-8") for source in SOURCES}
    linked = {path for source, text in texts.items() for path in HOOK["targets"](source, text).values()}
    assert {path for path in linked if path.endswith(".md")} <= set(SOURCES)


@pytest.mark.parametrize(
    ("page", "text", "moved"),
    [
        ("docs/adopt.md", "[a](spark.md#x) [b](../SECURITY.md)", "[a](spark.md#x) [b](repository/SECURITY.md)"),
        ("README.md", "[a](docs/spark.md) [b](LICENSE)", "[a](spark.md) [b](repository/LICENSE)"),
        ("CONTRIBUTING.md", "[a](docs/release.md) [b](DESIGN.md)", "[a](../release.md) [b](DESIGN.md)"),
        ("benchmarks/README.md", "[a](../README.md)", "[a](../../README.md)"),
    ],
)
def test_a_link_is_moved_to_its_place_on_the_site(page: str, text: str, moved: str) -> None:
    assert HOOK["moved"](page, text) == moved


def test_what_is_no_link_to_a_file_stays() -> None:
    text = "[a](https://example.org/SECURITY.md) [b](#x) [c](lost.md) `handlers[name](record)`"
    assert HOOK["moved"]("docs/adopt.md", text) == text


def test_nothing_is_fetched_from_other_hosts() -> None:
    """The theme's font service is off. It would fetch mermaid for figures, if a custom fence were set for them."""
    assert CONFIG["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript", "extra"} & set(CONFIG)
    assert "pymdownx.superfences" in CONFIG["markdown_extensions"]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("folder", ["docs", "sidecar", "spark", "once", "topics", "examples", "deploy"])
def test_nobody_is_told_to_install_from_a_registry_what_none_has(folder: str) -> None:
    """A name that is free there may be anybody's tomorrow: what is installed is a clone of this repository."""
    files = [*(ROOT / folder).rglob("*.md"), *(ROOT / folder).rglob("*.py"), *ROOT.glob("*.md")]
    files = [file for file in files if file.name != "CHANGELOG.md"]
    told = re.compile(r"pip\d? install (?:-\S+\s+)*['\"]?reconsume\b(?!/)")
    assert [str(file) for file in files if told.search(file.read_text(encoding="utf-8"))] == []
