"""A standalone cluster of Spark: a master and two workers of one core, each a process that can be killed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from reconsume.sidecar.java.find_java import find_java
from tests.support.deadline import until
from tests.support.processes import kill, words_of
from tests.support.sidecar.view_process import EXECUTOR, START_SECONDS

WORKERS = 2
HOST = "127.0.0.1"
DEPLOY = "org.apache.spark.deploy"


class Standalone:
    """The cluster. Only processes that were started here, and what they have started, are ever killed."""

    def __init__(self, home: Path, folder: Path) -> None:
        """`home`: Spark's folder. `folder`: where the processes log, and executors keep their files."""
        folder.mkdir()
        self._home, self._folder, self._port = home, folder, free_port()
        java = find_java().parent.parent
        self._environ = {"SPARK_HOME": str(home), "JAVA_HOME": str(java), "SPARK_DAEMON_MEMORY": "192m"}
        self._master: psutil.Popen | None = None
        self._workers: list[psutil.Popen] = []

    @property
    def words(self) -> tuple[str, ...]:
        """Options of a job that runs on it."""
        confs = {"spark.driver.host": HOST, "spark.executor.memory": "640m", "spark.cores.max": str(WORKERS)}
        return (f"--master={self._url}", *(f"--conf={name}={value}" for name, value in confs.items()))

    @property
    def _url(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def start(self) -> None:
        """Start the master, and the workers once it listens."""
        self._master = self._launch("master.Master", "--port", str(self._port), "--webui-port", "0")
        until(self._listens, START_SECONDS, "Spark's master listens")
        for _ in range(WORKERS):
            self.add_worker()

    def add_worker(self) -> None:
        """Start another worker."""
        work = ("--work-dir", str(self._folder / "work"), "--webui-port", "0")
        self._workers.append(self._launch("worker.Worker", "--cores", "1", "--memory", "1g", *work, self._url))

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0

    def _launch(self, name: str, *words: str) -> psutil.Popen:
        command = [str(self._home / "bin" / "spark-class"), f"{DEPLOY}.{name}", "--host", HOST, *words]
        with (self._folder / f"{name}.log").open("ab") as log:
            environ = {**os.environ, **self._environ}
            return psutil.Popen(command, env=environ, cwd=self._folder, stdout=log, stderr=log)

    def executors(self) -> list[psutil.Process]:
        """The processes that run tasks."""
        return [process for worker in self._workers for process in below(worker) if EXECUTOR in words_of(process)]

    def kill_worker(self, number: int) -> None:
        """SIGKILL of a worker and its executors, as when their machine is lost."""
        worker = self._workers.pop(number % len(self._workers))
        for process in (*below(worker), worker):
            kill(process)
        worker.wait()

    def close(self) -> None:
        """Kill all."""
        while self._workers:
            self.kill_worker(0)
        if self._master is not None:
            kill(self._master)
            self._master.wait()


def below(process: psutil.Popen) -> list[psutil.Process]:
    """What a process has started; nothing when it has ended."""
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
