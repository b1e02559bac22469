"""The wheel and the source archive: all files are in them, two builds are the same bytes, an index would take them, and
the wheel runs in an environment of its own."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from datetime import date
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("topics", "sidecar", "once", "spark")
"""Of the repository. In what is built they are below `reconsume/`."""
PACKAGES = (*FOLDERS, "reconsume", "pyspark_reconsume")
UV = (sys.executable, "-m", "uv")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


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


class Built(NamedTuple):
    """The source archive and the wheel."""

    sdist: Path
    wheel: Path


def build(source: Path, folder: Path) -> Built:
    """Both, made from this folder."""
    run(*UV, "build", "--sdist", "--wheel", "--quiet", "--out-dir", folder, source)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)


def tracked(*folders: str) -> list[str]:
    """The files of the repository, without the links of an editable install."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split() if not (ROOT / name).is_dir()]


def packaged(names: Iterable[str]) -> set[str]:
    """Where a build has these files."""
    return {f"reconsume/{name}" if name.partition("/")[0] in FOLDERS else name for name in names}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def sdist(built: Built) -> Path:
    return built.sdist


@pytest.fixture(scope="module")
def wheel(built: Built) -> Path:
    return built.wheel


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
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed - {"reconsume/COMMIT"} == packaged(tracked(*PACKAGES))


def test_the_source_archive_is_the_repository(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert packed - {"PKG-INFO", "COMMIT"} == packaged(tracked())


@pytest.mark.long
def test_two_builds_are_the_same_bytes(built: Built) -> None:
    """The second one from the source archive elsewhere, whose files are newer, and which has no history."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(built.sdist) as archive:  # pytest's own folder is kept
        archive.extractall(folder, filter="data")
        (copy,) = Path(folder).iterdir()
        for file in copy.rglob("*"):
            file.touch()
        assert digests(build(copy, Path(folder) / "dist")) == digests(built)


def digests(files: Built) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_package_index_would_take_both(built: Built) -> None:
    assert "WARNING" not in run(sys.executable, "-m", "twine", "check", "--strict", *built)


def test_the_metadata_says_what_the_project_says(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (folder,) = {name.partition("/")[0] for name in files.namelist() if ".dist-info/" in name}
        about = HeaderParser().parsestr(files.read(f"{folder}/METADATA").decode())
        assert files.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert (about["Name"], about["Version"], about["License-Expression"]) == ("reconsume", VERSION, "Apache-2.0")
    assert about["Requires-Python"] == ">=3.11"
    assert set(about.get_all("Provides-Extra") or ()) == {"otel", "spark", "spark-any", "spark-postgres"}


def test_the_version_has_its_date_in_the_changelog() -> None:
    newest = re.search(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert newest is not None
    assert newest[1] == VERSION
    date.fromisoformat(newest[2])


def test_it_runs_where_nothing_else_is_installed(installed: Path, tmp_path: Path) -> None:
    shown = run(installed / "reconsume", "--version")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(
        rf"reconsume {VERSION} \(commit {head[:12]}\+?, Python 3\.\S+, librdkafka \d\S+\)", shown.strip()
    )
    file = tmp_path / "reconsume.yaml"
    file.write_text(
        "group: g\ntopics: [t]\nkafka: {bootstrap.servers: localhost:1}\ndeliver: {url: http://localhost/}\n"
    )
    for words in (("config", "check"), ("explain",), ("config", "show")):
        assert run(installed / "reconsume", *words, "-c", file) != ""


def test_the_view_job_has_an_entry_point_of_its_own(installed: Path) -> None:
    assert "keep the views up to date" in run(installed / "reconsume-view", "--help")
    assert run(installed / "python", "-c", "from reconsume.once import once") == ""


def test_the_helper_for_services_needs_nothing_beside_it(installed: Path) -> None:
    assert (
        run(installed / "python", "-S", "-c", "import sys; sys.path.append(sys.argv[1]); import reconsume.once", ROOT)
        == ""
    )
