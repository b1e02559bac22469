"""Every file that a command line names: a pipe, a device or a giant is one sentence, at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.support.deadline import until
from tests.support.sidecar.cli import reconsume

CONFIG = """\
group: billing
topics: [orders]
kafka: {bootstrap.servers: "127.0.0.1:1"}
deliver: {url: "http://127.0.0.1:1/"}
"""
COMMANDS: dict[str, tuple[str, ...]] = {
    "-c": ("config", "check", "-c"),
    "import": ("dlq", "import"),
    "-f": ("inject", "-f"),
    "--kafka-properties": ("view", "sql", "SELECT 1", "--set", "view.source=spark", "--kafka-properties"),
    "ui --token-file": ("ui", "--token-file"),
}


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def device(_: Path) -> Path:
    return Path("/dev/zero")


def giant(folder: Path) -> Path:
    """A sparse file of two gigabytes, which no command may take in."""
    with (folder / "giant").open("wb") as file:
        file.truncate(2 << 30)
    return folder / "giant"


@pytest.mark.parametrize("make", [pipe, device, giant])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_of_a_sound_size_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, make: Callable[[Path], Path]
) -> None:
    (tmp_path / "reconsume.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    found: list[Result] = []
    words = (*COMMANDS[command], make(tmp_path))
    threading.Thread(target=lambda: found.append(reconsume(*words)), daemon=True).start()
    until(lambda: found, 20, "the command has ended")
    shown = found[0]
    assert shown.exit_code not in (0, None), shown.output
    assert shown.exception is None or isinstance(shown.exception, SystemExit)
    assert any(clause in shown.stderr for clause in ("plain file", "has more than")), shown.stderr
