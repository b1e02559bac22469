"""Each package that is installed with Reconsume has a licence that may be shipped along, and is in docs/licences.md.

UPDATE_LICENCES=1 writes the page's table anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.package.licences import by_package, table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "licences.md"
LOCK = ROOT / "deploy" / "image" / "requirements.lock"
FAMILIES = {
    "Apache": "Apache",
    "BSD": "BSD",
    "ISC": "ISC",
    "LGPL": "LGPL|Lesser General",
    "MIT": "MIT",
    "MPL": "MPL|Mozilla",
    "PSF": "PSF|Python Software Foundation",
}
"""Licences that are fine, by what they are called. A package's next version may say the same in other words."""
ROW = re.compile(r"^\| ([a-z0-9-]+) \| (?:always|`[\w-]+`) \| (.+) \|$", re.M)
HEAD = "| package | comes with | licence |\n|---|---|---|\n"


def families(said: str) -> set[str]:
    """The licences that a text names."""
    return {name for name, words in FAMILIES.items() if re.search(words, said)}


def test_every_package_may_be_shipped_along() -> None:
    found = {name: said for name, (_, said) in by_package().items()}
    assert {name: said for name, said in found.items() if not families(said)} == {}


def test_only_the_extra_for_postgresql_brings_a_package_under_the_lgpl() -> None:
    bound = {name: extra for name, (extra, said) in by_package().items() if "LGPL" in families(said)}
    assert set(bound.values()) <= {"spark-postgres"}, bound


def test_the_page_has_each_package_with_its_licence() -> None:
    text = PAGE.read_text("utf-8")
    if os.environ.get("UPDATE_LICENCES"):
        text = text.partition(HEAD)[0] + HEAD + "\n".join(table()) + "\n"
        PAGE.write_text(text, "utf-8")
    told = {name: families(said) for name, said in ROW.findall(text)}
    assert {name: told.get(name) for name in by_package()} == {
        name: families(said) for name, (_, said) in by_package().items()
    }


def test_the_page_has_no_other_package() -> None:
    """Another Python or system may need a package that this one does not; then it is locked for the image."""
    locked = re.findall(r"^([a-z0-9-]+)==", LOCK.read_text("utf-8"), re.M)
    told = [name for name, _ in ROW.findall(PAGE.read_text("utf-8"))]
    assert len(set(told)) == len(told)
    assert set(told) <= {*by_package(), *locked}
