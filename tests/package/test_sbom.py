"""`make sbom`, run on a copy of this repository: it lists what the lock pins, and of which commit it was made."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")

pytestmark = pytest.mark.long  # it installs all that the image has


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A commit of all that is in this repository now but the tests, with what `make sbom` has written there."""
    home = tmp_path_factory.mktemp("sbom") / "copy"
    for name in run(ROOT, "git", "ls-files", "-z", ":!tests").split("\0"):
        if name and (ROOT / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, home / name)
    run(home, "git", "init", "--quiet")
    run(home, "git", *IDENTITY, "add", "--all")
    run(home, "git", *IDENTITY, "commit", "--quiet", "--message", "all of it")
    # The tools are those of this environment, which is not to be made anew.
    run(home, "make", "-o", f"{sys.prefix}/.ready", "sbom", f"VENV={sys.prefix}")
    return home


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def locked() -> set[tuple[str, str]]:
    """Name and version of each package that the lock pins for this machine."""
    text = (ROOT / "deploy" / "image" / "requirements.lock").read_text(encoding="utf-8")
    pinned = [Requirement(line.rstrip("\\ ")) for line in re.findall(r"^[^ #].*", text, re.MULTILINE)]
    wanted = [one for one in pinned if one.marker is None or one.marker.evaluate()]
    return {(canonicalize_name(one.name), str(one.specifier).removeprefix("==")) for one in wanted}


def test_the_bill_lists_every_package_that_the_lock_pins_and_no_other(made: Path) -> None:
    bill = read(made / "dist" / "reconsume.cdx.json")
    assert bill["metadata"]["component"]["name"] == "reconsume"
    assert {(canonicalize_name(one["name"]), one["version"]) for one in bill["components"]} == locked()
    assert [one["name"] for one in bill["components"] if not one.get("licenses")] == []


def test_the_provenance_names_the_commit_the_wheel_and_the_bill(made: Path) -> None:
    statement = read(made / "dist" / "reconsume.provenance.json")
    told = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    (wheel,) = (made / "build" / "sbom" / "wheel").glob("*.whl")
    files = (wheel, made / "dist" / "reconsume.cdx.json")
    assert told == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert source["digest"] == {"gitCommit": run(made, "git", "rev-parse", "HEAD").strip()}


def test_neither_tells_anything_of_the_machine(made: Path) -> None:
    for file in (made / "dist").iterdir():
        text = file.read_text(encoding="utf-8")
        assert [own for own in (str(made), str(ROOT), sys.prefix, os.uname().nodename) if own in text] == []
