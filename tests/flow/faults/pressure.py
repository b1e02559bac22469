"""Everybody who wants something of a sidecar at once, as a process of its own.

Sixteen readers turn over the pages of its dashboard without a pause. Three floods open connections to its API, its
probes and its dashboard that say no whole call, or more than anybody keeps. Prints how often which answer came, as
JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle

from tests.support.sidecar.running_api import Client

READERS = 16
HELD = 160
"""Connections that each flood holds open: more than a listener has places."""
PAUSE = 0.01
"""Seconds between two connections of a flood."""
STRANGER = "127.0.0.2"
"""Where the flood of the probes comes from: the kubelet has an address of its own."""
PAGES = (
    "/",
    "/part/group",
    "/records",
    "/dlq",
    "/dlq?reason=http-500",
    "/policy",
    "/instances",
    "/record/journey?id=x:0:1",
)
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
DRAIN = b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SAID = (
    b"",
    b"GET /livez HTTP/1.1\r\n",
    DRAIN + b"Content-Length: 9\r\n\r\nx",
    (LIVEZ + b"\r\n") * 500,
    DRAIN + b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000,
    LIVEZ + b"a:\r\n" * 2_000 + b"\r\n",
    (LIVEZ.replace(b"livez", b"metrics") + b"\r\n") * 8,
)
"""What a connection of a flood sends: too little, or too much. It reads no answer."""


def read(port: int, pages: Iterator[str], end: float, answers: Counter[str]) -> None:
    """Ask for one page after the other."""
    while time.monotonic() < end:
        try:
            with Client(port) as client:
                answers[str(client.call("GET", next(pages)).status)] += 1
        except OSError:
            answers["none"] += 1
            time.sleep(PAUSE)


def flood(port: int, source: str, end: float) -> None:
    """Hold as many connections as there may be, each silent or broken off, and open the next one at once."""
    held: list[Client] = []
    for said in cycle(SAID):
        if time.monotonic() > end:
            break
        with suppress(OSError):
            held.append(Client(port, source))
            held[-1].send(said)
        if len(held) > HELD:
            held.pop(0).__exit__()
        time.sleep(PAUSE)
    for one in held:
        one.__exit__()


def main(api: int, probes: int, ui: int, seconds: int) -> None:
    """Press for so many seconds."""
    end, answers = time.monotonic() + seconds, Counter[str]()
    work = [
        threading.Thread(target=read, args=(ui, cycle(PAGES[n % 8 :] + PAGES), end, answers)) for n in range(READERS)
    ]
    floods = ((api, "127.0.0.1"), (probes, STRANGER), (ui, STRANGER))
    work += [threading.Thread(target=flood, args=(port, source, end)) for port, source in floods]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    print(json.dumps(answers))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
