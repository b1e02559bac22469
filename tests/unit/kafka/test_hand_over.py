"""What a hand-over of heavy messages takes along, and what of the rest still counts at the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError

from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.client_assignment import Key, OwnedPartition
from reconsume.sidecar.kafka.consumer.hand_over import HEAVY, HandOver
from reconsume.sidecar.kafka.scan import TOGETHER

ORDERS, BILLS = Partition("orders", 0), Partition("bills", 0)


class Client:
    """A client with these messages, each as heavy as a whole hand-over."""

    def __init__(self, *queued: tuple[Partition, int]) -> None:
        self.queued = [heavy(*one) for one in queued]

    def consume(self, most: int, wait: float) -> list[Any]:
        taken, self.queued = self.queued[:most], self.queued[most:]
        return taken


def heavy(source: Partition, offset: int) -> Any:
    return SimpleNamespace(
        topic=lambda: source.topic,
        partition=lambda: source.number,
        offset=lambda: offset,
        error=lambda: None,
        headers=lambda: None,
        key=lambda: None,
        value=lambda: bytes(HEAVY),
        timestamp=lambda: (1, 5),
    )


class Rig:
    """The hand-overs of a consumer that owns two partitions."""

    def __init__(self, *queued: tuple[Partition, int]) -> None:
        self.owned_partitions: dict[Key, OwnedPartition] = {
            source: OwnedPartition(source, WantedFetch(epoch)) for epoch, source in enumerate((ORDERS, BILLS), 1)
        }
        self.client = Client(*queued)
        self.hand_overs = HandOver(self.owned_partitions, None)

    def take(self) -> list[int]:
        """Return the offsets of the next hand-over."""
        found = self.hand_overs.next_hand_over(cast(Consumer, self.client), 0.1, ())
        return [record.offset for run in found.runs for record in run.records]


def test_heavy_messages_go_one_by_one_in_their_order_and_none_is_lost() -> None:
    rig = Rig(*((ORDERS, offset) for offset in range(2 * TOGETHER)))
    assert [rig.take() for _ in range(2 * TOGETHER)] == [[offset] for offset in range(2 * TOGETHER)]
    assert rig.take() == []


def test_no_more_is_taken_from_the_client_while_something_is_left() -> None:
    rig = Rig(*((ORDERS, offset) for offset in range(20)))
    rig.client.queued[0].value = lambda: b""
    assert rig.take() == [0, 1]
    there = len(rig.client.queued)
    assert there < 19 - 1, "the rest of a call is left"
    assert rig.take() == [2]
    assert len(rig.client.queued) == there


@pytest.mark.parametrize("change", ["sought", "assigned anew", "revoked"])
def test_of_what_is_left_nothing_counts_that_was_fetched_before_a_change(change: str) -> None:
    """Given messages of two partitions that are left, when one of these changes, then only the other's count."""
    rig = Rig((ORDERS, 7), (ORDERS, 8), (BILLS, 3), (ORDERS, 9))
    rig.client.queued[0].value = lambda: b""
    assert rig.take() == [7, 8]
    match change:
        case "sought":
            rig.owned_partitions[ORDERS].wanted = WantedFetch(1, True, 1, 7)
        case "assigned anew":
            rig.owned_partitions[ORDERS] = OwnedPartition(ORDERS, WantedFetch(9))
        case _:
            del rig.owned_partitions[ORDERS]
    assert [rig.take(), rig.take()] == [[3], []]


def test_a_message_that_comes_while_others_are_left_waits_behind_them() -> None:
    rig = Rig((ORDERS, 0), (ORDERS, 1), (ORDERS, 2))
    rig.client.queued[0].value = lambda: b""
    assert rig.take() == [0, 1]
    assert rig.hand_overs.put_off([heavy(ORDERS, 3)])
    assert [rig.take(), rig.take()] == [[2], [3]]
    assert not rig.hand_overs.put_off([heavy(ORDERS, 4)]), "nothing is left"


def test_a_partition_that_is_taken_away_meanwhile_is_not_handed_over() -> None:
    """Given a partition, when it is revoked while more messages are asked for, then what was collected is dropped."""
    rig = Rig((ORDERS, 0), (BILLS, 5))
    for message in rig.client.queued:
        message.value = lambda: b""
    asked = rig.client.consume

    def consume(most: int, wait: float) -> list[Any]:
        if most > 1:
            rig.owned_partitions.pop(ORDERS, None)
        return asked(most, wait)

    rig.client.consume = consume  # type: ignore[method-assign]
    assert rig.take() == [5]


GAPS = {
    "between two records": ((ORDERS, 0), (ORDERS, 2), (BILLS, 0)),
    "before the first record": ((ORDERS, 1), (BILLS, 0)),
    "of many offsets": ((ORDERS, 0), (ORDERS, 900), (ORDERS, 901), (BILLS, 0)),
    "before the end of the log": ((ORDERS, 0), (ORDERS, -5), (BILLS, 0)),
}


@pytest.mark.parametrize("queued", GAPS.values(), ids=GAPS)
def test_what_comes_behind_a_gap_is_not_taken_where_fetches_are_small(
    queued: tuple[tuple[Partition, int], ...],
) -> None:
    """An offset of -n stands for the end of the log at n."""
    rig = Rig(*queued)
    for message in rig.client.queued:
        message.value = lambda: b""
        if (at := message.offset()) < 0:
            message.offset = lambda at=at: -at
            message.error = lambda: SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)
    rig.hand_overs.gaps = False
    found = rig.hand_overs.next_hand_over(cast(Consumer, rig.client), 0.1, ())
    taken = {run.partition: [record.offset for record in run.records] for run in found.runs}
    assert found.gap == ORDERS
    assert taken == {ORDERS: [0], BILLS: [0]} if queued[0] == (ORDERS, 0) else {BILLS: [0]}


def test_where_fetches_are_large_a_gap_is_nothing() -> None:
    rig = Rig((ORDERS, 3), (ORDERS, 9))
    for message in rig.client.queued:
        message.value = lambda: b""
    assert rig.take() == [3, 9]
