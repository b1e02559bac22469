"""Each package that is installed with Reconsume has a licence that may be shipped along (docs/release.md)."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRA = "otel"
"""What the image has beside the package itself."""
GOOD = re.compile(r"Apache|MIT|BSD|ISC|PSF|Python Software Foundation|MPL|Mozilla|Unlicense|0BSD")


def needed(name: str, found: dict[str, str]) -> dict[str, str]:
    """The licences of a package and of all that it needs at run time, by name."""
    if name in found:
        return found
    try:
        there = distribution(name)
    except PackageNotFoundError:  # needed elsewhere: on Windows, or by an older Python
        return found
    about = there.metadata
    classified = [line for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    found[name] = " ".join([about.get("License-Expression") or "", *classified, (about.get("License") or "")[:200]])
    for text in there.requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": EXTRA if name == "reconsume" else ""}):
            needed(canonicalize_name(wanted.name), found)
    return found


LICENCES = needed("reconsume", {})


@pytest.mark.parametrize("name", sorted(LICENCES))
def test_a_package_may_be_shipped_along(name: str) -> None:
    assert GOOD.search(LICENCES[name]), LICENCES[name] or "says nothing of its licence"
