"""The admin client ends with its owner: a page of the dashboard makes one for each of its requests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.errors import BrokerError
from sidecar.kafka.admin import cluster
from sidecar.kafka.admin.cluster import Cluster
from sidecar.kafka.admin.connection import Connection
from tests.support.deadline import until

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


SECONDS = 20.0


def threads() -> set[str]:
    """The threads of this process by their ids, with those of the Kafka client. Another test's may end meanwhile.

    The system lists a thread for a moment after it has been joined.
    """
    return {thread.name for thread in Path("/proc/self/task").iterdir()}


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """As in a running sidecar, which looks for cycles so rarely that it may be called never."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_nothing_is_left_of_a_client_that_nobody_needs_any_more() -> None:
    before = threads()
    clients = [Connection(NOBODY) for _ in range(8)]
    assert threads() - before
    clients.clear()
    until(lambda: threads() <= before, SECONDS, "their threads are gone")


def test_neither_is_after_a_question_that_nobody_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.5)
    before = threads()
    with pytest.raises(BrokerError, match="no broker of"):
        Cluster(NOBODY).find(["orders"])
    until(lambda: threads() <= before, SECONDS, "its threads are gone")
