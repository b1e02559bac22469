"""The rules of the command line, held against every command: wrong usage, bad files, no broker, Ctrl-C, formats."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.cli.terminal.test_help import COMMANDS, GROUPS
from tests.cli.terminal.test_process import environ
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.forked import Forked, nursery
from tests.support.sidecar.settings import write_good

SECONDS = 100.0
AT_ONCE = 18
NAMES = [" ".join(words) for words in COMMANDS if words not in GROUPS]
NEEDED = {
    "find": ["customer-7"],
    "policy set": ["max_reconsume_times=3", "--yes"],
    "policy apply": ["--file", str(Path(__file__).parent / "policy" / "withdrawn.yaml"), "--yes"],
    "topics apply": ["--yes"],
    "acls apply": ["--yes"],
    "retries show": ["orders:0:1"],
    "view sql": ["SELECT 1"],
    "inject": ["-f", "deploy.yaml"],
    "dlq show": ["orders:0:1"],
    "dlq import": ["reconsume.yaml", "--yes"],
    "dlq purge": ["--until=30d", "--confirm=billing"],
    "dlq redrive": ["--yes"],
    "dev produce": ["orders", "{}"],
    "dev expect": ["orders:0:1", "--done"],
    "dev deliver": ["--record", "orders:0:1"],
    "settle": ["orders:0:1", "--commit", "--why", "a test record", "--yes"],
    "reset": ["--topic", "orders", "--to", "earliest", "--yes"],
    "hold": ["--all", "--for", "1h", "--why", "a test", "--yes"],
    "release": ["--all"],
}
"""What a command must be given; without --yes those that ask would be wrong usage here, where there is no terminal."""
NO_CONFIGURATION = {"config schema", "dev broker", "dev up", "demo", "init", "inject"}
NO_BROKER = {*NO_CONFIGURATION, "config check", "config show", "explain", "acls export"}
"""Commands that connect to nothing."""
OWN_WAY = {"doctor", "run", "ui", "view run", "view sql", "dlq import", "drain"}
"""Commands whose business it is that Kafka may be away, that have a process of their own, or that need a file first."""
SAME_WAY = {
    "topics plan",
    "topics check",
    "topics export",
    "acls plan",
    "retries stats",
} | {
    "holds",
    "release",
}
"""Commands that reach Kafka by the same function as one that is tried; each process costs a second."""
ASKING = [name for name in NAMES if name not in NO_BROKER | OWN_WAY | SAME_WAY]
INTERRUPTED = [
    "topics apply",
    "acls apply",
    "policy set",
    "dlq show",
    "dlq redrive",
    "dlq purge",
    "audit",
]
"""One for each way in which a command waits for Kafka, and all that change something."""
OFFLINE = ["config check", "config show", "config schema", "explain"]


def words_of(name: str) -> list[str]:
    return [*name.split(), *NEEDED.get(name, ())]


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_wrong_usage(name: str) -> None:
    shown = reconsume(*name.split(), "--no-such-option")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "No such option: --no-such-option" in shown.stderr


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_CONFIGURATION])
def test_a_missing_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.yaml"
    shown = reconsume(*words_of(name), "-c", missing)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert shown.stderr == f"reconsume: configuration: {missing}: there is no such file\n"


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    shown = reconsume("explain", "-c", tmp_path)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert shown.stderr == f"reconsume: configuration: {tmp_path}: cannot be read: it is a folder\n"


@pytest.mark.parametrize("name", OFFLINE)
def test_every_format_is_what_it_is_called(name: str, tmp_path: Path) -> None:
    words = [*words_of(name), *([] if name in NO_CONFIGURATION else ["-c", str(write_good(tmp_path))])]
    shown = {form: reconsume(*words, "-o", form) for form in ("json", "jsonl", "tsv", "table")}
    assert {form: one.exit_code for form, one in shown.items()} == dict.fromkeys(shown, 0)
    lines = [json.loads(line) for line in shown["jsonl"].stdout.splitlines()]
    whole = json.loads(shown["json"].stdout)
    assert lines
    assert whole == lines or name == "config schema"
    rows = [line.split("\t") for line in shown["tsv"].stdout.splitlines()]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) == len(lines) + 1
    assert set(rows[0]) <= set(lines[0])
    assert rows[0][0] in shown["table"].stdout


@pytest.mark.parametrize("words", [["topics", "export"], ["acls", "export"], ["config", "schema", "--markdown"]])
def test_a_format_is_refused_where_there_are_no_rows(words: list[str], tmp_path: Path) -> None:
    shown = reconsume(*words, "-o", "json", "-c", write_good(tmp_path))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "leave out -o" in shown.stderr


class Ended(NamedTuple):
    code: int
    out: str
    told: str


def run(words: list[str], folder: Path, bootstrap: str, *, interrupt: socket.socket | None = None) -> Ended:
    """The command as a process; with a listener it is sent SIGINT once it has connected there, and gets no answer."""
    out, told = (folder / f"{'-'.join(words[:2])}-{bootstrap}.{name}" for name in ("out", "told"))
    kafka = ["--set", f"kafka.bootstrap.servers={bootstrap}"]
    process = nursery().fork([*words, "-c", "reconsume.yaml", *kafka], folder, environ(), told, out)
    try:
        if interrupt is not None:
            await_call(process, interrupt)
            process.send_signal(signal.SIGINT)
        return Ended(as_a_shell_shows(process.wait(SECONDS)), out.read_text(), told.read_text())
    finally:
        process.send_signal(signal.SIGKILL)


def as_a_shell_shows(code: int) -> int:
    """The exit code; 128 and its number for a signal.

    CPython ends `python -m` by SIGINT itself, whatever was caught, if the interrupt met code that was compiled from a
    string, such as a named tuple's that is just being imported (`unhandled_keyboard_interrupt`, bpo-1054041).
    """
    return 128 - code if code < 0 else code


def await_call(process: Forked, listener: socket.socket) -> None:
    """Wait until it connects: a client of another test may still call the port, which was its server's."""
    listener.settimeout(SECONDS)
    while True:
        connection, client = listener.accept()
        with connection:
            if client in {tuple(each.laddr) for each in psutil.Process(process.pid).net_connections("tcp")}:
                return


def interrupted(words: list[str], folder: Path) -> Ended:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return run(words, folder, f"127.0.0.1:{listener.getsockname()[1]}", interrupt=listener)


class Running(NamedTuple):
    refused: dict[str, Future[Ended]]
    interrupted: dict[str, Future[Ended]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Every command that asks Kafka, against a port that refuses, and interrupted while it waits; some at a time."""
    folder = tmp_path_factory.mktemp("every")
    write_good(folder)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield Running(
            {name: pool.submit(run, words_of(name), folder, "127.0.0.1:1") for name in ASKING},
            {name: pool.submit(interrupted, words_of(name), folder) for name in INTERRUPTED},
        )


@pytest.mark.parametrize("name", ASKING)
def test_a_broker_that_is_away_is_one_sentence_with_a_mend(name: str, running: Running) -> None:
    ended = running.refused[name].result()
    assert (ended.code, ended.out) == (1, ""), ended.told
    assert ended.told.count("\n") == 1, ended.told
    assert ended.told.startswith("reconsume: Kafka: ")
    assert "no broker of 127.0.0.1:1 answered" in ended.told
    assert re.search(r"`reconsume doctor -c \S+ --set \S+` looks for the cause\n$", ended.told)


@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c_ends_a_waiting_command_without_a_word(name: str, running: Running) -> None:
    assert running.interrupted[name].result() == Ended(130, "", "")


@pytest.mark.parametrize("words", [["view", "run"], ["view", "sql", "SELECT 1", "--set", "view.source=spark"]])
def test_properties_that_cannot_be_read_are_told_before_spark_starts(words: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "none.properties"
    shown = reconsume(*words, "-c", write_good(tmp_path), "--kafka-properties", missing)
    assert (shown.exit_code, shown.stdout) == (78, "")
    told = f"--kafka-properties: {missing}: cannot be read: No such file or directory"
    assert shown.stderr == f"reconsume: configuration: {told}\n"


def test_a_file_that_is_missing_is_told_before_kafka_is_asked(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    shown = reconsume("dlq", "import", missing, "-c", write_good(tmp_path))
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert shown.stderr == f"reconsume: configuration: {missing}: cannot be read: No such file or directory\n"
