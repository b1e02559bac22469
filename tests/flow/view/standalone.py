"""A standalone cluster of Spark on this machine: a master, two workers of one core, and what is submitted to them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pyspark

from tests.support.deadline import until

HOME = Path(pyspark.__file__).parent
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
WORKERS = 2
START_SECONDS = 90.0
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Standalone:
    """The cluster. A context manager: leaving it ends all that it started.

    Nothing of this process's Python paths reaches the executors: they have what is submitted with a job.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._environment |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": SMALL}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Standalone:
        self._start("master", MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        until(lambda: ADDRESS.search(self.log("master")), START_SECONDS, "the master has an address")
        self.master = ADDRESS.findall(self.log("master"))[0]
        for number in range(WORKERS):
            words = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g")
            self._start(f"worker-{number}", WORKER, *words, "--work-dir", str(self.work(number)), self.master)
        until(lambda: self.log("master").count("Registering worker") == WORKERS, START_SECONDS, "the workers are there")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for process in reversed(self._processes):  # a driver, then what its executors run in
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, *words: str) -> None:
        self._run(name, [str(HOME / "bin" / "spark-class"), *words], self._environment)

    def _run(self, name: str, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, cwd=self._folder, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def submit(self, name: str, words: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
        """Submit a job with `spark-submit` and these arguments, its driver being here; `name` is its log's."""
        command = [str(HOME / "bin" / "spark-submit"), "--master", self.master, *words]
        return self._run(name, command, {**self._environment, **variables})

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self._folder / f"{name}.log").read_text("utf-8", errors="replace")

    def work(self, number: int) -> Path:
        """The folder of a worker, which has one for each application."""
        return self._folder / f"work-{number}"
