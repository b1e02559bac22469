"""`init` on a terminal: the questions, their order, and wrong answers."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.terminal.test_process import environ
from tests.cli.test_init import COMMON, URL
from tests.support.deadline import until

SECONDS = 60.0


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


class Asked:
    """`reconsume init` on a terminal. `answer` waits for a question, and types."""

    def __init__(self, *words: str) -> None:
        self._own, theirs = pty.openpty()
        command = [sys.executable, "-m", "reconsume.sidecar", "init", *words]
        self.process = subprocess.Popen(
            command, env=environ(), stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        os.close(theirs)
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        self.talk = ""

    def answer(self, question: str, text: str) -> None:
        """Wait until the question is the last thing that was said, and type the text and Enter."""
        until(lambda: self._read().endswith(": ") and question in self.talk, SECONDS, question)
        assert self.talk.count("\n") == 0 or question in self.talk.rsplit("\n", 1)[1], self.talk
        self.talk = ""
        os.write(self._own, f"{text}\n".encode())

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(SECONDS)
        self._read()
        return code

    def close(self) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self._own)

    def _read(self) -> str:
        assert self.process.stderr is not None
        self.talk += (self.process.stderr.read() or b"").decode()
        return self.talk


def asked(*words: str) -> Iterator[Asked]:
    """A command that is gone afterwards."""
    command = Asked(*words)
    try:
        yield command
    finally:
        command.close()


@pytest.fixture
def questions() -> Iterator[Asked]:
    """The command without options."""
    yield from asked()


@pytest.fixture
def one_question() -> Iterator[Asked]:
    """The command with all options but one."""
    yield from asked(*COMMON, "--mode", "push")


def test_the_questions_are_asked_in_order(questions: Asked) -> None:
    questions.answer("consumer group", "billing")
    questions.answer("topics", "orders,invoices")
    questions.answer("brokers", "")
    questions.answer("push (HTTP requests)", "")
    questions.answer("address", "")
    assert questions.end() == 0, questions.talk
    said = yaml.safe_load(Path("reconsume.yaml").read_text("utf-8"))
    assert (said["group"], said["topics"]) == ("billing", ["orders", "invoices"])
    assert said["kafka"] == {"bootstrap.servers": "localhost:9092"}
    assert said["deliver"]["url"] == URL


def test_a_wrong_answer_is_explained_and_asked_again(questions: Asked) -> None:
    questions.answer("consumer group", "")
    questions.answer("consumer group", "bil ling")
    questions.answer("consumer group", "billing")
    questions.answer("topics", " , ")
    questions.answer("topics", "orders")
    questions.answer("brokers", "kafka")
    questions.answer("brokers", "kafka:9092")
    questions.answer("push (HTTP requests)", "walk")
    questions.answer("push (HTTP requests)", "relay")
    assert questions.end() == 0, questions.talk
    assert yaml.safe_load(Path("reconsume.yaml").read_text("utf-8"))["deliver"] == {"mode": "relay"}


def test_only_what_no_option_gives_is_asked(one_question: Asked) -> None:
    one_question.answer("address", "http://localhost:9000/x")
    assert one_question.end() == 0, one_question.talk
    assert yaml.safe_load(Path("reconsume.yaml").read_text("utf-8"))["deliver"]["url"] == "http://localhost:9000/x"


def test_the_end_of_input_writes_nothing(questions: Asked) -> None:
    questions.answer("consumer group", "\x04")
    assert questions.end() == 1
    assert "nothing was written" in questions.talk
    assert list(Path().iterdir()) == []
