"""The package as the image has it, without what the Containerfile removes: it works, and says what is not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.rings import inner
from tests.support.sidecar.settings import write_good

Ended: TypeAlias = subprocess.CompletedProcess[str]
ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "deploy" / "image" / "Containerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our packages, without what the image leaves out."""
    folder = tmp_path_factory.mktemp("image")
    for name in ("reconsume", "pyspark_reconsume"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    removed = re.search(r" && rm -r (.*)", CONTAINERFILE)
    assert removed is not None
    for path in removed[1].split():
        shutil.rmtree(folder / "reconsume" / path) if (folder / "reconsume" / path).is_dir() else (
            folder / "reconsume" / path
        ).unlink()
    return folder


HERE_ALONE = """
import sys
from pathlib import Path
sys.path[:] = [path for path in sys.path if not Path(path, "reconsume", "spark").is_dir()]  # the whole install
"""


def run(packages: Path, *words: str, program: str = "import reconsume.sidecar.__main__ as m; m.main()") -> Ended:
    """A process that has these packages alone."""
    environ = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-c", HERE_ALONE + program, *words]
    return subprocess.run(command, cwd=packages, env=environ, capture_output=True, text=True, timeout=120, check=False)


LEFT_OUT = ("demo", "demo --mode ordered", "dev", "dev up --view", "dev broker --help")
EACH = """
import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from reconsume.sidecar.cli import main
shown = []
for words in sys.argv[1:]:
    sys.argv[1:] = words.split()
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as told:
        try:
            main()
        except SystemExit as end:
            shown.append([end.code, out.getvalue(), told.getvalue()])
print(json.dumps(shown))
"""
"""Each argument is a command line, which all run in this process: a start takes a second."""


def test_a_command_that_is_left_out_says_so_in_one_sentence(packages: Path) -> None:
    ended = run(packages, *LEFT_OUT, program=EACH)
    assert (ended.returncode, ended.stderr) == (0, "")
    for words, (code, out, told) in zip(LEFT_OUT, json.loads(ended.stdout), strict=True):
        assert (code, out) == (1, ""), words
        assert f"`{words.split()[0]}` is not in the image: pip install" in told
        assert len(told.strip().splitlines()) == 1


def test_the_view_job_names_the_image_that_has_it(packages: Path, tmp_path: Path) -> None:
    refused = run(packages, "view", "run", "-c", str(write_good(tmp_path)))
    assert refused.returncode == 1
    assert "image reconsume-spark" in refused.stderr
    assert "Traceback" not in refused.stderr


OTHERS = ("--help", "explain", "config check", "config show", "dlq --help", "audit --help")


@pytest.mark.parametrize("words", inner("config check", OTHERS))
def test_all_other_commands_are_there(packages: Path, tmp_path: Path, words: str) -> None:
    given = words.split() if "--help" in words else [*words.split(), "-c", str(write_good(tmp_path))]
    shown = run(packages, *given)
    talk = "these are the configuration's values" if words == "explain" else ""
    assert (shown.returncode, shown.stderr.partition(";")[0]) == (0, talk)
    assert " demo " not in shown.stdout


def test_what_runs_beside_a_service_loads_without_what_is_left_out(packages: Path) -> None:
    names = ("runtime.run", "ui.app", "doctor.all_checks", "audit", "deploy")
    loaded = f"import {', '.join(f'reconsume.sidecar.{name}' for name in names)}"
    ended = run(packages, program=loaded)
    assert (ended.returncode, ended.stderr) == (0, "")
