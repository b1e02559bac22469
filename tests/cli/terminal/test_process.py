"""The command line as a real process: codes, streams, signals, and a reader that goes away."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from tests.support.sidecar.settings import write_good

SECONDS = 60.0
RECONSUME = [sys.executable, "-m", "reconsume.sidecar"]
ROOT = Path(__file__).parents[3]


def environ(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RECONSUME_") or key[10:] in KEPT}
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more}


KEPT = ("CACHE", "MAVEN_MIRROR")


def test_data_is_on_stdout_and_the_code_is_0(tmp_path: Path) -> None:
    words = ["config", "show", "-c", str(write_good(tmp_path))]
    done = subprocess.run([*RECONSUME, *words], env=environ(), capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"group", "topics"} <= {json.loads(line)["key"] for line in done.stdout.splitlines()}


def test_talk_is_on_stderr_and_the_code_is_78(tmp_path: Path) -> None:
    words = ["config", "check"]
    done = subprocess.run(
        [*RECONSUME, *words], env=environ(), cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == "reconsume: configuration: there is no reconsume.yaml here; name a file with -c\n"


def test_what_else_is_given_is_checked_too(tmp_path: Path) -> None:
    words = ["config", "check", "--set", "group=g"]
    done = subprocess.run(
        [*RECONSUME, *words], env=environ(), cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (78, "")
    assert "topics: is required" in done.stderr
    assert "there is no reconsume.yaml here" in done.stderr


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    words = ["explain", "-c", str(write_good(tmp_path)), "--set", "retry.max_reconsume_times=999999"]
    process = subprocess.Popen([*RECONSUME, *words], env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b'{"attempt": 1')
    process.stdout.close()
    assert process.wait(SECONDS) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.long
def test_the_broker_tells_its_address_serves_and_ends_cleanly_at_sigterm() -> None:
    process = subprocess.Popen(
        [*RECONSUME, "dev", "broker", "--topic", "orders:3", "--topic", "invoices"],
        env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=SECONDS).topics
        assert {name: len(topics[name].partitions) for name in ("orders", "invoices")} == {"orders": 3, "invoices": 1}
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, rest) == (0, "")
        assert "Traceback" not in errors
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0


def as_process_1() -> list[str]:
    """The words before a command that make it process 1 of a namespace of its own, as in a container; none if this user
    may not."""
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.CalledProcessError):
        return []
    return words


@pytest.mark.parametrize("words", [["run"], ["ui", "--listen", "127.0.0.1:0"]])
def test_a_sigterm_while_it_starts_ends_it_even_as_process_1(tmp_path: Path, words: list[str]) -> None:
    """Given process 1 of a container, whose signals Linux discards where it has no handler, then none is lost."""
    before = as_process_1()
    if not before:
        pytest.skip("this user may not make a namespace of processes (unshare)")
    unreachable = ["-c", str(write_good(tmp_path)), "--set", "kafka.bootstrap.servers=127.0.0.1:1"]
    if "run" in words:
        unreachable += ["--set", "api.listen=127.0.0.1:0"]
    for wait in (0.1, 0.3, 0.6, 1.2):
        command = [*before, sys.executable, "-X", "importtime", "-m", "reconsume.sidecar", *words, *unreachable]
        with subprocess.Popen(command, env=environ(), stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            next(line for line in process.stderr if "start_signals" in line)
            sleeping = threading.Thread(target=process.stderr.read, daemon=True)
            sleeping.start()
            time.sleep(wait)  # the moments at which it is asked
            for child in psutil.Process(process.pid).children():
                child.send_signal(signal.SIGTERM)
            try:
                code = process.wait(10)
            finally:
                process.kill()
        assert code in (0, 143), wait


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    words = ["run", "-c", str(write_good(tmp_path)), "--set", "kafka.bootstrap.servers=127.0.0.1:1"]
    low = ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh"]
    with subprocess.Popen([*low, *RECONSUME, *words], env=environ(), stderr=subprocess.DEVNULL) as process:
        try:
            sidecar, until = psutil.Process(process.pid), time.monotonic() + SECONDS
            while len(set(sidecar.rlimit(psutil.RLIMIT_NOFILE))) > 1 or "reconsume.sidecar" not in sidecar.cmdline():
                assert time.monotonic() < until
                time.sleep(0.02)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


def test_a_limit_of_open_files_below_what_the_settings_need_is_a_warning(tmp_path: Path) -> None:
    low = ["sh", "-c", 'ulimit -Sn 600 && ulimit -Hn 600 && exec "$@"', "sh"]
    for concurrency, warned in ((300, False), (600, True)):
        words = ["config", "check", "-c", str(write_good(tmp_path)), "--set", f"deliver.concurrency={concurrency}"]
        command = [*low, *RECONSUME, *words]
        done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0
        assert ("needs 856 open files, and a process may have 600" in done.stderr) == warned
