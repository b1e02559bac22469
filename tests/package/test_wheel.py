"""The built wheel, in an environment of its own: all files are in it, it runs, and two builds are the same bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("topics", "sidecar", "once", "spark")
UV = (sys.executable, "-m", "uv")


def run(*command: str | Path, seconds: float = 120) -> str:
    """What a command prints; it must end well. Nothing of this environment is in its own."""
    plain = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=plain,
        cwd="/",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path) -> Path:
    run(*UV, "build", "--wheel", "--quiet", "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an empty environment into which the wheel was installed."""
    home = tmp_path_factory.mktemp("venv")
    run(*UV, "venv", "--quiet", "--python", sys.executable, home)
    python = home / "bin" / "python"
    try:
        run(*UV, "pip", "install", "--quiet", "--python", python, wheel, seconds=300)
    except AssertionError:  # as in the Makefile: a mirror that pip alone is told of
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel, seconds=300)
    return home / "bin"


def test_every_file_of_the_packages_is_in_it_and_nothing_else(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == set(listed.split())


def test_two_builds_are_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    first, second = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (wheel, build(tmp_path)))
    assert first == second


def test_it_runs_where_nothing_else_is_installed(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "reconsume", "--version").strip() == "0.1.0"
    file = tmp_path / "reconsume.yaml"
    file.write_text(
        "group: g\ntopics: [t]\nkafka: {bootstrap.servers: localhost:1}\ndeliver: {url: http://localhost/}\n"
    )
    for words in (("config", "check"), ("explain",), ("config", "show")):
        assert run(installed / "reconsume", *words, "-c", file) != ""


def test_the_helper_for_services_needs_nothing_beside_it(installed: Path) -> None:
    assert run(installed / "python", "-S", "-c", "import sys; sys.path.append(sys.argv[1]); import once", ROOT) == ""
