"""The import names for users: each is the same object as by the name of its package, whose import warns."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import reconsume

ROOT = Path(__file__).parents[2]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(reconsume.__path__, "reconsume.")
    if not module.ispkg and not module.name.endswith((".__main__", ".job"))
]


def python(code: str) -> str:
    """What Python says on stderr to this code, with every warning shown."""
    command = [sys.executable, "-W", "always", "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stderr


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_the_objects_of_the_package_that_it_stands_for(name: str) -> None:
    given, own = importlib.import_module(name), importlib.import_module(name.removeprefix("reconsume."))
    assert given.__all__
    for each in given.__all__:
        assert getattr(given, each) is getattr(own, each)
    assert set(getattr(own, "__all__", given.__all__)) == set(given.__all__)


@pytest.mark.parametrize("file", [*ROOT.glob("examples/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"])
def test_no_page_or_example_imports_by_a_former_name(file: Path) -> None:
    former = [line for line in file.read_text("utf-8").splitlines() if line.startswith(("from spark", "from once"))]
    assert former == []


def test_a_former_name_warns_and_the_new_one_does_not() -> None:
    assert "DeprecationWarning: import reconsume.spark: " in python("import spark")
    assert "DeprecationWarning: import reconsume.once: " in python("from reconsume.once import once")
    assert python("import reconsume.spark, spark; from reconsume.once import once") == ""


def test_what_is_pickled_by_the_new_name_can_be_read_where_only_the_package_is() -> None:
    """As executors do: they get the name of a module, and import it."""
    from reconsume.spark.consumer import Rules, build_rules, retry

    rules = build_rules("billing", ["orders"])
    data = pickle.dumps((retry, Rules, rules))
    said = python(f"import pickle; f, c, r = pickle.loads({data!r}); assert isinstance(r, c) and f(level=3)")
    assert "Error" not in said


def test_the_job_is_one_function_for_a_file_of_three_lines() -> None:
    docs = (ROOT / "docs" / "spark.md").read_text("utf-8")
    blocks = [block.partition("```")[0] for block in docs.split("```python\n")[1:]]
    (code,) = (block for block in blocks if "reconsume.spark.job" in block)
    assert len(ast.parse(code).body) == 2
    command = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "keep the views up to date" in done.stdout
