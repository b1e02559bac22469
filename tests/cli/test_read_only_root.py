"""The entry points as a hardened container runs them: a read-only root, no writable home, nobody's user (deploy/image).

Where they need a folder after all, they say which one, and who names another.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.read_only import HOME, NOBODY, SECONDS, environ, read_only, why_not
from tests.support.deadline import until
from tests.support.service.service import free_port

RECONSUME = [sys.executable, "-m", "reconsume.sidecar"]
REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=f"no mount and user namespaces here: {REASON}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration whose broker and service are away: what starts here must start without them."""
    settings = {
        "group": "billing",
        "topics": ["orders"],
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "deliver": {"url": "http://127.0.0.1:1/events", "timeout": "1s"},
        "api": {"listen": f"127.0.0.1:{free_port()}", "probe_listen": None},
        "drain_timeout": "1s",
        "log": {"format": "text"},
    }
    path = tmp_path / "reconsume.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def run(*words: str, writable: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    command = read_only([*RECONSUME, *words], writable)
    return subprocess.run(
        command, env=environ(**more), cwd="/", capture_output=True, text=True, timeout=SECONDS, check=False
    )


def ask(port: int, path: str) -> Any:
    """The body of an answer as JSON, None where nobody listens."""
    with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    return None


def watched(file: Path, see: Callable[[int], Any], *words: str) -> tuple[Any, int]:
    """Start the sidecar and wait until `see` sees something at its port: what it saw, and the code after SIGTERM."""
    port = int(yaml.safe_load(file.read_text())["api"]["listen"].rpartition(":")[2])
    command = read_only([*RECONSUME, "run", "-c", str(file), *words])
    process = subprocess.Popen(command, env=environ(), cwd="/", stderr=subprocess.DEVNULL)  # it execs: one process
    try:
        found = until(lambda: see(port), SECONDS, "the sidecar shows it")
        process.send_signal(signal.SIGTERM)
        return found, process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()


def test_nothing_can_be_written_there_and_nobody_runs_it(tmp_path: Path) -> None:
    """Given the stage itself, then the other tests stand on it."""
    look = f"import os, tempfile; print(os.getuid(), os.access({str(tmp_path)!r}, os.W_OK)); tempfile.gettempdir()"
    done = subprocess.run(
        read_only([sys.executable, "-c", look]), env=environ(), cwd="/", capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(NOBODY), "False"]
    assert "No usable temporary directory" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("config", "check"), ("config", "show"), ("explain",), ("view", "run", "--help"), ("--version",)],
    ids=" ".join,
)
def test_commands_that_only_answer_need_no_folder(file: Path, words: tuple[str, ...]) -> None:
    given = () if "--help" in words or "--version" in words else ("-c", str(file))
    done = run(*words, *given)
    talk = "these are the configuration's values" if words == ("explain",) else ""
    assert (done.returncode, done.stderr.partition(";")[0]) == (0, talk)
    assert done.stdout


def test_the_sidecar_runs_is_ready_and_ends_with_0(file: Path) -> None:
    found, code = watched(file, lambda port: ask(port, "/readyz"))
    assert (found, code) == ({"status": "ok"}, 0)


def test_a_view_without_a_folder_says_which_setting_names_one_and_the_sidecar_lives(file: Path) -> None:
    def problem(port: int) -> Any:
        said = (ask(port, "/status") or {"view": {}})["view"].get("problem") or ""
        return said if "cannot" in said else ""

    found, code = watched(file, problem, "--set", "view.enabled=true")
    assert code == 0
    assert "cannot be kept in a temporary folder, because view.folder names none" in found


def test_the_spark_job_says_what_it_cannot_write_and_what_names_another_folder(file: Path) -> None:
    done = run("view", "run", "-c", str(file))
    assert done.returncode == 1
    assert f"cannot keep jars in {HOME}/.cache/reconsume/jars: " in done.stderr
    assert "RECONSUME_CACHE" in done.stderr
    assert "Traceback" not in done.stderr
