"""Blocking work next to the event loop: what is bounded, what waits for nobody, and what is left of an error."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable

import pytest

from reconsume.sidecar.background import BoundedThreads, on_own_thread
from reconsume.sidecar.errors import BusyError

WITHIN = 30.0


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(WITHIN):
            await story()

    asyncio.run(timed())


def test_a_call_counts_until_its_work_has_ended_even_if_its_caller_is_gone() -> None:
    async def story() -> None:
        calls, go = BoundedThreads("calls", 1, 2), threading.Event()
        callers = [asyncio.ensure_future(calls(lambda: go.wait(WITHIN))) for _ in range(2)]
        await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        assert calls.in_progress == 2
        with pytest.raises(BusyError):
            await calls(lambda: None)
        go.set()
        while calls.in_progress:
            await asyncio.sleep(0.001)
        assert await calls(lambda: "there is room again") == "there is room again"
        calls.close()

    run(story)


def test_work_of_its_own_thread_waits_for_no_call_however_many_there_are() -> None:
    """Given every thread of every pool at work, the default one too, then credentials are read all the same."""

    async def story() -> None:
        loop, go = asyncio.get_running_loop(), threading.Event()
        calls = BoundedThreads("calls", 1, 2)
        stuck = [loop.run_in_executor(None, go.wait, WITHIN) for _ in range(64)]
        stuck += [asyncio.ensure_future(calls(lambda: go.wait(WITHIN))) for _ in range(2)]
        assert await on_own_thread("credentials", lambda: threading.current_thread().name) == "credentials"
        assert not any(one.done() for one in stuck)
        go.set()
        await asyncio.gather(*stuck)
        calls.close()

    run(story)


def test_a_cancelled_caller_does_not_end_the_work_of_a_thread_and_nobody_misses_its_result() -> None:
    async def story() -> None:
        go, ended = threading.Event(), threading.Event()

        def work() -> None:
            go.wait(WITHIN)
            ended.set()

        caller = asyncio.ensure_future(on_own_thread("work", work))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go.set()
        assert ended.wait(WITHIN)

    run(story)


class Client:
    """What a frame holds: a client of Kafka, say."""


@pytest.mark.parametrize("way", ["own", "bounded"])
def test_an_error_leaves_nothing_that_waits_for_a_collection(way: str) -> None:
    """Given work that fails, then what its frames held is free once the caller has handled the error."""
    held: list[weakref.ref[Client]] = []

    def work() -> None:
        client = Client()
        held.append(weakref.ref(client))
        raise ValueError(client)

    async def story() -> None:
        calls = BoundedThreads("calls", 1, 1)
        asked = on_own_thread("work", work) if way == "own" else calls(work)
        with pytest.raises(ValueError, match="Client"):
            await asked
        calls.close()

    gc.disable()
    try:
        run(story)
        end = threading.Event()
        for _ in range(1_000):  # the thread itself may still be on its way out
            if held[0]() is None:
                break
            end.wait(0.01)
        assert held[0]() is None
    finally:
        gc.enable()
