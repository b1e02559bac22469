"""Faults of the service, two hundred times with a record of 1 MB each: their requests are not kept.

An error that is kept beyond its handler holds all frames that it has passed, and what these hold. A sidecar collects
such cycles once a minute; an outage makes some hundred MB of them in that time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.sidecar.core.outcome import Died, Failed, NotSent, Outcome
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.delivery.push import Push, PushSettings, parse_target
from reconsume.sidecar.delivery.push.batch import BatchPush
from tests.integration.delivery.batch_client import Feeder
from tests.integration.delivery.test_push_connections import a_refused_url
from tests.support.freed import nothing_left
from tests.support.rings import inner
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import Behaviour, StubService
from tests.support.sidecar.push_client import a_push, a_record, now, run, settled

TIMES = 200
AT_ONCE = 20
VALUE = 1_000_000
LEFT_MIB = 60
"""Bytes that may be left after it: the requests in flight at once, and what the allocator keeps."""


class Scene(NamedTuple):
    """How a client of the service is made, how the service forgets what it was sent, and how many records are out."""

    push: Callable[[], Push]
    forget: Callable[[], None] = lambda: None
    at_once: int = 1


Play = Callable[[Path], AbstractContextManager[Scene]]


def unreachable(url: str) -> Play:
    @contextmanager
    def scene(_folder: Path) -> Iterator[Scene]:
        yield Scene(lambda: a_push(url))

    return scene


def answering(behaviour: Behaviour, **settings: int) -> Play:
    @contextmanager
    def scene(_folder: Path) -> Iterator[Scene]:
        with StubService([behaviour]) as service:
            yield Scene(lambda: a_push(service.url, **settings), service.requests.clear, AT_ONCE)

    return scene


def silent(talk: stub.Talk) -> bool:
    """Say nothing until the client gives up."""
    talk.connection.recv(1)
    return False


@contextmanager
def full_backlog(folder: Path) -> Iterator[Scene]:
    with closing(socket.socket(socket.AF_UNIX)) as listener, closing(socket.socket(socket.AF_UNIX)) as first:
        listener.bind(str(folder / "s"))
        listener.listen(0)
        first.connect(str(folder / "s"))
        yield Scene(lambda: a_push(f"unix:{folder}/s:/", connect_timeout_ms=100), at_once=AT_ONCE)


@contextmanager
def unknown_host(_folder: Path) -> Iterator[Scene]:
    target = parse_target("http://no-such-host.invalid:1/", True)
    yield Scene(lambda: Push(target, PushSettings("billing", 10_000), now))


FAULTS: dict[str, Play] = {
    "connection refused": unreachable(a_refused_url()),
    "both families refuse": unreachable(a_refused_url().replace("127.0.0.1", "localhost")),
    "no such socket": unreachable("unix:/nowhere/none.sock:/"),
    "no such host": unknown_host,
    "backlog full": full_backlog,
    "closed before an answer": answering(stub.close_before),
    "closed amid an answer": answering(stub.close_mid_json),
    "not HTTP": answering(stub.garbage),
    "a head without end": answering(stub.endless_headers),
    "no answer": answering(silent, timeout_ms=200),
}


@pytest.mark.parametrize("fault", inner("closed amid an answer", FAULTS))
def test_a_fault_of_the_service_keeps_no_request(fault: str, tmp_path: Path) -> None:
    async def work() -> None:
        push = scene.push()
        await deliver(push, scene.at_once)  # what a first time costs: the allocator's arenas, the threads of lookups
        scene.forget()
        with nothing_left(LEFT_MIB):
            for _ in range(TIMES // scene.at_once):
                outcomes = await deliver(push, scene.at_once)
                assert all(isinstance(outcome, NotSent | Failed | Died) for outcome in outcomes), outcomes
                scene.forget()
        push.close()
        await settled(lambda: push.connections == 0)

    with FAULTS[fault](tmp_path) as scene:
        run(work)


def test_an_outage_keeps_no_batch() -> None:
    async def work() -> None:
        batches = Feeder(a_refused_url(), max_size=1).batches
        await deliver(batches, 1)
        with nothing_left(LEFT_MIB):
            for _ in range(TIMES):
                assert await deliver(batches, 1) == [NotSent("connection-refused")]

    run(work)


async def deliver(push: Push | BatchPush, count: int) -> list[Outcome]:
    """What becomes of so many large records."""
    outcomes = list[Outcome]()

    def reply(_record: Record, outcome: Outcome, _at: Now) -> None:
        outcomes.append(outcome)

    for number in range(count):
        push(a_record(number, bytes([number % 256]) * VALUE), reply)
    await settled(lambda: len(outcomes) == count)
    return outcomes
