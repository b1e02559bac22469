"""The licence of each package that is installed with Reconsume, as the package itself says it."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution, metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OWN = "reconsume"
CLASSIFIER = "License :: OSI Approved :: "


def needed(name: str, extra: str = "", found: dict[str, str] | None = None) -> dict[str, str]:
    """The licences of a package and of all that it needs at run time, by name. `extra`: of that extra too."""
    found = {} if found is None else found
    if name in found:
        return found
    try:
        there = distribution(name)
    except PackageNotFoundError:  # needed elsewhere: on Windows, or by an older Python
        return found
    found[name] = licence(there.metadata)
    for text in there.requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            needed(canonicalize_name(wanted.name), "".join(wanted.extras), found)
    return found


def licence(about: PackageMetadata) -> str:
    """One line: the expression, else the classifiers, else the first line of the text; empty if it says nothing."""
    said = about.get_all("Classifier") or ()
    classified = [line.removeprefix(CLASSIFIER) for line in said if line.startswith(CLASSIFIER)]
    text = str(about["License"] or "").strip().splitlines()[:1]
    return str(about["License-Expression"] or "") or ", ".join(classified) or "".join(text)


def extras() -> list[str]:
    """Reconsume's extras."""
    return sorted(metadata(OWN).get_all("Provides-Extra") or ())


@cache
def by_package() -> dict[str, tuple[str, str]]:
    """Each package with the first extra that brings it (empty: none) and its licence."""
    found: dict[str, tuple[str, str]] = {}
    for extra in ("", *extras()):
        for name, said in needed(OWN, extra).items():
            if name != OWN:
                found.setdefault(name, (extra, said))
    return found


def table() -> list[str]:
    """The rows of docs/licences.md."""
    rows = sorted(by_package().items(), key=lambda row: (row[1][0], row[0]))
    return [f"| {name} | {f'`{extra}`' if extra else 'always'} | {plain(said)} |" for name, (extra, said) in rows]


def plain(said: str) -> str:
    """The licence without what would break a table."""
    return re.sub(r"\s+", " ", said).replace("|", "/")
