"""The archive of a broker's classes: written by the first cluster that stops cleanly, used while nothing it was made of
changes, and never a reason for which Java does not start."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from reconsume.sidecar.dev.kafka.class_archive import ClassArchive
from reconsume.sidecar.java.find_java import find_java


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the release has; Java compares its path too."""
    jar = tmp_path_factory.mktemp("jars") / "kafka.jar"
    jar.touch()
    return jar


@pytest.fixture
def archive(jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """That of a release with one jar, which nobody has written."""
    monkeypatch.setenv("RECONSUME_CACHE", str(tmp_path / "cache"))
    lock = tmp_path / "jars-4.9.lock"
    lock.write_text("org.apache.kafka:kafka:4.9 abc 1")
    return ClassArchive.of(lock, find_java(), [jar], tmp_path)


@pytest.fixture(scope="module")
def whole(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What Java writes at its end."""
    written = tmp_path_factory.mktemp("written") / "classes.jsa"
    words = [str(find_java()), f"-XX:ArchiveClassesAtExit={written}", "-cp", str(jar), "-version"]
    subprocess.run(words, check=True, capture_output=True)
    return written.read_bytes()


def write(archive: ClassArchive, content: bytes) -> None:
    """Put something where the archive is kept, later than all it would be made of."""
    archive.kept.parent.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_ctime for path in (archive.java, *archive.jars))
    while not archive.kept.exists() or archive.kept.stat().st_ctime <= newest:
        archive.kept.write_bytes(content)
        time.sleep(0.002)


def test_only_a_node_that_may_writes_one_and_only_if_none_fits(archive: ClassArchive) -> None:
    assert archive.options(write=False) == ()
    assert archive.options(write=True)[0] == f"-XX:ArchiveClassesAtExit={archive.written}"
    write(archive, b"classes")
    for wish in (False, True):
        assert archive.options(write=wish)[0] == f"-XX:SharedArchiveFile={archive.kept}"


@pytest.mark.parametrize("replaced", ["java", "jar"])
def test_one_of_another_java_or_other_jars_is_written_anew(
    archive: ClassArchive, tmp_path: Path, replaced: str
) -> None:
    write(archive, b"classes")
    newer = tmp_path / "newer"
    while not newer.exists() or newer.stat().st_ctime <= archive.kept.stat().st_ctime:
        newer.write_bytes(b"")
        time.sleep(0.002)
    changed = msgspec.structs.replace(archive, **({"java": newer} if replaced == "java" else {"jars": (newer,)}))
    assert not changed.fits
    assert changed.options(write=False) == ()


def test_each_release_and_each_java_has_its_own(archive: ClassArchive, tmp_path: Path) -> None:
    other = tmp_path / "jars-5.0.lock"
    other.write_text("org.apache.kafka:kafka:5.0 abc 1")
    ours = tmp_path / "jars-4.9.lock"
    by_release = ClassArchive.of(other, archive.java, archive.jars, tmp_path)
    by_java = ClassArchive.of(ours, tmp_path / "java", archive.jars, tmp_path)
    assert len({archive.kept, by_release.kept, by_java.kept}) == 3


def test_what_java_wrote_is_kept_and_read(archive: ClassArchive, whole: bytes) -> None:
    archive.take(ran=True)
    assert not archive.fits, "nobody has written one"
    archive.written.write_bytes(whole)
    archive.take(ran=True)
    assert archive.fits
    assert archive.kept.read_bytes() == whole
    assert not archive.written.exists()


@pytest.mark.parametrize("left", [0, 0.01, 0.9])
def test_one_that_ends_early_is_thrown_away(archive: ClassArchive, whole: bytes, left: float) -> None:
    archive.written.write_bytes(whole[: int(left * len(whole))])
    archive.take(ran=True)
    assert not archive.kept.exists()
    assert not archive.written.exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 100_000])
def test_java_starts_without_one_that_is_none_and_says_nothing(archive: ClassArchive, content: bytes) -> None:
    write(archive, content)
    words = [str(archive.java), *archive.options(write=False), "--version"]
    ended = subprocess.run(words, check=True, capture_output=True)
    assert ended.stdout
    assert ended.stderr == b""


def test_that_of_a_node_which_never_ran_is_thrown_away(archive: ClassArchive, whole: bytes) -> None:
    archive.written.write_bytes(whole)
    archive.take(ran=False)
    assert not archive.kept.exists()
    assert not archive.written.exists()


def test_a_cache_that_cannot_be_written_changes_nothing(archive: ClassArchive, whole: bytes) -> None:
    archive.kept.parent.parent.mkdir(parents=True)
    archive.kept.parent.touch()
    archive.written.write_bytes(whole)
    archive.take(ran=True)
    assert not archive.fits
    assert not archive.written.exists()
