"""Which of a test's cases `make test` takes, and which `make test-all` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def inner(kept: object, cases: Iterable[Any]) -> list[ParameterSet]:
    """The cases of a parameter: `kept` in every run, the others where there is time for all."""
    marked = [pytest.param(case, marks=() if case == kept else pytest.mark.long) for case in cases]
    assert any(not case.marks for case in marked), f"{kept!r} is none of the cases"
    return marked
