"""`reconsume ui` as a command: where it listens, what it refuses, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.cli.terminal.test_process import environ
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.running_api import Answer, Client
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


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """The command as a process, what it prints once it listens, and its port."""
    command = ["-m", "reconsume.sidecar", "ui", "--listen", "127.0.0.1:0", "--set"]
    command += ["kafka.bootstrap.servers=127.0.0.1:1", *words]
    with subprocess.Popen([sys.executable, *command], env=environ(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", told)
            assert found is not None, told
            yield process, told, int(found[1])
        finally:
            process.kill()


def test_it_serves_without_kafka_and_ends_on_a_signal(tmp_path: Path) -> None:
    with serving("-c", str(write_good(tmp_path)), "--set", "ui.base_path=/tools") as (process, told, port):
        assert "/tools/, read-only" in told
        with Client(port) as client:
            answer = client.call("GET", "/tools/")
        assert (answer.status, b"Nothing is known of the view" in answer.body) == (200, True)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert time.monotonic() - began < SECONDS


def test_the_page_of_a_group_says_who_it_belongs_to(tmp_path: Path) -> None:
    labels = "labels: {team: payments & more, runbook: 'https://runbooks.example.org/billing', chat: 'javascript:x'}\n"
    with serving("-c", str(write_good(tmp_path, labels))) as (_, _told, port):
        body = visited(port, "/").body.decode()
    assert "team: payments &amp; more" in body
    assert '<a href="https://runbooks.example.org/billing"' in body
    assert 'href="javascript' not in body


def visited(port: int, path: str, token: str = "") -> Answer:
    """The response to a page, or to a sign-in by a token."""
    host = f"127.0.0.1:{port}"
    kind = "application/x-www-form-urlencoded"
    with Client(port) as client:
        if not token:
            return client.call("GET", path)
        body = urlencode({"who": "ann", "token": token}).encode()
        head = f"host: {host}\r\norigin: http://{host}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        client.send(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return client.answer("POST")


def test_the_files_of_the_configuration_say_who_signs_in_and_where_it_is_logged_unless_options_do(
    tmp_path: Path,
) -> None:
    """Given operators' files in the configuration, then keys and values need a sign-in by their tokens, and the sign-in
    is logged there; --token-file and --audit-file name others instead."""
    ours, other, audit, log = (tmp_path / name for name in ("ours", "other", "audit.jsonl", "log.jsonl"))
    ours.write_text("the-token-of-the-file\n")
    other.write_text("the-token-of-the-option\n")
    more = f"operators: {{token_file: '{ours}', audit_file: '{audit}'}}\nui: {{hosts: [tools.example]}}\n"
    config = ("-c", str(write_good(tmp_path, more)))
    with serving(*config) as (_, told, port):
        assert "read-only" not in told
        assert visited(port, "/dlq?contains=a").status == 403
        assert visited(port, "/sign-in", "the-token-of-the-option").status == 403
        assert visited(port, "/sign-in", "the-token-of-the-file").status == 303
        with Client(port) as client:
            client.send(b"GET /sign-in HTTP/1.1\r\nhost: tools.example\r\n\r\n")
            assert client.answer("GET").status == 200
    assert '"who": "ann"' in audit.read_text()
    written = audit.read_bytes()
    options = ("--token-file", str(other), "--audit-file", str(log), "--set", "ui.read=signed-in")
    bare = ("-c", str(write_good(tmp_path, "ui: {read: signed-in}\n")))
    with serving(*bare, *options[:4]) as (_, told, port):
        assert "read-only" not in told
        assert visited(port, "/sign-in", "the-token-of-the-option").status == 303
    with serving(*config, *options) as (_, _, port):
        assert visited(port, "/sign-in", "the-token-of-the-file").status == 403
        assert visited(port, "/sign-in", "the-token-of-the-option").status == 303
    assert ('"who": "ann"' in log.read_text(), audit.read_bytes() == written) == (True, True)


def test_a_token_file_of_the_configuration_that_is_not_there_is_told_and_nothing_is_served(tmp_path: Path) -> None:
    config = write_good(tmp_path, "operators: {token_file: /nowhere/token}\n")
    shown = reconsume("ui", "-c", config)
    assert shown.exit_code == 78
    assert "operators.token_file: /nowhere/token: cannot be read: No such file" in shown.stderr
