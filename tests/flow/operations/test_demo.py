"""`reconsume demo` as a user runs it, on a small scale: real Kafka, real service, real sidecar."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.deadline import until

SECONDS = 240
DEMO = (sys.executable, "-m", "reconsume.sidecar", "demo", "--no-color")
USUAL = ("--ladder", "1s,2s", "--orders", "60")
FEW = ("--orders", "40")
MODES = {
    "batch": ("--ladder", "1s,2s"),
    "ordered": (),
    "pull": ("--ladder", "1s,2s"),
    "relay": ("--ladder", "1s,2s"),
}
Playing = dict[str, subprocess.Popen[str]]


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The demo as a process, with its temporary files in `folder`."""
    temp = folder / "temp"
    temp.mkdir()
    environ = os.environ | {"TMPDIR": str(temp), "COLUMNS": "100"}
    command = (*DEMO, *options)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, process_group=0
    )


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A demo that is gone afterwards."""
    process = start(folder, *(options or USUAL))
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill the demo, unless it has ended; its guard clears up behind it."""
    if process.poll() is None:
        process.kill()
    process.wait(SECONDS)
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


@pytest.fixture(scope="module")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playing]:
    """A demo of a few orders in each mode but the usual one, all at once: they mostly wait."""
    with ExitStack() as stack:
        processes = {}
        for mode, options in MODES.items():
            processes[mode] = start(tmp_path_factory.mktemp(mode), "--mode", mode, *FEW, *options)
            stack.callback(end, processes[mode])
        yield processes


def processes_of(folder: Path) -> set[int]:
    """The processes that have something of `folder` on their command line."""
    found = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(maxsplit=1) for line in found.stdout.splitlines())
    return {int(pid) for pid, args in rows if str(folder) in args}


def numbers_of(out: str) -> dict[str, int]:
    """The table's rows that are a plain number."""
    return {name.strip(): int(count) for name, count in re.findall(r"^ ([\w -]+?) {2,}(\d+)(?= )", out, re.M)}


def played(process: subprocess.Popen[str], mode: str) -> tuple[dict[str, int], str]:
    """A demo of 40 orders that found nothing wrong: its numbers, and what it said while it ran."""
    out, talk = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, f"{out}\n{talk}"
    numbers = numbers_of(out)
    assert numbers["orders"] == numbers["committed"] + numbers["dead-lettered"] == 40
    assert numbers["dead-lettered"] >= 3, "one refused, two poison; on a busy machine also what took too long"
    assert re.search(r"^checked: \d+ records of all topics against \d+ deliveries", out, re.M), out
    assert talk.startswith(f"mode {mode}: ")
    assert "the service is down" in talk
    assert "drained and ended with 0" in talk
    return numbers, talk


def test_the_demo_ends_by_itself_with_a_table_that_it_has_checked(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        out, talk = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"{out}\n{talk}"
    numbers = numbers_of(out)
    assert numbers["orders"] == 60
    assert numbers["committed"] + numbers["dead-lettered"] == 60
    assert numbers["dead-lettered"] >= 3, "one refused, two poison"
    assert numbers["1st delivery"] + numbers["unseen"] >= 60, "one may be cut off before the service has read it"
    assert "lateness p50/p99/max" in out
    assert re.search(r"^checked: \d+ records of all topics against \d+ deliveries", out, re.M), out
    assert "the service is down" in talk
    assert re.search(r"^poison +orders:\d:\d+ .*→.*:500 .*DLQ", talk, re.M), "a journey with due and actual times"
    assert "drained and ended with 0" in talk
    assert list((tmp_path / "temp").iterdir()) == []


@pytest.mark.long
def test_a_demo_with_the_view_shows_it_and_holds_it_against_the_events(tmp_path: Path) -> None:
    with demo(tmp_path, "--view", "--ladder", "1s,2s", *FEW) as process:
        out, talk = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"{out}\n{talk}"
    assert re.search(r"\| the view: (empty|\d+ [A-Z_]+)", talk), (
        "while it runs; how far it has come depends on the machine"
    )
    end = re.search(r"^the view is right: \d+ rows are what \d+ events make: (.*)$", talk, re.M)
    assert end is not None
    assert re.fullmatch(r"\d+ COMMIT, \d+ DLQ", end[1]), "no record waits any more"
    assert not processes_of(tmp_path), "Spark's Java has ended too"
    assert list((tmp_path / "temp").iterdir()) == []


@pytest.mark.long  # as `dev up` in every run
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


@pytest.mark.long
def test_a_demo_of_batches_has_a_verdict_for_each_order(playing: Playing) -> None:
    numbers, talk = played(playing["batch"], "batch")
    assert numbers["3rd delivery"] >= 7, "five flaky, two poison"
    assert re.search(r"^stuck +orders:\d:\d+ .*:no-answer .*:commit  done", talk, re.M), "left out of the answer"
    assert re.search(r"^refused +orders:\d:\d+ .*:dead-letter  DLQ", talk, re.M)


@pytest.mark.long
def test_an_ordered_demo_retries_in_place_and_checks_the_order(playing: Playing) -> None:
    numbers, talk = played(playing["ordered"], "ordered")
    assert numbers["in line"] >= 30, "most of 40 orders share a key and a partition with others"
    assert numbers["4th delivery"] >= 2, "poison is tried in place three times"
    assert numbers["retries"] >= 2 * 5 + 3 * 2, "five flaky, two poison"
    assert re.search(r"^poison +orders:\d:\d+ +[\d.]+:\S+(  [\d.]+:\S+){3}  DLQ", talk, re.M), "no due time in place"


@pytest.mark.long
def test_a_pulling_demo_lets_a_lease_run_out(playing: Playing) -> None:
    _, talk = played(playing["pull"], "pull")
    assert re.search(r"^stuck +orders:\d:\d+ .*:no-answer  [\d.]+→[\d.]+:commit  done", talk, re.M)


@pytest.mark.long
def test_a_relaying_demo_brings_what_is_due_to_a_shop_that_reads_kafka_itself(playing: Playing) -> None:
    numbers, talk = played(playing["relay"], "relay")
    assert numbers["duplicates"] == 0, "the shop ends what it has begun before it goes down"
    assert re.search(r"^poison +orders:\d:\d+ +[\d.]+:retry(  [\d.]+→[\d.]+:retry){2}  DLQ", talk, re.M)


@pytest.mark.parametrize(
    ("options", "about"),
    [
        (("--mode", "carrier-pigeon"), "carrier-pigeon"),
        (("--mode", "ordered", "--ladder", "1s"), "retried in place"),
    ],
)
def test_a_mode_that_is_none_and_a_ladder_that_none_would_use_are_wrong_usage(
    tmp_path: Path, options: tuple[str, ...], about: str
) -> None:
    with demo(tmp_path, *options) as process:
        out, talk = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert about in " ".join(talk.split())
    assert out == ""
    assert list((tmp_path / "temp").iterdir()) == []
