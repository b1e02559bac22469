"""`reconsume demo` as a user runs it, on a small scale: real Kafka, real service, real sidecar."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.deadline import until

SECONDS = 100
DEMO = (sys.executable, "-m", "sidecar", "demo", "--no-color", "--ladder", "1s,2s", "--orders", "60")


@contextmanager
def demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo, with its temporary files in `folder`; gone afterwards."""
    temp = folder / "temp"
    temp.mkdir()
    cache = {"TMPDIR": str(temp), "COLUMNS": "100"}
    process = subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | cache, process_group=0
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=SECONDS)


def processes_of(folder: Path) -> set[int]:
    """The processes that have something of `folder` on their command line."""
    found = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(maxsplit=1) for line in found.stdout.splitlines())
    return {int(pid) for pid, args in rows if str(folder) in args}


def test_the_demo_ends_by_itself_with_a_table_that_it_has_checked(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        out, talk = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"{out}\n{talk}"
    numbers = {name.strip(): int(count) for name, count in re.findall(r"^ ([\w -]+?) {2,}(\d+)(?= )", out, re.M)}
    assert numbers["orders"] == 60
    assert numbers["committed"] + numbers["dead-lettered"] == 60
    assert numbers["dead-lettered"] >= 3, "one refused, two poison"
    assert numbers["1st delivery"] >= 60
    assert "lateness p50/p99/max" in out
    assert re.search(r"^checked: \d+ records of all topics against \d+ deliveries", out, re.M), out
    assert "the service is down" in talk
    assert re.search(r"^poison +orders:\d:\d+ .*→.*:500 .*DLQ", talk, re.M), "a journey with due and actual times"
    assert "drained and ended with 0" in talk
    assert list((tmp_path / "temp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as process:
        ledger = until(lambda: list(tmp_path.glob("temp/*/ledger.jsonl")), SECONDS, "the demo has a ledger")[0]
        until(lambda: '"Began"' in ledger.read_text(), SECONDS, "the first order is delivered")
        assert len(processes_of(tmp_path)) >= 3, "Kafka, the service and the sidecar"
        process.send_signal(number)
        _, talk = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in talk
    until(lambda: not processes_of(tmp_path), SECONDS, "every process has ended")
    assert list((tmp_path / "temp").iterdir()) == []
