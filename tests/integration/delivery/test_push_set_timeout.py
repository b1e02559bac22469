"""Another timeout while deliveries are out: those that begin then have it, those that are out keep theirs."""

from __future__ import annotations

import asyncio
import re
import threading

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import StubService, Talk
from tests.support.sidecar.push_client import SHORT_MS, a_push, a_record, deliver, run, settled


def test_a_delivery_has_the_timeout_of_its_beginning_and_its_duration_is_true() -> None:
    ready = threading.Event()
    found: dict[str, Outcome] = {}

    async def work() -> None:
        push = a_push(service.url)
        found["before"] = await deliver(push, a_record(0))
        out = asyncio.create_task(deliver(push, a_record(1)))
        await settled(lambda: len(service.requests) == 2)
        push.set_timeout(SHORT_MS)
        found["short"] = await deliver(push, a_record(2))
        assert not out.done()
        ready.set()
        assert await out is COMMITTED
        # Each of the two took at least so long; measured from its deadline, the older one would count as negative.
        assert 2 * SHORT_MS / 1000 <= push.durations.total < 9.0
        push.close()
        await settled(lambda: push.connections == 0)

    def when_ready(talk: Talk) -> bool:
        return ready.wait(60) and stub.ok(talk)

    with StubService([stub.ok, when_ready, stub.hang]) as service:
        run(work)
    told = [re.search(rb"\r\nReconsume-Timeout: ([0-9]+)\r\n", request) for request in service.requests]
    assert [int(one[1]) for one in told if one] == [10_000, 10_000, SHORT_MS]
    assert found["before"] is COMMITTED
    assert isinstance(found["short"], Failed)
    assert found["short"].reason == "timeout"
