"""When an instance takes part whose service is heard of early: the policy topic may not be read yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.participation import Others
from reconsume.sidecar.delivery.pull.queue import PullQueue
from reconsume.sidecar.runtime.group_membership import GroupMembership

PULL: Any = SimpleNamespace(
    membership="service",
    deliver=SimpleNamespace(mode="pull", broadcast=False, leave_after=120_000, health_url=None, url=None),
)


class Runner:
    """A lane that only notes whether it is to take part."""

    def __init__(self) -> None:
        self.member: bool | None = None

    def take_part(self, member: bool) -> None:
        self.member = member


async def receive(leases: PullQueue, seconds: float) -> None:
    """A call of the service that waits so long."""
    async with leases.wait_for_records(seconds, asyncio.get_running_loop().create_future()):
        pass


def test_a_receive_that_waits_before_the_policy_is_known_has_the_instance_join() -> None:
    """A service calls as soon as it is there, and its call may wait for a minute: nothing else would tell of it."""

    async def begin() -> bool | None:
        runner: Any = Runner()
        member = GroupMembership(PULL, [runner], Dispatcher(Pace(1)), Others)
        leases, known = PullQueue(now), asyncio.Event()
        starts = asyncio.create_task(member.start(known.wait, leases))  # type: ignore[arg-type]
        call = asyncio.create_task(receive(leases, 60))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert runner.member is False
        known.set()
        await starts
        member.close()
        call.cancel()
        return bool(runner.member)

    assert asyncio.run(begin())


def test_an_instance_that_no_service_has_called_does_not_join() -> None:
    async def begin() -> bool | None:
        runner: Any = Runner()
        member = GroupMembership(PULL, [runner], Dispatcher(Pace(1)), Others)
        await member.start(lambda: asyncio.sleep(0), PullQueue(now))
        member.close()
        return runner.member

    assert asyncio.run(begin()) is False
