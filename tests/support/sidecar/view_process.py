"""The view's job as users start it: `reconsume view run`, the driver below it, and the Java process below that.

Only processes below the one that was started here are ever signalled, by their ids.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import psutil
import yaml

from tests.support.deadline import STEP, T, until
from tests.support.processes import kill, lives, words_of
from tests.support.python_path import python_path

START_SECONDS = 90.0
"""Spark itself needs 5 to 10 s on an idle machine."""
GONE_SECONDS = 30.0
SELDOM = 0.5
"""Seconds between two looks that read whole topics: they would take the CPU of what is waited for."""
QUICK = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""For runs of seconds: what the second compiler and G1 cost is never earned back."""

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class ViewProcess:
    """One run of the job. A context manager: leaving it kills what still runs of it."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *words: str,
        group: str = "unused",
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {"group": group, "kafka": {"bootstrap.servers": bootstrap}}
        self._file = folder / "view.yaml"
        self._file.write_text(yaml.safe_dump(config))
        self._log, self._folder, self._words = folder / "view.log", folder, (*QUICK, *words)
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.family():
            kill(process)
        self.process.wait(GONE_SECONDS)
        if error is not None:
            error.add_note(f"--- the end of {self._log} ---\n{self.log()[-4_000:]}")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The command line's process."""
        assert self._process is not None, "it was never started"
        return self._process

    def start(self) -> None:
        """Start it, or start it anew after it has ended; returns at once."""
        command = [sys.executable, "-m", "reconsume.sidecar", "view", "run", "-c", str(self._file), *self._words]
        environ = {**os.environ, "PYTHONPATH": python_path(), "TMPDIR": str(self._folder), **self._environ}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, env=environ, stdout=log, stderr=log)
        self._family = []

    def family(self) -> list[psutil.Process]:
        """All processes of this run that were ever seen and still live, the command line's first."""
        try:
            mother = psutil.Process(self.process.pid)
            seen = [mother, *mother.children(recursive=True)]
        except psutil.NoSuchProcess:
            seen = []
        self._family += [process for process in seen if process not in self._family]
        return [process for process in self._family if lives(process)]

    def driver(self) -> psutil.Process:
        """The process of `python -m reconsume.spark`."""
        return self._member("the driver", lambda words: "reconsume.spark" in words and "run" in words and "-m" in words)

    def java(self) -> psutil.Process:
        """Spark's Java process, once it is one: before, it is a shell script."""
        return self._member("Java", lambda words: bool(words) and words[0].endswith("java"))

    def executors(self) -> list[psutil.Process]:
        """The processes that run Spark's tasks; none if the driver itself runs them (`local[2]`)."""
        return [process for process in self.family() if EXECUTOR in words_of(process)]

    def _member(self, what: str, fits: Callable[[list[str]], bool]) -> psutil.Process:
        def found() -> psutil.Process | None:
            return next((p for p in self.family()[1:] if fits(words_of(p))), None)

        member = self.until(found, START_SECONDS, f"{what} runs")
        assert member is not None
        return member

    def until(self, predicate: Callable[[], T], seconds: float, what: str, step: float = STEP) -> T:
        """As `deadline.until`, but fails at once when the command line's process has ended."""

        def asked() -> T:
            code = self.process.poll()
            assert code is None, f"it ended with {code}, waiting for: {what}\n{self.log()[-4_000:]}"
            return predicate()

        return until(asked, seconds, what, step, moves=self._logged)

    def crash(self) -> None:
        """SIGKILL of driver and Java at once, as when a pod is killed; waits for the end of all."""
        driver = self.driver()
        self.family()
        os.killpg(driver.pid, signal.SIGKILL)
        self.process.wait(GONE_SECONDS)
        self.await_gone()

    def stop(self) -> int:
        """SIGTERM to the command line's process; its exit code. All others must be gone then."""
        self.family()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(START_SECONDS)
        self.await_gone()
        return code

    def await_gone(self) -> None:
        """Wait until nothing of this run lives."""
        until(lambda: not self.family(), GONE_SECONDS, "nothing of the job lives")

    def metrics(self) -> str:
        """What Prometheus would read."""
        return self._answer("metrics")

    def livez(self) -> str:
        """What a kubelet would read of a job that lives. Raises HTTPError if it does not."""
        return self._answer("livez")

    def _answer(self, path: str) -> str:
        address = self.until(
            lambda: re.findall(r"metrics at (http://\S+)metrics", self.log()), START_SECONDS, "it has metrics"
        )
        with urllib.request.urlopen(f"{address[-1]}{path}", timeout=10) as reply:
            return str(reply.read().decode())

    def metric(self, series: str) -> float:
        """The value of one series, with its labels; 0 when it is not there."""
        lines = (line.rpartition(" ") for line in self.metrics().splitlines())
        return next((float(value) for name, _, value in lines if name == f"reconsume_spark_{series}"), 0.0)

    def _logged(self) -> int:
        """Bytes of its log."""
        return self._log.stat().st_size if self._log.exists() else 0

    def log(self) -> str:
        """All that it wrote."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class Batches:
    """Where the view's query is, by Spark's checkpoint of it in the job's folder, which is made anew at each start.

    A batch is begun when its offsets are there, and done with its commit.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _newest(self) -> Path | None:
        found = self._folder.glob("reconsume-view-*/reconsume-view-query-*")
        return max(found, key=lambda path: path.stat().st_ctime_ns, default=None)

    def done(self) -> set[int]:
        """The batches of the query that runs, or was killed, that are done."""
        return set() if (query := self._newest()) is None else numbers(query / "commits")

    def inside(self) -> int | None:
        """The number of the batch that is under way."""
        begun = set() if (query := self._newest()) is None else numbers(query / "offsets")
        return max(begun) if begun and max(begun) not in self.done() else None

    def between(self) -> bool:
        """Whether every batch that was begun is done."""
        return bool(self.done()) and self.inside() is None


def numbers(folder: Path) -> set[int]:
    """The batches that a folder of a checkpoint tells of."""
    return {int(file.name) for file in folder.iterdir() if file.name.isdecimal()} if folder.exists() else set()
