"""What is told of how a release was made: of which commit and which locks, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy" / "image" / "provenance.py"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOCKS = ("deploy/image/requirements.lock", "deploy/image/tools.lock", "sidecar/java/spark.lock")


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A wheel and a bill of materials."""
    files = tmp_path / "reconsume-0.3.0-py3-none-any.whl", tmp_path / "reconsume.cdx.json"
    for file in files:
        file.write_bytes(file.name.encode())
    return files


def told(*words: str | Path) -> bytes:
    # No network, and no variable that could tell one machine from another.
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, SCRIPT, *words], cwd=ROOT, env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digest(file: Path) -> dict[str, str]:
    return {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def test_it_names_what_was_made_the_commit_and_each_lock_by_their_digests(made: tuple[Path, Path]) -> None:
    statement: Any = json.loads(told("--revision", COMMIT, *made))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [{"name": file.name, "digest": digest(file)} for file in made]
    source, *locks = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source == {"name": "source", "digest": {"gitCommit": COMMIT}}
    assert locks == [{"name": lock, "digest": digest(ROOT / lock)} for lock in LOCKS]


def test_two_of_them_are_the_same_bytes_and_tell_nothing_of_the_machine(made: tuple[Path, Path]) -> None:
    first = told("--revision", COMMIT, *made)
    assert told("--revision", COMMIT, *made) == first
    for own in (str(made[0].parent), str(ROOT), os.uname().nodename):
        assert own.encode() not in first


def test_a_source_that_is_no_commit_is_not_passed_off_as_one(made: tuple[Path, Path]) -> None:
    """Given changes that are not committed, or no repository, then the statement has no commit."""
    for revision in ("", f"{COMMIT}-changed"):
        found = json.loads(told("--revision", revision, *made))["predicate"]["buildDefinition"]["resolvedDependencies"]
        assert [one["name"] for one in found] == [*LOCKS]


def test_it_is_written_beside_the_bill_of_materials() -> None:
    text = (SCRIPT.parent / "image.mk").read_text(encoding="utf-8")
    recipe = text.split("\nsbom:")[1].split("\n\n")[0]
    assert "--output-reproducible" in recipe
    assert "deploy/image/provenance.py" in recipe
    assert "dist/reconsume.provenance.json" in recipe
