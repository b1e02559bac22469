"""`python -m benchmarks.groups`: what one sidecar costs with 1, 5 and 20 groups: memory, threads and idle CPU.

Each group has a main topic of three partitions and all topics of its own, and nothing is produced: what is measured is
the price of a further group. A service listens, so that every group is joined. The sidecar is started as a user starts
it. CPU is that of all its threads, in percent of a core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import cluster
from benchmarks.flaky import Flaky
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.settings.process_settings import load_groups

COUNTS = (1, 5, 20)
PARTITIONS = 3
SETTLED = 20.0
"""Seconds after the start in which nothing is measured: groups are joined, the first commits are made."""
STARTED_WITHIN = 120.0
PORT = 19_997


class Cost(NamedTuple):
    """What a sidecar of so many groups takes."""

    groups: int
    started_s: float
    rss: int
    threads: int
    cpu: float
    """Percent of a core."""


def write_configurations(folder: Path, bootstrap: str, url: str, count: int) -> list[Path]:
    """Write a base and a file for each group."""
    common: dict[str, dict[str, str | None]] = {
        "kafka": {"bootstrap.servers": bootstrap},
        "log": {"level": "warning"},
    }
    common["api"] = {"listen": f"127.0.0.1:{PORT}", "probe_listen": None}
    (folder / "common.yaml").write_text(yaml.safe_dump(common))
    files = []
    for number in range(count):
        group = f"n{count}g{number}"
        files.append(folder / f"{group}.yaml")
        own = {"base": "common.yaml", "group": group, "topics": [f"{group}-in"], "deliver": {"url": url}}
        files[-1].write_text(yaml.safe_dump(own))
    return files


def measure(bootstrap: str, count: int, seconds: float) -> Cost:
    """Run a sidecar of so many groups for so many seconds."""
    service = Flaky(lambda fields, at: True)
    with tempfile.TemporaryDirectory() as folder:
        files = write_configurations(Path(folder), bootstrap, f"http://127.0.0.1:{service.port}/", count)
        for one in load_groups(files, (), {}):
            cluster.create(bootstrap, one.settings.topic_names[0], one.settings, PARTITIONS)
        words = [word for file in files for word in ("-c", str(file))]
        begun = time.monotonic()
        environ = os.environ | {"POD_NAME": f"bench-{os.getpid()}"}
        sidecar = subprocess.Popen([sys.executable, "-m", "reconsume.sidecar", "run", *words], env=environ)
        try:
            await_start(sidecar)
            started_s = time.monotonic() - begun
            time.sleep(SETTLED)
            process = psutil.Process(sidecar.pid)
            before, at = process.cpu_times(), time.monotonic()
            time.sleep(seconds)
            after, lasted = process.cpu_times(), time.monotonic() - at
            cpu = 100 * (after.user + after.system - before.user - before.system) / lasted
            return Cost(count, started_s, process.memory_info().rss, process.num_threads(), cpu)
        finally:
            sidecar.terminate()
            sidecar.wait()


def await_start(sidecar: subprocess.Popen[bytes]) -> None:
    """Return once all groups consume."""
    deadline = time.monotonic() + STARTED_WITHIN
    while time.monotonic() < deadline and sidecar.poll() is None:
        with suppress(OSError, urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/startupz", timeout=5).close()
            return
        time.sleep(0.1)
    raise SystemExit("the sidecar did not start")


def show(costs: Sequence[Cost]) -> None:
    """Print the table."""
    table = Table(title="One sidecar of several idle groups")
    titles = ("groups", "start s", "resident MB", "MB per further group", "threads", "CPU %", "CPU % per group")
    for column in titles:
        table.add_column(column, justify="right")
    for cost in costs:
        more = (cost.rss - costs[0].rss) / (cost.groups - costs[0].groups) / 1e6 if cost is not costs[0] else None
        table.add_row(
            str(cost.groups),
            f"{cost.started_s:.1f}",
            f"{cost.rss / 1e6:.0f}",
            "" if more is None else f"{more:.1f}",
            str(cost.threads),
            f"{cost.cpu:.1f}",
            f"{cost.cpu / cost.groups:.2f}",
        )
    Console(width=120).print(table)


def main(words: Sequence[str] | None = None) -> None:
    """Measure each number of groups, one after another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=list(COUNTS), help="how many groups")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    asked = parser.parse_args(words)
    with EmbeddedKafka.start() as kafka:
        show([measure(kafka.bootstrap, count, asked.seconds) for count in asked.groups])


if __name__ == "__main__":
    main()
