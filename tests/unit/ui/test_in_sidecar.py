"""The dashboard beside the lanes: what takes long there holds up nothing here."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.settings.addresses import Listen
from reconsume.sidecar.ui.app import DashboardThread
from reconsume.sidecar.ui.queries import within

SECONDS = 20.0


class Stuck:
    """A dashboard whose only page stands still, with its whole event loop, until the test lets it go."""

    def __init__(self, port: int = 0) -> None:
        self.asked, self.may_go = threading.Event(), threading.Event()
        self.server = Server(Starlette(routes=[Route("/", self.page)]), Listen("127.0.0.1", port))
        self.stopped_within: float | None = None

    async def page(self, _request: Request) -> Response:
        self.asked.set()
        self.may_go.wait(SECONDS)
        return PlainTextResponse("done")

    async def start(self) -> None:
        await self.server.start()

    async def stop(self, within: float) -> None:
        self.stopped_within = within
        await self.server.stop()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    dashboard = Stuck()
    yield dashboard
    dashboard.may_go.set()


async def call(port: int | None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    try:
        return await asyncio.wait_for(reader.read(), SECONDS)
    finally:
        writer.close()


def test_a_page_that_stands_still_does_not_hold_up_the_sidecars_loop(stuck: Stuck) -> None:
    async def scene() -> bytes:
        beside = DashboardThread(stuck)
        await beside.start()
        answer = asyncio.create_task(call(stuck.server.port))
        while not stuck.asked.is_set():
            await asyncio.sleep(0.001)
        for _ in range(100):  # on the sidecar's own loop the first of these would come after the page
            await asyncio.sleep(0)
        assert not answer.done()
        stuck.may_go.set()
        found = await answer
        await beside.stop(0.5)
        return found

    assert asyncio.run(asyncio.wait_for(scene(), SECONDS)).endswith(b"done")
    assert stuck.stopped_within == 0.5


def test_an_address_that_is_taken_is_told_where_the_sidecar_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        beside = DashboardThread(Stuck(taken.getsockname()[1]))
        with pytest.raises(SetupError, match=r"cannot listen on 127\.0\.0\.1"):
            asyncio.run(asyncio.wait_for(beside.start(), SECONDS))


def test_a_question_takes_no_more_than_its_share_of_a_processor() -> None:
    told, share = within(SECONDS, 0.25), 0.25
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < 0.1:
        told(None, 0)
    busy, took = time.thread_time() - used, time.monotonic() - began
    assert busy / took <= share * 1.2
