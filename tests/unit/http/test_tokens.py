"""The file of tokens: bare ones as ever, and those with a name for the audit."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

import pytest

from reconsume.sidecar.http.tokens import LONGEST, LONGEST_NAME, SHORTEST, UNNAMED, Tokens


def held(folder: Path, text: str) -> Tokens:
    (folder / "token").write_text(text)
    return Tokens(folder / "token")


def test_a_bare_token_has_no_name_and_a_named_one_has_its_own(tmp_path: Path) -> None:
    found = held(tmp_path, "the-first-secret\nalice: the-second-secret\n\n ops-2@x.example:  the-third-secret \n")
    assert found.name_of(b"the-first-secret") == UNNAMED
    assert found.name_of(b"the-second-secret") == "alice"
    assert found.name_of(b"the-third-secret") == "ops-2@x.example"


def test_a_token_of_before_stays_one_whatever_signs_are_in_it(tmp_path: Path) -> None:
    """Given a token with a colon, then no part of it becomes a name, and no part of it a token."""
    found = held(tmp_path, "alice:the-second-secret\n")
    assert found.name_of(b"alice:the-second-secret") == UNNAMED
    assert found.name_of(b"the-second-secret") is None


@pytest.mark.parametrize(
    "given", ["alice: the-second-secret", "alice", "alice:", "the-second-secre", "the-second-secrett", ""]
)
def test_neither_a_name_nor_a_whole_line_is_a_token(tmp_path: Path, given: str) -> None:
    assert held(tmp_path, "alice: the-second-secret\n").name_of(given.encode()) is None


@pytest.mark.parametrize("name", ["a b", "\u202ealice", "al\x1bice", "x" * (LONGEST_NAME + 1), "-alice", "al:ice"])
def test_a_name_is_short_and_of_plain_signs_or_none(tmp_path: Path, name: str) -> None:
    """Given another name, then the line is no named token, so that nothing of it ever stands in a log."""
    assert held(tmp_path, f"{name}: the-second-secret\n").name_of(b"the-second-secret") is None


@pytest.mark.parametrize(
    "line", ["alice:", "alice: ", "alice:\t", ":", "# alice: the-second-secret", "#the-second-secret", "#"]
)
def test_a_name_without_a_token_and_a_comment_are_no_tokens(tmp_path: Path, line: str) -> None:
    """Given a line that lost its token, then neither the line nor a part of it lets anybody in; other lines do."""
    found = held(tmp_path, f"{line}\nbob: long-enough-secret\n")
    for given in (line, line.strip(), line.strip(" :\t#"), "alice:", "alice", ":", "#", "", "the-second-secret"):
        assert found.name_of(given.encode()) is None
    assert found.name_of(b"long-enough-secret") == "bob"


@pytest.mark.parametrize("line", ["two words", "a: b c", "tok\x7fen", "t\u00f6ken", "tok\x00en"])
def test_what_no_header_can_carry_is_no_token(tmp_path: Path, line: str) -> None:
    found = held(tmp_path, f"{line}\nthe-second-secret\n")
    assert (found.name_of(line.encode()), found.name_of(b"the-second-secret")) == (None, UNNAMED)


def test_a_token_file_that_becomes_a_pipe_lets_nobody_in_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    found = held(tmp_path, "the-first-secret\n")
    assert found.name_of(b"the-first-secret") == UNNAMED
    (tmp_path / "token").unlink()
    os.mkfifo(tmp_path / "token")
    assert found.name_of(b"the-first-secret") is None
    (tmp_path / "token").unlink()
    (tmp_path / "token").write_text("x" * (LONGEST + 1))
    assert found.name_of(b"the-first-secret") is None


def test_the_length_that_counts_is_the_tokens_without_its_name(tmp_path: Path) -> None:
    found = held(tmp_path, f"{'n' * LONGEST_NAME}: {'s' * (SHORTEST - 1)}\nbob: {'s' * SHORTEST}\n")
    assert (found.name_of(b"s" * (SHORTEST - 1)), found.name_of(b"s" * SHORTEST)) == (None, "bob")


@pytest.mark.parametrize("sign", list("${}<>\"'%"))
@pytest.mark.parametrize("form", ["{}", "ops: {}"])
def test_what_a_template_left_unfilled_is_no_token_and_the_log_names_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str, sign: str
) -> None:
    """Given `${TOKEN}`, `"…"`, `<token>` or `%TOKEN%`, then that line opens nothing; the next one does."""
    secret = f"long{sign}enough-to-be-a-token"
    found = held(tmp_path, f"{form.format(secret)}\nthe-second-secret\n")
    assert (found.name_of(secret.encode()), found.name_of(b"the-second-secret")) == (None, UNNAMED)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "line 1 is neither" in line
    assert secret not in line


@pytest.mark.parametrize(
    "secret", ["a1B2c3D4e5F6g7H8", "q/+8xw==q/+8xw==q/+8xw==", "~!#&()*,-./:;=?@", "[]^_`|[]^_`|[]^_`|"]
)
def test_what_generators_of_secrets_make_is_a_token(tmp_path: Path, secret: str) -> None:
    assert held(tmp_path, f"{secret}\n").name_of(secret.encode()) == UNNAMED


def test_every_token_is_compared_whichever_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the first token, the last one or none, then the same comparisons are made, each in constant time."""
    found = held(tmp_path, "a: the-first-secret\nb: the-second-secret\nthe-third-secret\n")
    compared: list[bytes] = []
    digest = hmac.compare_digest

    def spy(given: bytes, valid: bytes) -> bool:
        compared.append(valid)
        return digest(given, valid)

    monkeypatch.setattr("hmac.compare_digest", spy)
    for given in (b"the-first-secret", b"the-third-secret", b"wrong"):
        compared.clear()
        found.name_of(given)
        assert compared == [b"the-first-secret", b"the-second-secret", b"the-third-secret"]
