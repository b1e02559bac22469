"""The temporary folder of a Spark job goes with the job, and with the next one if nobody was left to remove it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from reconsume.sidecar.java.guarded_folder import PREFIX, YOUNG, _kernel, guarded_folder

OURS = f"{PREFIX}{_kernel()}-"
LEFT, IN_USE, OTHER = f"{OURS}{'a' * 16}", f"{OURS}{'b' * 16}", f"{OURS}notes"
OF_ANOTHER_MACHINE = f"{PREFIX}{'0' * 8}-{'a' * 16}"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def folder_of(parent: Path, name: str, age: float) -> Path:
    """Make a folder that was changed so many seconds ago, with a file in it."""
    folder = parent / name
    folder.mkdir()
    (folder / "kafka.properties").write_text("secret")
    changed = folder.stat().st_mtime - age
    os.utime(folder, (changed, changed))
    return folder


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_it_is_private_and_goes_with_the_job(temporary: Path) -> None:
    with guarded_folder() as guarded:
        assert guarded.folder.stat().st_mode & 0o777 == 0o700
        assert names(temporary) == {guarded.folder.name}
    assert names(temporary) == set()


def test_what_a_killed_container_left_goes_when_the_next_job_starts(temporary: Path) -> None:
    folder_of(temporary, LEFT, YOUNG + 1)
    with guarded_folder() as guarded:
        assert names(temporary) == {guarded.folder.name}


def test_the_folder_of_a_job_that_runs_stays_however_old_it_is(temporary: Path) -> None:
    with guarded_folder() as first:
        old = first.folder.stat().st_mtime - 10 * YOUNG
        os.utime(first.folder, (old, old))
        with guarded_folder() as second:
            assert names(temporary) == {first.folder.name, second.folder.name}


@pytest.mark.parametrize(
    ("name", "age"), [(LEFT, 0.0), (OTHER, 2 * YOUNG), ("reconsume-views", 2 * YOUNG), (OF_ANOTHER_MACHINE, 2 * YOUNG)]
)
def test_what_may_be_anothers_stays(name: str, age: float, temporary: Path) -> None:
    folder_of(temporary, name, age)
    with guarded_folder():
        pass
    assert names(temporary) == {name}


def test_a_link_or_a_file_of_such_a_name_leads_nowhere_else(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = folder_of(tmp_path_factory.mktemp("elsewhere"), "kept", 2 * YOUNG)
    (temporary / LEFT).symlink_to(elsewhere)
    (temporary / IN_USE).write_text("a file")
    os.utime(temporary / LEFT, (1, 1), follow_symlinks=False)
    os.utime(temporary / IN_USE, (1, 1))
    with guarded_folder():
        pass
    assert names(elsewhere) == {"kafka.properties"}


def test_a_job_runs_on_a_file_system_that_locks_no_folders(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is removed there: nobody can tell whether it is in use."""
    folder_of(temporary, LEFT, 2 * YOUNG)

    def refused(*_: object) -> None:
        raise OSError(errno.EBADF, "as NFS answers")

    monkeypatch.setattr(fcntl, "flock", refused)
    with guarded_folder() as guarded:
        assert names(temporary) == {guarded.folder.name, LEFT}
    assert names(temporary) == {LEFT}


def test_the_guard_ends_a_whole_group_of_processes_before_it_removes_the_folder(temporary: Path) -> None:
    """Else Java would make files in it anew: it ends seconds after its driver."""
    command = ["/bin/sh", "-c", "sleep 60 & echo; wait"]
    with subprocess.Popen(command, process_group=0, stdout=subprocess.PIPE) as mother:
        assert mother.stdout is not None
        with guarded_folder() as guarded:
            assert mother.stdout.readline()
            guarded.guard.watch([-mother.pid])
        mother.stdout.read()  # its end: no process of the group holds the other end of the pipe
    assert mother.returncode == -9
    assert names(temporary) == set()
