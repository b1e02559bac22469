"""In pull mode a record takes its token when it is received: what nobody receives gathers no burst."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.rates import DeliveryLimits, TopicTerms
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.pull.queue import PullQueue
from reconsume.topics.rates import Rate
from tests.sim.samples import record

SLOW, FAST = Partition("slow", 0), Partition("fast", 0)


class Puller:
    """A lane that offers what it has to a queue, on a clock that the test moves."""

    has_open = True

    def __init__(self, limits: DeliveryLimits) -> None:
        self.at = 0
        self.gate = Dispatcher(Pace(1_000), limits=limits)
        self.queue = PullQueue(lambda: Now(self.at, self.at), limits)
        self.ready = ReadyFlows()
        self.gate.join(self)
        self.ready.extend([replace(record(offset), source=SLOW) for offset in range(100)])
        self.ready.extend([replace(record(offset), source=FAST) for offset in range(20)])

    def send(self, record: Record, now: Now) -> bool:
        self.queue(record, self._reply)
        return True

    def answered_in_bulk(self, now: Now) -> None:
        self.gate.dispatch(now)

    def receive_at(self, ms: int) -> dict[str, int]:
        """How many of each topic a receive gives at a time, after the dispatcher had its turn."""
        self.at = ms
        self.gate.dispatch(Now(ms, ms))
        self.gate.check()
        topics = [one.record.source.topic for one in self.queue.receive(1_024, 1_000_000)]
        self.gate.check()
        return {topic: topics.count(topic) for topic in sorted(set(topics))}

    def _reply(self, record: Record, outcome: Outcome, now: Now) -> None:
        self.gate.answered(record, outcome, now)


def test_a_topics_rate_and_the_instances_hold_at_each_receive() -> None:
    async def work() -> None:
        puller = Puller(DeliveryLimits(None, None, {"slow": TopicTerms(rate=Rate(10, 1_000))}, at_receive=True))
        assert puller.receive_at(0) == {"fast": 20}
        for ms in (2_000, 10_000):
            puller.gate.dispatch(Now(ms, ms))
        assert puller.receive_at(60_000) == {"slow": 10}, "a minute of offers is worth a second"
        assert puller.receive_at(60_000) == {}
        assert puller.receive_at(60_500) == {"slow": 5}
        all_records = Puller(DeliveryLimits(Rate(10, 1_000), at_receive=True))
        assert sum(all_records.receive_at(60_000).values()) == 10
        assert sum(all_records.receive_at(60_300).values()) == 3

    asyncio.run(work())


def test_what_is_withdrawn_unreceived_gives_its_token_back() -> None:
    async def work() -> None:
        limits = DeliveryLimits(None, None, {"slow": TopicTerms(rate=Rate(10, 1_000))}, at_receive=True)
        puller = Puller(limits)
        puller.gate.dispatch(Now(5_000, 5_000))
        puller.queue.recall([SLOW], lost=False)
        await asyncio.sleep(0)
        puller.gate.check()
        assert puller.receive_at(5_000) == {"fast": 20, "slow": 10}
        puller.gate.dispatch(Now(9_000, 9_000))
        puller.queue.close()
        await asyncio.sleep(0)
        puller.gate.check()

    asyncio.run(work())
