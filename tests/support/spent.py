"""`--cpu`: what each file of tests and each test costs, in seconds of CPU, so that time is saved where it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import psutil
import pytest

SHOWN = 60
"""Files of some hundreds, and tests of some thousands."""
PROPERTY = "cpu"


def spent() -> float:
    """Seconds of CPU of this process and all that it has started, running or ended."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


class Spent:
    """Notes what each test costs, with its fixtures; a fixture of many tests is the cost of the first."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Begin to count."""
        self.begin = spent()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Have the report of the teardown tell the cost, also from another worker's process."""
        yield
        item.user_properties.append((PROPERTY, spent() - self.begin))


def show(terminal: pytest.TerminalReporter) -> None:
    """Print the costliest files and tests, and the sum of all."""
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for reports in terminal.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                seconds = dict(report.user_properties).get(PROPERTY, 0)
                tests[report.nodeid] += seconds
                files[report.nodeid.split("::")[0]] += seconds
    terminal.section(f"{files.total():.0f} s of CPU")
    for name, seconds in [*files.most_common(SHOWN), *tests.most_common(SHOWN)]:
        terminal.line(f"{seconds:8.1f} s  {name}")
