"""A service whose listen backlog is short, and which is slow to accept: no connection is lost, no attempt is spent."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, NotSent
from reconsume.sidecar.delivery.push.new_connections import MOST_NEW
from reconsume.sidecar.open_files import reserve_of
from tests.support.sidecar.push_client import SECONDS, SHORT_MS, a_push, a_record, deliver, run, settled

MANY = 100
PLACES = ThreadingHTTPServer.request_queue_size + 1
"""Linux lets one more into a backlog than was asked for."""


class Events(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def listening() -> Iterator[ThreadingHTTPServer]:
    """A server of the standard library that listens, and accepts nobody yet."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Events) as server:
        server.daemon_threads = True
        yield server


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/events"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what was acknowledged")
def test_a_full_backlog_gets_no_more_connections_than_it_holds_and_a_few() -> None:
    """Given a service that accepts nobody, when many records come, then they wait, and all succeed when it accepts."""
    with listening() as server:

        async def work() -> None:
            push = a_push(url_of(server), connect_timeout_ms=60_000)
            deliveries = [asyncio.create_task(deliver(push, a_record(number))) for number in range(MANY)]
            await settled(lambda: push.connections >= PLACES)
            await asyncio.sleep(0.2)  # time in which too many would be opened; that they are not is the claim
            assert push.connections <= PLACES + MOST_NEW
            thread = Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                assert set(await asyncio.wait_for(asyncio.gather(*deliveries), SECONDS)) == {COMMITTED}
            finally:
                push.close()
                await asyncio.to_thread(server.shutdown)
                thread.join()

        run(work)


def test_deliveries_that_wait_fare_as_the_connection_for_which_they_wait() -> None:
    """Given a service that nobody can reach, then many records take no longer than one."""
    with closing(socket.socket()) as full, closing(socket.socket()) as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())

        async def work() -> None:
            push = a_push(f"http://127.0.0.1:{full.getsockname()[1]}/", connect_timeout_ms=SHORT_MS, timeout_ms=1_000)
            outcomes = await asyncio.gather(*(deliver(push, a_record(number)) for number in range(MANY)))
            assert outcomes.count(NotSent("connect-timeout")) >= MANY - 1, "the backlog has one place at most"
            push.close()

        run(work)


def test_a_stop_cancels_deliveries_that_wait() -> None:
    with listening() as server:

        async def work() -> None:
            push = a_push(url_of(server), timeout_ms=1_000)
            deliveries = [asyncio.create_task(deliver(push, a_record(number))) for number in range(MANY)]
            await settled(lambda: push.connections > 0)
            push.close()
            outcomes = await asyncio.gather(*deliveries)
            assert outcomes.count(CANCELLED) >= MANY - PLACES - MOST_NEW

        run(work)


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """Lets this process open so many more connections to a service."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file = os.dup(2)
    os.close(file)
    most = next(most for most in range(file, soft) if most - reserve_of(most) == file + more)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_files_that_run_out_are_no_fault_of_the_service(caplog: pytest.LogCaptureFixture) -> None:
    """Given more deliveries than files, then the connections that there are deliver each, and the log says why."""
    with listening() as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

        async def work() -> None:
            push = a_push(url_of(server))
            with few_files(8):
                outcomes = await asyncio.gather(*(deliver(push, a_record(number)) for number in range(MANY)))
                assert push.connections <= 8
            assert outcomes == [COMMITTED] * MANY
            push.close()

        run(work)
        server.shutdown()
    assert [record.event for record in caplog.records if hasattr(record, "event")] == ["files-used-up"]


def test_a_connection_for_which_there_is_no_file_is_opened_later() -> None:
    with listening() as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

        async def work() -> None:
            push = a_push(url_of(server))
            outcome = asyncio.create_task(deliver(push, a_record(0)))
            await asyncio.sleep(0)
            assert push.connections == 1, "it is being opened"
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                await settled(lambda: push.connections == 0)
                assert not outcome.done()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await outcome == COMMITTED
            push.close()

        run(work)
        server.shutdown()
