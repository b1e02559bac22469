"""One installed package: a user's own folders named as ours are theirs, whichever way Reconsume was installed."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reconsume

ROOT = Path(__file__).parents[2]
OURS = ("sidecar", "topics", "spark", "once")
PUBLIC = [
    "reconsume.once",
    "reconsume.spark",
    *(f"reconsume.spark.{name}" for name in ("consumer", "lake", "session", "tables")),
    *(f"reconsume.spark.{name}" for name in ("testing", "upsert", "view", "job")),
]
IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import reconsume
for module in pkgutil.walk_packages(reconsume.__path__, "reconsume."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"sidecar", "topics", "spark", "once"}))
"""
A_USERS_JOB = """
from spark.jobs import mine
from topics.names import theirs
from reconsume.spark.consumer import build_rules
from reconsume.once import once
assert (mine, theirs) == ("spark", "topics") and build_rules("billing", ["orders"], name="ship")
"""


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A process in `folder`, which is first on its path, as for a user's script there. Every warning is an error."""
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_no_module_of_ours_is_loaded_by_a_name_outside_the_package(tmp_path: Path) -> None:
    """Everything is imported from another folder: there only the install can be the source."""
    done = python(IMPORT_EVERYTHING, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_a_job_with_folders_named_as_ours_gets_its_own(tmp_path: Path) -> None:
    for file, line in {"spark/jobs.py": "mine = 'spark'", "topics/names.py": "theirs = 'topics'"}.items():
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(line)
        (tmp_path / file).with_name("__init__.py").touch()
    (tmp_path / "once").mkdir()
    done = python(A_USERS_JOB, tmp_path)
    assert done.returncode == 0, done.stderr


def test_no_module_imports_another_by_a_name_outside_the_package() -> None:
    """Imports within functions too, which no other test may run."""
    imported = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(OURS)})\b.*", re.MULTILINE)
    files = [file for folder in OURS for file in (ROOT / folder).rglob("*.py")]
    assert [(str(file), line) for file in files for line in imported.findall(file.read_text("utf-8"))] == []


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "reconsume.spark"])
def test_a_public_module_says_which_names_are_public(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__
    assert all(hasattr(module, each) for each in module.__all__)


@pytest.mark.parametrize("file", [*ROOT.glob("examples/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"])
def test_pages_and_examples_import_public_names_alone(file: Path) -> None:
    lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    imports = [line.split()[1] for line in lines if line.startswith(("from reconsume", "import reconsume"))]
    assert [name for name in imports if name not in PUBLIC] == []
    assert [
        line for line in lines if line.startswith(tuple(f"from {name}" for name in OURS)) and " import " in line
    ] == []


def test_what_is_pickled_can_be_read_by_another_process(tmp_path: Path) -> None:
    """As executors do: they get the name of a module, and import it."""
    from reconsume.spark.consumer import Rules, build_rules, retry

    data = pickle.dumps((retry, Rules, build_rules("billing", ["orders"], name="ship")))
    code = f"import pickle; f, c, r = pickle.loads({data!r}); assert isinstance(r, c) and f(level=3)"
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_job_is_one_function_for_a_file_of_three_lines() -> None:
    docs = (ROOT / "docs" / "spark.md").read_text("utf-8")
    code = docs.partition('```python title="view.py"\n')[2].partition("```")[0]
    assert len(ast.parse(code).body) == 2
    command = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "keep the views up to date" in done.stdout


def test_the_package_is_links_to_the_folders_of_the_checkout() -> None:
    names = {module.name for module in pkgutil.iter_modules(reconsume.__path__)}
    assert names == set(OURS)
    assert all((ROOT / "reconsume" / name).resolve() == ROOT / name for name in OURS)
