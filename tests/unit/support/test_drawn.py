"""Few long tests are drawn beside the inner ring, each in its time, and one that fails says how to repeat it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.drawn import ONE_IN, TOO_DEAR, is_drawn

NAMES = [f"tests/flow/test_a.py::test_{number}" for number in range(4_000)]
CONFTEST = """
from tests.support.drawn import Drawn

def pytest_configure(config):
    config.pluginmanager.register(Drawn("7"))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(300))
@pytest.mark.long
def test_long(number): assert False

@pytest.mark.three
@pytest.mark.parametrize("number", range(300))
@pytest.mark.long
def test_dear(number): assert False

def test_inner(): pass
"""


def test_a_seed_draws_its_part_and_all_seeds_draw_each_test() -> None:
    for seed in ("a0e93375", "7", ""):
        assert 0.6 < sum(is_drawn(name, seed) for name in NAMES) / (len(NAMES) / ONE_IN) < 1.4
    assert all(any(is_drawn(name, str(seed)) for seed in range(20 * ONE_IN)) for name in NAMES[:200])
    assert not any(is_drawn(f"{dear}::test_{number}", "7") for dear in TOO_DEAR for number in range(200))


def test_what_is_drawn_runs_beside_the_inner_ring_and_says_how_to_repeat_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long\n    three\n    drawn\n    soak")
    command = [sys.executable, "-m", "pytest", "--strict-markers", "-m", "not long or drawn", "-p", "no:xdist", "-rN"]
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60, check=False
    )
    drawn = [number for number in range(300) if is_drawn(f"test_them.py::test_long[{number}]", "7")]
    assert drawn
    assert f"{len(drawn)} failed, 1 passed" in ran.stdout, ran.stdout
    assert ran.stdout.count("It alone: ") == len(drawn)
    assert (
        f"`--draw 7` has drawn it. It alone: .venv/bin/python -m pytest 'test_them.py::test_long[{drawn[0]}]'"
        in ran.stdout
    )
