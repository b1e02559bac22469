"""A missing or old Java is told in one sentence that says how to get one."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.java.find_java import find_java


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n", "utf-8")
    java.chmod(0o755)
    return java


def test_without_java_the_install_command_is_told(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no java on PATH: install it with `apt-get install openjdk"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no java on JAVA_HOME \("):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(("version", "told"), [("11.0.2", "Java 11"), ("1.8.0_402", "Java 8"), ("?", "of unknown")])
def test_an_old_java_is_refused_with_its_version(tmp_path: Path, version: str, told: str) -> None:
    java = fake_java(tmp_path, version)
    with pytest.raises(SetupError, match=rf"needs Java 17 or newer, and {java} is {told}"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_java_17_and_newer_is_taken_from_java_home_before_path(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "path", "11.0.2")
    java = fake_java(tmp_path / "home", version)
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}) == java
