"""Files that the process writes, and its locks: plain, its own, and in a folder of its own where others may write."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.files import open_private, private_folder, replace_file, write_private
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.view.copy import open_copy
from reconsume.sidecar.view.source import Source
from tests.unit.test_files import a_device, a_socket, folder, link_to_a_pipe, pipe, within_seconds

__all__ = ["within_seconds"]
ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("sidecar", "spark", "once", "topics", "reconsume")
Within = Callable[[Callable[[], object]], object]


def link_to_nothing(at: Path) -> Path:
    (at / "link").symlink_to(at / "elsewhere")
    return at / "link"


def link_to_a_file(at: Path) -> Path:
    (at / "mine").write_text("kept")
    (at / "link").symlink_to(at / "mine")
    return at / "link"


PREPARED = [
    (pipe, "it is a pipe, and no plain file"),
    (link_to_a_pipe, "it is a link"),
    (link_to_nothing, "it is a link"),
    (link_to_a_file, "it is a link"),
    (a_socket, "it is a socket, and no plain file"),
    (a_device, "it is a device, and no plain file"),
    (folder, "it is a folder"),
]


@pytest.mark.parametrize("mode", ["ab", "wb", "r+b"])
@pytest.mark.parametrize(("make", "says"), PREPARED)
def test_what_another_user_could_have_prepared_is_refused_and_never_waited_for(
    within_seconds: Within, tmp_path: Path, make: Callable[[Path], Path], says: str, mode: str
) -> None:
    path = make(tmp_path)
    fault = within_seconds(lambda: open_private(path, mode))  # type: ignore[arg-type]
    assert isinstance(fault, OSError)
    assert fault.strerror == says
    assert not (tmp_path / "elsewhere").exists(), "nothing is made where a link points"
    assert not (tmp_path / "mine").exists() or (tmp_path / "mine").read_text() == "kept"


def test_a_file_of_another_user_is_refused_and_an_own_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(file := tmp_path / "own", "a longer text")
    write_private(file, "text")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("text", 0o600)
    with open_private(file) as appended:
        appended.write(b" and more")
    assert file.read_text() == "text and more"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="it belongs to another user"):
        open_private(file)


def test_a_file_of_the_project_is_written_where_its_link_points_and_keeps_its_mode(tmp_path: Path) -> None:
    link = link_to_a_file(tmp_path)
    link.chmod(0o640)
    replace_file(link, "new")
    assert (link.is_symlink(), link.read_text(), stat.S_IMODE(link.stat().st_mode)) == (True, "new", 0o640)
    was = link.stat().st_ino
    replace_file(link, "new")
    assert link.stat().st_ino == was, "the same text is not written again"
    replace_file(tmp_path / "first", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "link", "mine"]


@pytest.mark.parametrize("prepared", ["link", "file", "pipe"])
def test_a_view_whose_own_folder_is_something_else_is_refused_and_touches_nothing(
    within_seconds: Within, tmp_path: Path, prepared: str
) -> None:
    """Given a folder that others may write to, as an `emptyDir` is, and what has the name of our own folder there."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir(mode=0o777)
    victim.mkdir()
    own = shared / f"reconsume-{os.geteuid()}"
    match prepared:
        case "link":
            own.symlink_to(victim)
        case "file":
            own.write_text("")
        case _:
            os.mkfifo(own)
    fault = within_seconds(lambda: open_copy(shared, "billing", Source.EVENTS))
    assert isinstance(fault, OSError)
    assert "it is no folder, or a link to one" in str(fault)
    assert list(victim.iterdir()) == []


def test_a_view_keeps_its_files_in_a_folder_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a volume whose folders Kubernetes has opened to its group, then the own folder is closed again."""
    tmp_path.chmod(0o777)
    open_copy(tmp_path, "billing", Source.EVENTS).close()
    (own,) = tmp_path.iterdir()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    files = sorted(own.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    own.chmod(0o2770)
    assert private_folder(tmp_path) == own
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    own.rename(tmp_path / f"reconsume-{os.getuid() + 1}")
    with pytest.raises(OSError, match="it belongs to another user"):
        open_copy(tmp_path, "billing", Source.EVENTS)


@pytest.mark.parametrize(("make", "says"), PREPARED)
def test_an_audit_log_that_is_no_file_of_ours_is_one_sentence(
    within_seconds: Within, tmp_path: Path, make: Callable[[Path], Path], says: str
) -> None:
    fault = within_seconds(lambda: AuditLog(make(tmp_path)).write("redrive", Actor("ann", "ops", "127.0.0.1")))
    assert isinstance(fault, SetupError)
    assert says in str(fault)


def writes(call: ast.Call) -> bool:
    """Whether a call opens a file for writing, or makes one, that somebody else could have prepared."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    source = ast.unparse(call)
    if name in ("write_text", "write_bytes", "touch"):
        return "formatter." not in source  # of the help's text, and no file
    if name == "open" and source.startswith("os.open("):
        if "os.devnull" in source or "O_EXCL" in source:  # which makes a file or fails
            return False
        return any(flag in source for flag in ("O_CREAT", "O_WRONLY", "O_RDWR"))
    if name not in ("open", "fdopen"):
        return False
    texts = [
        arg.value for arg in [*call.args, *(word.value for word in call.keywords)] if isinstance(arg, ast.Constant)
    ]
    # `x` makes a file or fails: it takes none that is there.
    return any(isinstance(text, str) and set(text) <= set("wab+rt") and set(text) & set("wa+") for text in texts)


def written_elsewhere(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and writes(node):
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "source",
    [
        "path.open('ab')",
        "open(path, mode='w')",
        "os.open(p, os.O_CREAT)",
        "p.touch()",
        "p.write_text('')",
        "p.open('r+')",
    ],
)
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert list(written_elsewhere(source))


def test_every_file_is_opened_for_writing_by_one_function() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {call}"
        for package in PRODUCT
        for file in (ROOT / package).rglob("*.py")
        if file != ROOT / "sidecar" / "files.py"
        for call in written_elsewhere(file.read_text("utf-8"))
    }
    assert found == set()
