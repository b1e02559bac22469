"""What a caller does to stdin, stdout and stderr: closes them, fills the disk, goes away, speaks another encoding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal.test_process import environ
from tests.support.rings import inner
from tests.support.sidecar.settings import write_good

SECONDS = 60.0
RECONSUME = f"{sys.executable} -m reconsume.sidecar"
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_good(tmp_path)
    return tmp_path


def shell(command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[bytes]:
    line = f"exec {RECONSUME} {command}"
    return subprocess.run(["sh", "-c", line], cwd=folder, env=environ(**more), capture_output=True, timeout=SECONDS)


def test_a_closed_stdin_is_nothing_to_a_command_that_does_not_ask(folder: Path) -> None:
    done = shell("config show <&-", folder)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


@pytest.mark.parametrize(
    "command", inner("config show -o table >&-", ["config show >&-", "config show -o table >&-", "--version >&-"])
)
def test_a_closed_stdout_is_one_sentence(command: str, folder: Path) -> None:
    done = shell(command, folder)
    assert done.returncode == 1
    assert done.stderr.startswith(b"reconsume: setup: stdout cannot be written: Bad file descriptor")
    assert done.stderr.count(b"\n") == 1


def test_a_closed_stderr_keeps_the_code(folder: Path) -> None:
    done = shell("config show -c nowhere.yaml 2>&-", folder)
    assert (done.returncode, done.stdout) == (78, b"")


@needs_full
@pytest.mark.parametrize("command", inner("config show", ["config show", "config show -o table", "--help"]))
def test_a_full_disk_is_one_sentence(command: str, folder: Path) -> None:
    done = shell(f"{command} >/dev/full", folder)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "command", inner("config show", ["config show", "config show -o table", "--version", "--help", "dlq redrive -h"])
)
def test_a_reader_that_went_away_is_141_without_a_word(command: str, folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        words = [*RECONSUME.split(), *command.split()]
        done = subprocess.run(
            words, cwd=folder, env=environ(), stdout=writer, stderr=subprocess.PIPE, timeout=SECONDS, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("path", ["/ä", "/\U0001f9fe"])
def test_json_is_utf_8_whatever_the_locale_and_the_text(path: str, folder: Path) -> None:
    shown = shell(f"config show --set deliver.url=http://127.0.0.1{path}", folder, PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, b"")
    values = {row["key"]: row["value"] for row in map(json.loads, shown.stdout.decode("utf-8").splitlines())}
    assert values["deliver.url"] == f"http://127.0.0.1{path}"


def test_ctrl_c_while_the_program_is_loaded_is_no_traceback(folder: Path) -> None:
    """The hook stands for a slow disk: it stops the import of the commands until the signal has come."""
    hook = (
        "import os, signal, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'reconsume.sidecar.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Stop())\n"
        "import runpy; sys.argv = ['reconsume', 'config', 'show']\n"
        "runpy.run_module('sidecar', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hook], cwd=folder, env=environ(), capture_output=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, b"", b"")
