"""When a client counts as cut off: look by look, by what it is answered and by what another one is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from reconsume.sidecar.kafka import cut_off
from reconsume.sidecar.kafka.cut_off import CUT_OFF_AFTER, CutOffWatch

CONFIG = {"bootstrap.servers": "kafka:9092", "group.id": "billing", "client.id": "pod-1"}


class Client:
    """Knows so many brokers; None: it is answered by none."""

    def __init__(self, brokers: int | None) -> None:
        self.brokers = brokers
        self.closed = False

    def list_topics(self, _topic: str, timeout: float) -> Any:
        if self.brokers is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(brokers=dict.fromkeys(range(self.brokers)))

    def close(self) -> None:
        self.closed = True


class Cluster:
    """What a thread's two clients hear, and what another one does; each look is ten seconds after the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ours, self.another = [Client(3), Client(3)], Client(3)
        self.made: list[dict[str, object]] = []
        self.watch = CutOffWatch()
        monkeypatch.setattr(cut_off, "make_client", self.make)

    def make(self, _kind: object, config: dict[str, object]) -> Client:
        self.made.append(config)
        return self.another

    def look(self) -> bool:
        return self.watch.look(cast("list[Consumer]", self.ours), CONFIG)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.mark.parametrize("silent", [0, 1])
@pytest.mark.parametrize("brokers", [None, 0])
def test_a_client_that_hears_nothing_twice_while_another_one_hears_is_cut_off(
    cluster: Cluster, silent: int, brokers: int | None
) -> None:
    cluster.ours[silent].brokers = brokers
    assert [cluster.look() for _ in range(2 * CUT_OFF_AFTER)] == [False, True] * 2
    assert cluster.another.closed
    assert cluster.made[0] == {**CONFIG, "log_level": 0}


def test_nobody_else_is_asked_while_all_are_answered(cluster: Cluster) -> None:
    assert [cluster.look() for _ in range(4)] == [False] * 4
    assert cluster.made == []


@pytest.mark.parametrize("brokers", [None, 0])
def test_an_outage_cuts_nobody_off(cluster: Cluster, brokers: int | None) -> None:
    """Another client may be connected a moment earlier when it ends."""
    for client in (*cluster.ours, cluster.another):
        client.brokers = brokers
    assert [cluster.look() for _ in range(4)] == [False] * 4
    cluster.another.brokers = 3
    assert not cluster.look()
    cluster.ours[0].brokers = cluster.ours[1].brokers = 3
    assert not cluster.look()
    cluster.ours[0].brokers = None
    assert not cluster.look(), "it begins anew"


def test_an_answer_to_other_requests_is_one(cluster: Cluster) -> None:
    cluster.ours[0].brokers = None
    assert not cluster.look()
    cluster.watch.heard()
    assert not cluster.look()
    assert cluster.look()


def test_a_client_that_cannot_be_made_says_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: object, _config: object) -> None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    monkeypatch.setattr(cut_off, "make_client", refuse)
    cluster.ours[0].brokers = None
    assert [cluster.look() for _ in range(4)] == [False] * 4
