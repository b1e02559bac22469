"""A connection to a module's `target`, and a delivery of its `KEY` that waits for another one, by its `waiting`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from tests.support.deadline import until
from tests.support.service.once_service import connect, deliver


@pytest.fixture
def connection(target: str) -> Iterator[Any]:
    with closing(connect(target)) as opened:
        yield opened


@pytest.fixture
def duplicate(target: str, request: pytest.FixtureRequest) -> Iterator[Callable[[], Future[bool]]]:
    """`duplicate()` delivers KEY in the background, and returns when that delivery waits for another's end."""
    waiting, key = request.module.waiting, request.module.KEY
    with ThreadPoolExecutor(1) as pool:

        def start() -> Future[bool]:
            delivery = pool.submit(deliver, target, key)
            until(lambda: delivery.done() or waiting(target), 20, "the duplicate waits for the first delivery")
            assert not delivery.done(), "the duplicate did not wait"
            return delivery

        yield start
