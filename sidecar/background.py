"""Tasks that nobody waits for: an exception in one is the event loop's at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run a task that nobody waits for; an exception that ends it is the loop's at once, not when it is forgotten."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_told)
    return task


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        message = f"task {task.get_name()} has ended"
        task.get_loop().call_exception_handler({"message": message, "exception": fault, "task": task})
