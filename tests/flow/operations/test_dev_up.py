"""`reconsume dev up` as a newcomer runs it: its links answer, its hint produces a record, and SIGTERM ends it all."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil

from tests.flow.operations.test_demo import processes_of
from tests.support.deadline import until
from tests.support.processes import lives

SECONDS = 120.0
UP = (sys.executable, "-m", "sidecar", "dev", "up", "--no-color", "-o", "jsonl", "--orders", "1")
PARTS = {"dashboard", "api", "metrics", "brokers", "configuration"}


@contextmanager
def up(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, with its temporary files and what it says in `folder`; gone afterwards."""
    temp = folder / "temp"
    temp.mkdir()
    with (folder / "out").open("w") as out, (folder / "talk").open("w") as talk:
        environ = os.environ | {"TMPDIR": str(temp)}
        process = subprocess.Popen(UP, stdout=out, stderr=talk, text=True, env=environ, process_group=0)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(SECONDS)


def links_of(folder: Path, process: subprocess.Popen[str]) -> dict[str, str]:
    """The links, once the last hint is said too; none before."""
    talk = (folder / "talk").read_text("utf-8")
    assert process.poll() is None, talk
    if "Ctrl-C ends it all" not in talk:
        return {}
    rows = map(json.loads, (folder / "out").read_text("utf-8").splitlines())
    return {row["what"]: row["where"] for row in rows}


def page(address: str) -> str:
    """The body of an answer, which must be a 200."""
    with urlopen(address) as answer:
        assert answer.status == 200
        text: str = answer.read().decode("utf-8")
        return text


def failed_deliveries(metrics: str) -> int:
    """How many deliveries of new records the service failed. The sample record is one that it takes."""
    found = re.findall(r"^reconsume_deliveries_total\{(.*)\} (\S+)$", page(metrics), re.M)
    return sum(
        int(float(count)) for labels, count in found if 'outcome="retry"' in labels and 'topic="orders"' in labels
    )


def test_everything_runs_until_sigterm(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        links = until(lambda: links_of(tmp_path, process), SECONDS, "everything runs")
        assert set(links) == PARTS
        assert json.loads(page(links["api"]))["group"] == "billing"
        assert "<html" in page(links["dashboard"])
        hint = re.search(r"^produce a record: (.*)$", (tmp_path / "talk").read_text("utf-8"), re.M)
        assert hint is not None
        assert failed_deliveries(links["metrics"]) == 0
        subprocess.run(shlex.split(hint[1]), check=True, timeout=SECONDS)
        until(lambda: failed_deliveries(links["metrics"]), SECONDS, "the service has failed the flaky record once")

        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 3, "Kafka, the service and the sidecar"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert [child for child in family if lives(child)] == []
    assert not processes_of(tmp_path)
    assert list((tmp_path / "temp").iterdir()) == []
    assert (tmp_path / "talk").read_text("utf-8").endswith("stopping\n")
