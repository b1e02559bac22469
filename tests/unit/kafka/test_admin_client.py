"""The admin client ends with its owner: a page of the dashboard makes one for each of its requests."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin import cluster
from reconsume.sidecar.kafka.admin.cluster import Cluster, Connection
from tests.support.deadline import until

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
SECONDS = 20.0


def threads() -> set[str]:
    """The threads of this process by their ids, with those of the Kafka client."""
    return {thread.name for thread in Path("/proc/self/task").iterdir()}


def made_and_let_go_of() -> None:
    before = threads()
    clients = [Connection(NOBODY) for _ in range(8)]
    assert len(threads() - before) >= len(clients)


def asked_in_vain() -> None:
    cluster.ANSWER_SECONDS = 0.5
    with suppress(BrokerError):
        Cluster(NOBODY).find_topics(["orders"])
        raise AssertionError


def leaves_nothing(use: Callable[[], None]) -> None:
    """In a process of its own: other tests leave threads behind that start and end."""
    gc.disable()  # as in a running sidecar, which looks for cycles so rarely that it may be called never
    before = threads()
    use()
    # The system lists a thread for a moment after it has been joined.
    until(lambda: threads() == before, SECONDS, "its threads are gone")


@pytest.mark.parametrize("use", [made_and_let_go_of, asked_in_vain])
def test_nothing_is_left_of_a_client_that_nobody_needs_any_more(use: Callable[[], None]) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(leaves_nothing, use).result()
