"""Completion of `reconsume` in shells: what bash offers after it took our script, and what zsh is answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "reconsume"
SECONDS = 60.0
OFFER = """
COMP_WORDS=({words}); COMP_CWORD={at}
declare -F _reconsume_completion > /dev/null || exit 9
complete -p reconsume > /dev/null || exit 9
_reconsume_completion reconsume
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def environ(home: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RECONSUME_", "_"))}
    return {**kept, "HOME": str(home), "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", **more}


def in_bash(script: str, home: Path) -> str:
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environ(home), capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def answered(home: Path, protocol: str, **more: str) -> str:
    done = subprocess.run(
        [PROGRAM],
        env=environ(home, _RECONSUME_COMPLETE=protocol, **more),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of somebody whose bash has our script."""
    home = tmp_path_factory.mktemp("home")
    in_bash("reconsume --install-completion > /dev/null; true", home)
    return home


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("reconsume ret", ["retries"]),
        pytest.param("reconsume topics ''", ["plan", "check", "apply", "export"], marks=pytest.mark.long),
        pytest.param("reconsume topics plan -o js", ["json", "jsonl"], marks=pytest.mark.long),
        ("reconsume dlq redrive --max-", ["--max-redrives"]),
    ],
)
def test_bash_offers_the_words_after_installing(installed: Path, words: str, offered: list[str]) -> None:
    count = len(words.split()) - 1
    assert in_bash(f"source ~/.bashrc\n{OFFER.format(words=words, at=count)}", installed).split() == offered


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        pytest.param("reconsume dev ", {"broker", "deliver", "expect", "produce", "up"}, marks=pytest.mark.long),
        ("reconsume topics plan -o ts", {"tsv"}),
        pytest.param("reconsume policy s", {"show", "set"}, marks=pytest.mark.long),
    ],
)
def test_zsh_is_answered_with_its_words(tmp_path: Path, line: str, offered: set[str]) -> None:
    """The answer is a call of zsh's `_arguments`: each word, with its help where it has one."""
    answer = answered(tmp_path, "complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert answer.startswith("_arguments '*: :((")
    words = answer.removeprefix("_arguments '*: :((").strip().split("\n")
    assert {word.split('"')[1] for word in words} == offered


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_takes_the_script(tmp_path: Path) -> None:
    script = answered(tmp_path, "source_zsh")
    done = subprocess.run(
        ["zsh", "-f", "-c", f"autoload -Uz compinit; compinit -u\n{script}\nprint $_comps[reconsume]"],
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "_reconsume_completion")
