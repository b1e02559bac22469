"""A real sidecar, as its own process: started from a configuration file, driven by signals and by its API.

Only the process that was started here is ever signalled, by its id.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import yaml

from reconsume.sidecar.observability.cached_answer import LONGEST_HELD
from reconsume.sidecar.runtime.lane_checks import SWITCH
from tests.support.deadline import T, until
from tests.support.kafka.group_topics import GroupTopics
from tests.support.sidecar.config import AS_OPERATOR, Config, config_of, with_operators
from tests.support.sidecar.forked import MAIN, Forked, nursery

REPOSITORY = Path(__file__).resolve().parents[3]
API_PORTS = range(8_500, 12_000)
START_SECONDS = 20.0
GROUP_LABEL = re.compile(r'group="[^"]*",?')


class Exit(NamedTuple):
    """How a process ended: its code (negative: the signal), and the seconds that it took."""

    code: int
    seconds: float


class Reply(NamedTuple):
    """An answer of the sidecar's API."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class OtherGroup(NamedTuple):
    """A further group of a sidecar."""

    group: GroupTopics
    url: str
    overrides: Config | None = None


CHECKED = {SWITCH: "1"}
"""The variable by which a sidecar checks its lanes once a second, and ends with a sentence of what does not hold."""


class SidecarProcess:
    """One pod's sidecar. A context manager: leaving it kills the process if it still runs.

    `pod` is its POD_NAME: the same name again is the same pod, whose container was started anew. A `fresh` one is
    started as users do, where its memory or its start matters; others are forked, which costs less, and check their
    lanes once a second. `environ` are variables beside those of this process. `others`: further groups of the same
    process, each with a file of its own.
    """

    module = MAIN
    """The program that is started."""

    def __init__(
        self,
        group: GroupTopics,
        url: str,
        folder: Path,
        *,
        pod: str = "pod-0",
        overrides: Config | None = None,
        fresh: bool = False,
        environ: Mapping[str, str] | None = None,
        others: Sequence[OtherGroup] = (),
    ) -> None:
        self.group = group
        self.pod = pod
        self._fresh = fresh
        self._environ = {**({} if fresh else CHECKED), **(environ or {})}
        self.port, self._reservation = _reserved_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{pod}.yaml"
        self._file.write_text(yaml.safe_dump(with_operators(config_of(group, url, self.port, overrides), folder)))
        self.files = [self._file]
        """The configuration of each group."""
        for other in others:
            config = config_of(other.group, other.url, self.port, other.overrides)
            del config["drain_timeout"]  # the process has one, and the first file has it
            self.files.append(folder / f"{pod}-{other.group.group}.yaml")
            self.files[-1].write_text(yaml.safe_dump(config))
        self._log = folder / f"{pod}.log"
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._scraped = -LONGEST_HELD
        """When the last answer of `metrics` came."""

    def __enter__(self) -> SidecarProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._reservation.close()
        if error is not None:
            error.add_note(f"--- the end of {self._log} ---\n{self.log()[-4_000:]}")

    @property
    def process(self) -> subprocess.Popen[bytes] | Forked:
        """The process that runs, or ran last."""
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def start(self) -> None:
        """Start the process, or start it anew after it has ended; returns at once."""
        environ = {**os.environ, "POD_NAME": self.pod, "PYTHONPATH": str(REPOSITORY), **self._environ}
        if self.module == MAIN and not self._fresh:
            words = ["run", *(word for file in self.files for word in ("-c", str(file)))]
            self._process = nursery().fork(words, self._file.parent, environ, self._log)
            return
        # Its stderr is a file: a pipe that nobody reads fills up, and then stops every thread of the Kafka client.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command(*self.files, module=self.module), cwd=self._file.parent, env=environ, stderr=log
            )

    def stop(self, seconds: float = 15.0) -> Exit:
        """SIGTERM, and wait for the end; a process that does not end in time is killed, and that is a failure."""
        begin = time.monotonic()
        self.signal(signal.SIGTERM)
        return self.wait(seconds, begin)

    def wait(self, seconds: float = 15.0, begin: float | None = None) -> Exit:
        """Wait until it has ended."""
        begin = time.monotonic() if begin is None else begin
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.abort()
            raise AssertionError(f"the sidecar did not end within {seconds:g} s") from None
        return Exit(code, time.monotonic() - begin)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        self.process.wait(60)

    def abort(self) -> None:
        """SIGABRT, and wait for the end: its log then has where each thread stood, though none of them could run."""
        self.signal(signal.SIGABRT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: it stands still, as under a long pause of its machine."""
        self.signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.running:
            self.process.send_signal(number)

    def request(
        self, method: str, path: str, seconds: float = 30.0, *, token: bool = True, body: object = None
    ) -> Reply:
        """Call the sidecar's API as an operator, or without a token. Raises OSError while it does not listen.

        `body`: sent as JSON.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            headers = (AS_OPERATOR if token else {}) | ({} if body is None else {"Content-Type": "application/json"})
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read())
        finally:
            connection.close()

    def status(self) -> Any:
        """`GET /status` as JSON. Raises OSError while it does not listen."""
        return self.request("GET", "/status").json

    def key_count(self, state: str) -> int | None:
        """How many keys are blocked or parked, or records behind them, by `/status`; None before it follows keys."""
        keys = self.status()["keys"]
        return None if keys is None else keys[state]

    def metrics(self) -> str:
        """`GET /metrics`, made after this call: the sidecar gives an answer again for a second at most."""
        time.sleep(max(0.0, self._scraped + LONGEST_HELD - time.monotonic()))
        reply = self.request("GET", "/metrics")
        self._scraped = time.monotonic()
        assert reply.status == 200, reply
        return reply.body.decode()

    def metric(self, series: str) -> float:
        """The value of one series, such as `reconsume_in_flight`, or with labels (not `group`); 0 if it is absent."""
        lines = (GROUP_LABEL.sub("", line).replace("{}", "").rpartition(" ") for line in self.metrics().splitlines())
        return next((float(value) for name, _, value in lines if name == series), 0.0)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until it has started: both lanes consume."""

        def started() -> bool:
            with suppress(OSError, http.client.HTTPException):
                return self.request("GET", "/startupz").status == 200
            return False

        self.until(started, seconds, "the sidecar has started")

    def until(self, predicate: Callable[[], T], seconds: float, what: str) -> T:
        """As `deadline.until`, but fails at once when the process has ended."""

        def asked() -> T:
            assert self.running, f"the sidecar ended with {self.process.returncode}, waiting for: {what}"
            return predicate()

        return until(asked, seconds, what, moves=self._logged)

    def wait_log(self, text: str, seconds: float = 10.0) -> str:
        """Wait until a line of its log holds `text`; that line."""

        def line() -> str:
            return next((line for line in self.log().splitlines() if text in line), "")

        return self.until(line, seconds, f"the log says {text!r}")

    def _logged(self) -> int:
        """Bytes of its log."""
        return self._log.stat().st_size if self._log.exists() else 0

    def log(self) -> str:
        """All that it wrote to stderr."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def command(*files: Path, module: str = "reconsume.sidecar") -> list[str]:
    """How a sidecar is started."""
    return [sys.executable, "-m", module, "run", *(word for file in files for word in ("-c", str(file)))]


def _reserved_port() -> tuple[int, socket.socket]:
    """A port that nobody uses, and a socket that keeps it from others until it is closed.

    The reservation is bound and does not listen; with SO_REUSEADDR on both sides the sidecar may bind the same port.
    """
    for port in random.sample(API_PORTS, 50):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            probe.close()
            reservation = socket.socket()
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind(("127.0.0.1", port))
            return port, reservation
    raise RuntimeError("no free port for the API")
