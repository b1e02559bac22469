"""`reconsume dev up` as a process, what it says, and a service of one's own beside it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.support.sidecar.forked import Command

SECONDS = 120.0
UP = (sys.executable, "-m", "reconsume.sidecar", "dev", "up", "--no-color", "-o", "jsonl")


@contextmanager
def usual_ports() -> Iterator[None]:
    """The only `dev up` of all tests: it looks for free ports seconds before Kafka has them."""
    with (Path(tempfile.gettempdir()) / "reconsume-tests-usual-ports").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def up(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, with its temporary files and what it says in `folder`; gone afterwards."""
    temp = folder / "temp"
    temp.mkdir()
    with (folder / "out").open("w") as out, (folder / "talk").open("w") as talk:
        environ = os.environ | {"TMPDIR": str(temp)}
        process = subprocess.Popen([*UP, *words], stdout=out, stderr=talk, text=True, env=environ, process_group=0)
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


def hint(folder: Path) -> list[str]:
    """The words of the command that is said to produce a record."""
    found = re.search(r"^produce a record: (.*)$", (folder / "talk").read_text("utf-8"), re.M)
    assert found is not None
    name, *words = shlex.split(found[1])
    assert name == "reconsume"
    return words


def failed_deliveries(metrics: str) -> int:
    """How many deliveries of new records the service failed. The sample record is one that it takes."""
    found = re.findall(r"^reconsume_deliveries_total\{(.*)\} (\S+)$", page(metrics), re.M)
    return sum(
        int(float(count)) for labels, count in found if 'outcome="retry"' in labels and 'topic="orders"' in labels
    )


def told(*words: str, folder: Path) -> str:
    """What a command of a new user prints."""
    done = Command(words, folder).end(SECONDS)
    assert done.code == 0, done.out + done.told
    return done.out


@contextmanager
def service(code: str, folder: Path) -> Iterator[None]:
    """The README's program, until it is killed."""
    with (folder / "service.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait(SECONDS)


def answered(folder: Path, status: int) -> int:
    """How often the service has answered so."""
    return (folder / "service.log").read_text("utf-8").count(f'HTTP/1.1" {status} ')
