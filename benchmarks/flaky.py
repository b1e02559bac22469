"""A service that fails on purpose, in the benchmark's own process, where nginx cannot: by what the headers say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping


class Flaky(threading.Thread):
    """Serves on a free port of loopback, on an own loop; it ends with the program.

    `takes` gets the headers of a delivery, names in lower case, with the body as `:body`, and the epoch ms at which
    they were there, and says whether it succeeds; the answer comes `after` so many seconds.
    """

    def __init__(self, takes: Callable[[Mapping[str, str], float], bool], after: float = 0) -> None:
        super().__init__(daemon=True)
        self.port = 0
        self._takes, self._after = takes, after
        self._up = threading.Event()
        self.start()
        if not self._up.wait(10):
            raise SystemExit("the service did not start")

    def run(self) -> None:
        """Serve."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                at = time.time() * 1000
                fields = dict[str, str]()
                for name, sign, value in (line.partition(": ") for line in head.split("\r\n")[1:]):
                    if sign:
                        fields[name.lower()] = value
                fields[":body"] = (await reader.readexactly(int(fields.get("content-length", "0")))).decode("latin-1")
                if self._after > 0:
                    await asyncio.sleep(self._after)
                status = b"200 OK" if self._takes(fields, at) else b"500 No"
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
