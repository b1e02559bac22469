"""`--draw`: a few of the long tests run beside the inner ring, others for each seed, so that none rots unseen.

`make test` draws by the commit. Each worker draws the same, and a test that was drawn is repeated by its name alone.
"""

from __future__ import annotations

from collections.abc import Generator
from zlib import crc32

import pytest

ONE_IN = 60
"""Of the long tests that may be drawn: five a run, which take its two cores some ten seconds."""
TOO_DEAR = (
    "tests/benchmarks/",
    "tests/package/",
    "tests/packet_loss/",
    "tests/soak",
    "tests/spark/",
    "tests/flow/faults/test_bombs.py",
    "tests/flow/faults/test_large_cluster.py",
    "tests/flow/faults/test_under_pressure.py",
    "tests/flow/lifecycle/test_progress_distance.py",
    "tests/flow/operations/test_demo.py",
    "tests/flow/operations/test_dev_up.py",
    "tests/flow/view/",
)
"""What takes a minute or ten seconds of CPU for one test; so do those of three nodes."""
MARK = "drawn"


def is_drawn(nodeid: str, seed: str) -> bool:
    """Whether a seed draws a long test."""
    return not nodeid.startswith(TOO_DEAR) and crc32(f"{seed} {nodeid}".encode()) % ONE_IN == 0


class Drawn:
    """Marks what its seed draws, and says how to repeat one that fails."""

    def __init__(self, seed: str) -> None:
        self.seed = seed

    def pytest_report_header(self) -> str:
        """Say what is drawn, and by which seed."""
        return f"of the long tests: one in {ONE_IN}, drawn by {self.seed}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark them before pytest leaves out what `-m` does not name."""
        for item in items:
            marks = {mark.name for mark in item.iter_markers()}
            if "long" in marks and marks.isdisjoint({"three", "soak"}) and is_drawn(item.nodeid, self.seed):
                item.add_marker(MARK)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say beside a failure that the test is a long one."""
        report = yield
        if report.failed and item.get_closest_marker(MARK) is not None:
            again = f".venv/bin/python -m pytest '{item.nodeid}'"
            report.sections.append(("a long test", f"`--draw {self.seed}` has drawn it. It alone: {again}"))
        return report
