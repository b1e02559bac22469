"""Run tasks that no caller awaits; report an exception in one to the event loop at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task that no caller awaits; report an exception that ends it to the event loop at once."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    # Without this the loop reports the exception only when the task object is discarded.
    task.add_done_callback(_told)
    return task


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        message = f"task {task.get_name()} has ended"
        task.get_loop().call_exception_handler({"message": message, "exception": fault, "task": task})
