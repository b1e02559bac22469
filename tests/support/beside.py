"""Something that goes on beside a test, on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(step: Callable[[], None], every: float) -> Iterator[None]:
    """Do something again and again, with `every` seconds in between, until the block ends."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(every):
            step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
