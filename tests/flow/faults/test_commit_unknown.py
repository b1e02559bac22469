"""Transactions whose end the sidecar cannot know: it asks Kafka, and neither loses nor repeats what was in them.

The same process goes on, with what it has in memory: nothing is delivered a second time.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.support.kafka.proxy_rules import Api, Fate, Moment, Request, Rule
from tests.support.rings import inner
from tests.support.sidecar.scene import SOON, Scene

LANES = ("main", "retry")
NTH = 8
ALWAYS = 1_000
STUCK_WITHIN = 45.0
"""Seconds: the sidecar gives a call 20 s, then makes a new producer and asks Kafka."""


def fence(scene: Scene, lane: str) -> None:
    """Take the lane's transactional id away: what its producer has open is aborted, what it asks for is refused."""
    usurper = Producer(
        {"bootstrap.servers": scene.group.bootstrap, "transactional.id": scene.transactional_id(lane), "log_level": 2}
    )
    usurper.init_transactions(SOON)


@pytest.mark.parametrize(
    "moment", inner(Moment.ANSWERED, [Moment.ARRIVED, Moment.ANSWERED]), ids=["did not happen", "happened"]
)
def test_a_commit_whose_answer_never_comes_is_settled_by_asking_kafka(scene: Scene, moment: Moment) -> None:
    """The connection is cut at EndTxn, and the retry of it refused for good: nobody tells whether it was committed."""
    scene.begin()
    for number, lane in enumerate(LANES, 1):

        def usurp(_request: Request, lane: str = lane) -> None:
            fence(scene, lane)

        rule = scene.proxy.add(Rule(Api.END_TXN, scene.client(lane), moment, usurp, nth=NTH, fate=Fate.CUT))
        assert rule.fired.wait(SOON)
        scene.asked(number)
        scene.delivers(100)
    report = scene.verify()
    assert report.duplicates == 0


@pytest.mark.long
def test_a_producer_that_gets_no_answer_any_more_is_replaced(scene: Scene) -> None:
    """Each connection falls silent in mid-transaction: in one lane before the commit, in the other after it."""
    before = Rule(Api.TXN_OFFSET_COMMIT, scene.client("main"), Moment.ANSWERED, times=ALWAYS, fate=Fate.SILENCE)
    after = Rule(Api.END_TXN, scene.client("retry"), Moment.ANSWERED, nth=NTH, times=ALWAYS, fate=Fate.SILENCE)
    scene.proxy.add(after)
    scene.begin()
    assert after.fired.wait(SOON)
    scene.proxy.add(before)
    scene.load.end()
    scene.asks(STUCK_WITHIN)
    scene.proxy.clear()
    report = scene.verify()
    assert report.duplicates == 0
