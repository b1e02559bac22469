"""`reconsume ui` as a command: where it listens, what it refuses, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.terminal.test_process import environ
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.running_api import Client
from tests.support.sidecar.settings import write_good

SECONDS = 30.0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--listen", "8473"], 2),
        (["--token-file", "/nowhere/token"], 2),
        (["--listen", "0.0.0.0:0"], 78),
        (["--listen", "example.org:0"], 78),
    ],
    ids=str,
)
def test_what_would_be_open_or_is_not_there_is_refused(tmp_path: Path, words: list[str], code: int) -> None:
    assert reconsume("ui", "-c", write_good(tmp_path), *words).exit_code == code


def test_an_address_that_is_taken_is_told_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        shown = reconsume("ui", "-c", write_good(tmp_path), "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert shown.exit_code == 1
    assert "cannot listen on 127.0.0.1:" in shown.stderr
    assert "(--listen): Address already in use" in shown.stderr


def test_it_serves_without_kafka_and_ends_on_a_signal(tmp_path: Path) -> None:
    words = ["-m", "reconsume.sidecar", "ui", "-c", str(write_good(tmp_path)), "--listen", "127.0.0.1:0"]
    words += ["--set", "kafka.bootstrap.servers=127.0.0.1:1", "--set", "ui.base_path=/tools"]
    with subprocess.Popen([sys.executable, *words], env=environ(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/tools/, read-only", told)
            assert found is not None, told
            with Client(int(found[1])) as client:
                answer = client.call("GET", "/tools/")
            assert (answer.status, b"Nothing is known of the view" in answer.body) == (200, True)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
            assert time.monotonic() - began < SECONDS
        finally:
            process.kill()
