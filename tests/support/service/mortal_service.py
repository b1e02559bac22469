"""A service of real processes that records can end: by an exit, by SIGKILL, or out of memory.

    with MortalService(folder, workers=4) as service:
        ...service.url, service.executions()...

A record's value is JSON: `{"n": 17}` is accepted after a few milliseconds, `{"n": 18, "do": "exit"}` ends the worker
that has it. Each worker is started again after `restart_after` seconds. Workers of Python are this file, run as a
program; `java=True` has one JVM with `com.sun.net.httpserver` instead (`MortalService.java`).
"""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType

NUMBER = re.compile(rb'"n": ?(\d+)')
BASE64 = re.compile(rb'"value_base64": ?"([A-Za-z0-9+/]*={0,2})"')
"""The value of a record in a batch."""
DEED = re.compile(rb'"do": ?"(\w+)"')
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
JAVA = Path(__file__).with_name("MortalService.java")
STARTS_WITHIN = 60.0
"""Seconds. A JVM compiles the file first."""


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class MortalService:
    """The workers, each on a thread that starts it again. `prefork`: they share the listener of their parent."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 1,
        restart_after: float = 0.05,
        prefork: bool = False,
        java: bool = False,
        unix: bool = False,
    ) -> None:
        self._log = folder / "executions"
        self._restart_after = restart_after
        self._address = str(folder / "app.sock") if unix else str(free_port())
        python = [sys.executable, "-S", "-E", __file__, self._address, str(self._log)]
        out_of_memory = ["-Xmx64m", "-XX:+ExitOnOutOfMemoryError", "-XX:TieredStopAtLevel=1"]
        self._command = ["java", *out_of_memory, str(JAVA), self._address, str(self._log)] if java else python
        if prefork:
            self._command += [str(workers), str(restart_after)]
        self._count = 1 if prefork else workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock, self._leaving = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._keep_alive, daemon=True) for _ in range(self._count)]
        self.starts = 0
        """How many processes were started."""

    @property
    def url(self) -> str:
        """Where records are posted."""
        if "/" in self._address:
            return f"unix:{self._address}:/events"
        return f"http://127.0.0.1:{self._address}/events"

    def executions(self) -> Counter[int]:
        """How often each record, by its number, was begun."""
        lines = self._log.read_text().split("\n") if self._log.exists() else []
        return Counter(int(number) for line in lines for number in line.split(",") if number)

    def kill_one(self) -> None:
        """SIGKILL to the worker that has lived longest, as the kernel sends it when memory is short."""
        with self._lock:
            for process in self._processes[:1]:
                process.kill()

    def __enter__(self) -> MortalService:
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + STARTS_WITHIN
        while not self._is_listening():
            if time.monotonic() > deadline:
                raise AssertionError("the service does not start")
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        with self._lock:
            for process in self._processes:
                with suppress(ProcessLookupError):  # one that has just ended, and that its thread has not removed yet
                    os.killpg(process.pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a worker did not end"

    def _is_listening(self) -> bool:
        is_unix = "/" in self._address
        with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as probe:
            return probe.connect_ex(self._address if is_unix else ("127.0.0.1", int(self._address))) == 0

    def _keep_alive(self) -> None:
        while not self._leaving.is_set():
            with self._lock:
                if self._leaving.is_set():
                    return
                process = subprocess.Popen(self._command, start_new_session=True)
                self._processes.append(process)
                self.starts += 1
            process.wait()
            with self._lock:
                self._processes.remove(process)
            self._leaving.wait(self._restart_after)


# --- the program ------------------------------------------------------------------------------------------------------


def main() -> None:
    """`ADDRESS LOG`: one worker with a listener of its own; `ADDRESS LOG WORKERS SECONDS`: a parent of several."""
    address, log = sys.argv[1:3]
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    listener = listen(address)
    if len(sys.argv) > 3:
        for _ in range(int(sys.argv[3]) - 1):
            fork(lambda: serve(listener, descriptor))
        fork(lambda: serve(listener, descriptor))
        while True:
            os.wait()
            time.sleep(float(sys.argv[4]))
            fork(lambda: serve(listener, descriptor))
    serve(listener, descriptor)


def fork(work) -> None:  # type: ignore[no-untyped-def]
    """Have a child do the work, and never return from it."""
    if os.fork() == 0:
        work()
        os._exit(0)


def listen(address: str) -> socket.socket:
    """Listen on a port that other workers may listen on too, or on a socket file."""
    if "/" in address:
        Path(address).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
    else:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", int(address)))
    listener.listen(128)
    return listener


def serve(listener: socket.socket, log: int) -> None:
    """Take connections for ever, each on a thread."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=talk, args=(connection, log), daemon=True).start()


def talk(connection: socket.socket, log: int) -> None:
    """Answer the requests of one connection, or die of one."""
    data = b""
    with connection:
        while True:
            while b"\r\n\r\n" not in data:
                more = connection.recv(65536)
                if not more:
                    return
                data += more
            head, _, rest = data.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            while len(rest) < length:
                rest += connection.recv(65536)
            body, data = rest[:length], rest[length:]
            if b'"records"' in body:
                body = b"\n".join(base64.b64decode(value) for value in BASE64.findall(body))
            os.write(log, b",".join(NUMBER.findall(body)) + b"\n")
            for deed in DEED.findall(body):
                if not do(deed):
                    return
            time.sleep(0.003)
            connection.sendall(OK)


def do(deed: bytes) -> bool:
    """Do what a record says; return whether it is answered."""
    if deed == b"exit":
        os._exit(1)
    if deed == b"oom":
        _held = bytearray(64 << 20)
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == b"kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == b"slow":
        time.sleep(0.3)
    return deed != b"throw"


if __name__ == "__main__":
    main()
