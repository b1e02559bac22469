"""SIGKILL of a relay in the middle of a move, at each point of a transaction: each due record arrives exactly once."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.kafka.topic_io import Row, dump
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.relay import RELAY, waiting
from tests.support.sidecar.scene import Proxied

pytestmark = pytest.mark.usefixtures("cleared")

SOON = 40.0
STEP = 0.02
EACH = 6
NTH = 5
"""The transaction in which it is killed: by then records are being moved and others are waiting."""
CUTS = {
    "nothing sent": (Api.ADD_PARTITIONS_TO_TXN, Moment.ARRIVED, Fate.DROP),
    "copies produced": (Api.PRODUCE, Moment.DONE, Fate.PASS),
    "offsets in the transaction": (Api.TXN_OFFSET_COMMIT, Moment.ANSWERED, Fate.DROP),
    "commit not sent": (Api.END_TXN, Moment.ARRIVED, Fate.DROP),
    "commit sent": (Api.END_TXN, Moment.FORWARDED, Fate.PASS),
    "commit not acknowledged": (Api.END_TXN, Moment.ANSWERED, Fate.DROP),
}


class Feed(threading.Thread):
    """A service that writes failures to the level topic of 1 s, 300 a second, until ended."""

    def __init__(self, group: GroupTopics) -> None:
        super().__init__(name="feed", daemon=True)
        self.sent = 0
        self._group = group
        self._ended = threading.Event()
        self._producer = Producer({"bootstrap.servers": group.bootstrap, "enable.idempotence": True, "log_level": 2})

    def run(self) -> None:
        """Write portions until ended."""
        level = self._group.names.level(1_000, self._group.main)
        while not self._ended.wait(STEP):
            for _ in range(EACH):
                out = waiting(self._group, self.sent, 1_000)
                self._producer.produce(level, out.value, out.key, headers=list(out.headers))
                self.sent += 1
            self._producer.poll(0)

    def end(self) -> None:
        """Write nothing more; all that was written is in Kafka then."""
        self._ended.set()
        self.join()
        assert self._producer.flush(SOON) == 0

    def __enter__(self) -> Feed:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


def forwarded(group: GroupTopics) -> Counter[bytes | None]:
    return Counter(ident_of(row) for row in dump(group.bootstrap, group.names.ready))


def ident_of(row: Row) -> bytes | None:
    return dict(row.headers).get("ORIGIN_MESSAGE_ID")


@pytest.mark.long  # test_sidecar_killed.py cuts the same committer at one of them in every run
@pytest.mark.parametrize("cut", CUTS)
def test_a_relay_killed_in_a_move_forwards_each_record_exactly_once(proxied: Proxied, tmp_path: Path, cut: str) -> None:
    group = create_group(fresh_group(proxied.kafka.bootstrap))
    kafka = {"session.timeout.ms": 2_000, "bootstrap.servers": proxied.proxy.address}
    relay = SidecarProcess(group, "", tmp_path, overrides={**RELAY, "kafka": kafka})
    api, moment, fate = CUTS[cut]

    def kill(_request: object) -> None:
        os.kill(relay.pid, signal.SIGKILL)

    client = f"-{group.names.retry_group}-{relay.pod}"
    rule = proxied.proxy.add(Rule(api, client, moment, kill, nth=NTH, fate=fate))
    with relay, Feed(group) as feed:
        assert rule.fired.wait(SOON)
        relay.wait(SOON)
        before = sum(forwarded(group).values())
        relay.start()
        until(lambda: sum(forwarded(group).values()) > before, SOON, "its successor goes on")
        feed.end()
        wanted = {f"{group.main}:0:{number}".encode() for number in range(feed.sent)}
        until(lambda: forwarded(group).keys() >= wanted, SOON, "nothing is lost")
        assert relay.stop().code == 0
    assert forwarded(group) == Counter(wanted)
    assert dump(group.bootstrap, group.dlq) == []
