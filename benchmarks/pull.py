"""Pull mode under measurement: a process that receives 128 at a time and acks them, over a few connections at once.

`python -m benchmarks.pull PORT RECORDS` prints a line when the first record has come, and one when all are acked.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import uvloop

from benchmarks import cluster
from benchmarks.sidecar import Sidecar, Usage

Sets: TypeAlias = Callable[[str], tuple[str, list[str]]]
"""Gives a fresh main topic and the settings of a sidecar for it."""

MOST = 128
CALLERS = 4


class Taken(msgspec.Struct):
    """Of a record the handle is all that this service looks at."""

    handle: str


class Given(msgspec.Struct):
    """The answer to receive."""

    records: list[Taken]


class Service:
    """Receives and acks until it has had so many records."""

    def __init__(self, port: int, records: int) -> None:
        self._port = port
        self._left = records
        self._begun = False
        self._given = msgspec.json.Decoder(Given)

    async def run(self) -> None:
        """Run all callers to their end."""
        await asyncio.gather(*(self._caller() for _ in range(CALLERS)))
        print("done", flush=True)

    async def _caller(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while self._left > 0:
            ask = {"max": MOST, "invisible": "5m", "wait": "200ms"}
            taken = self._given.decode(await call(reader, writer, "receive", ask)).records
            if not taken:
                continue
            if not self._begun:
                self._begun = True
                print("first", flush=True)
            await call(reader, writer, "ack", {"handles": [one.handle for one in taken]})
            self._left -= len(taken)
        writer.close()


async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, body: object) -> bytes:
    """One call on a connection that stays; SystemExit for any answer but 200."""
    data = msgspec.json.encode(body)
    head = f"POST /v1/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
    answer = await reader.readexactly(length)
    if b" 200 " not in lines[0]:
        raise SystemExit(f"{name}: {answer[:500]!r}")
    return answer


def pulled(bootstrap: str, records: int, sets: Sets) -> tuple[float, float, int, float]:
    """Let a service pull all records; of the sidecar records/s, CPU µs a record, peak memory, seconds to the first."""
    topic, given = sets("ok")
    given = [one for one in given if not one.startswith("deliver.")] + ["deliver.mode=pull"]
    cluster.create(bootstrap, topic, cluster.settings_of(given))
    cluster.fill(bootstrap, topic, records)
    port = next(one.rpartition(":")[2] for one in given if one.startswith("api.listen="))
    sidecar = Sidecar(given)
    try:
        wait_for_api(int(port), sidecar)
        command = [sys.executable, "-m", "benchmarks.pull", port, str(records)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            first, last = said(service, "first", sidecar), said(service, "done", sidecar)
        rate, cpu = records / (last.at - first.at), (last.cpu - first.cpu) / records * 1e6
        return rate, cpu, sidecar.peak, first.at - sidecar.started_at
    finally:
        sidecar.close()


def wait_for_api(port: int, sidecar: Sidecar) -> None:
    """Wait until the sidecar listens; SystemExit when it does not in 30 s."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        sidecar.usage()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise SystemExit("the sidecar does not listen")


def said(service: subprocess.Popen[str], word: str, sidecar: Sidecar) -> Usage:
    """Wait for a line of the service; what the sidecar had used by then."""
    line = service.stdout.readline().strip() if service.stdout is not None else ""
    if line != word:
        raise SystemExit(f"the service ended, and did not say {word}")
    return sidecar.usage()


if __name__ == "__main__":
    uvloop.run(Service(int(sys.argv[1]), int(sys.argv[2])).run())
