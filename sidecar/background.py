"""Run work next to the event loop: tasks that no caller awaits, and blocking work on threads.

Nothing uses the default pool of asyncio. It has few threads, every module shares them, and work waits there without a
bound: whoever makes calls that take long would stop everything else that needs a thread. So there are two ways, and a
test searches the code for a third one:

- `on_own_thread` is for what must happen in time, such as reading renewed credentials, and for what happens seldom. It
  has a thread of its own, so it waits for nobody.
- `BoundedThreads` is for what callers ask for. Each kind of call has its own, with few threads and a bound on the calls
  in progress. A call that is one too many is refused at once. A call counts until its work has ended, even if its
  caller went away long before: what a caller costs is the work and not the connection.

A thread of `on_own_thread` is a daemon: what hangs in it keeps no process from ending. So is a `ContextThread`, the
class of threads that run as long as their part of the sidecar.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from typing import Any, TypeVar

from reconsume.sidecar.errors import BusyError

T = TypeVar("T")


def background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task that no caller awaits; report an exception that ends it to the event loop at once."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    # Without this the loop reports the exception only when the task object is discarded.
    task.add_done_callback(_told)
    return task


async def on_own_thread(name: str, work: Callable[[], T]) -> T:
    """Run blocking work on a new thread of this name, and return its result. Raises whatever the work raises.

    A cancelled caller does not end the work.
    """
    # No variable of this frame holds the outcome: an error of it would hold the frame, and they would hold each other.
    return await asyncio.wrap_future(_started(name, work))


def _started(name: str, work: Callable[[], T]) -> Future[T]:
    outcome: Future[T] = Future()
    threading.Thread(target=_run, args=(outcome, work), name=name, daemon=True).start()
    return outcome


def _run(outcome: Future[T], work: Callable[[], T]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - the caller gets it, whatever it is
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
    finally:
        del outcome  # as the standard library does: an error keeps this frame


class ContextThread(threading.Thread):
    """A thread that works in the context in which it was made, so that its log lines name the same group.

    Python gives a thread an empty context. A subclass has its work in `do_work`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._context = copy_context()

    def run(self) -> None:
        """Do the work, in that context."""
        self._context.run(self.do_work)

    def do_work(self) -> None:
        """Do the work of the thread; it ends when this returns."""
        raise NotImplementedError


class BoundedThreads:
    """A few threads for one kind of call, with a bound on its calls in progress. Called on one event loop."""

    def __init__(
        self,
        name: str,
        threads: int,
        most: int,
        within: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`name`: of the threads. `most`: calls in progress, with those that wait for a thread. `within`: the context
        in which a thread does the work of a call."""
        self._within = within
        self._pool = ThreadPoolExecutor(threads, name)  # starts its threads when they are needed
        self._most = most
        self.in_progress = 0
        """Calls whose work has not ended."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Run blocking work, and return its result. Raises BusyError if there are too many, and whatever it raises."""
        if self.in_progress >= self._most:
            raise BusyError("too many calls of this kind are in progress: try again in a moment")
        self.in_progress += 1
        running = asyncio.get_running_loop().run_in_executor(self._pool, self._do, work)
        running.add_done_callback(self._ended)
        try:
            return await asyncio.shield(running)
        finally:
            del running  # an error keeps this frame, and the future keeps the error

    def _do(self, work: Callable[[], T]) -> T:
        with self._within():
            return work()

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self.in_progress -= 1
        if not running.cancelled():
            running.exception()  # read it, even if no caller waits any more

    def close(self) -> None:
        """Let what runs end, drop what waits, and accept nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        message = f"task {task.get_name()} has ended"
        task.get_loop().call_exception_handler({"message": message, "exception": fault, "task": task})
