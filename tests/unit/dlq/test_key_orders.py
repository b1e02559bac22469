"""Where redriven letters stand among the records of their keys, and what of them is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq import redriver
from reconsume.sidecar.dlq.dead_letters import DeadLetters
from reconsume.sidecar.dlq.dismissals import NONE
from reconsume.sidecar.dlq.letters import Letter, redrive
from reconsume.sidecar.dlq.redriver import KeyOrders
from reconsume.sidecar.errors import ContractError
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.retry_headers import RETRY_TOPIC, RetryState, parse_retry_headers
from reconsume.topics.retry_order import Order
from tests.sim.samples import WALL, life, policy, record

QUEUED = policy(ladder=(10_000,), queued=True)
QUEUE = "billing-ORDERED-orders"


def letter(number: int = 0, offset: int = 7, **more: object) -> Letter:
    state = replace(life(times=3, **more), id=f"orders:{number}:{offset}")
    return Letter(record(1, source=Partition("billing-DLQ", 0), life=None), state)


class There:
    """A cluster with two partitions of each topic but those that are missing, and the ends of its logs."""

    def __init__(self, missing: Collection[str] = (), ladder: bool = False, policy: Policy = QUEUED) -> None:
        self.has_ladder = ladder
        self.policy, self.names = policy, policy.names
        self.ends = {Partition("orders", 0): 40, Partition("orders", 1): 50}
        self.ends |= {Partition(QUEUE, number): 9 for number in (0, 1)}
        self.cluster = SimpleNamespace(kafka={}, find_topics=lambda names: self._find(names, missing))

    @staticmethod
    def _find(names: Iterable[str], missing: Collection[str]) -> dict[str, Any]:
        def topic(name: str) -> Any:
            return SimpleNamespace(all_partitions=[Partition(name, number) for number in (0, 1)])

        return {name: topic(name) for name in names if name not in missing}

    is_queued = DeadLetters.is_queued

    def settlements(self) -> object:
        return NONE._replace(has_ladder=self.has_ladder)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> There:
    here = There()

    class Ends:
        """The only call that is made of a client."""

        def __init__(self, config: dict[str, object]) -> None:
            assert config["isolation.level"] == "read_uncommitted"

        def get_watermark_offsets(self, asked: Any, timeout: float, *, cached: bool) -> tuple[int, int]:
            assert not cached
            return 0, here.ends[Partition(asked.topic, asked.partition)]

    monkeypatch.setattr(redriver, "Consumer", Ends)
    return here


def test_letters_go_behind_the_end_of_their_partition_one_after_the_other(there: There) -> None:
    orders = KeyOrders(there)  # type: ignore[arg-type]
    batch = [letter(0, 7), letter(1, 8), letter(0, 3)]
    assert orders.of(batch) == [Order(40, 10), Order(50, 10), Order(40, 11)]
    there.ends[Partition(QUEUE, 0)] = 12  # two copies, and the end of their transaction
    (later,) = orders.of([letter(0, 1)])
    assert later is not None
    assert later.rank > Order(40, 11).rank, "a later redrive is behind an earlier one, though nothing came meanwhile"
    assert Order(39).rank < Order(40, 10).rank < later.rank < Order(40).rank


def test_its_copy_is_in_the_queue_with_its_place_and_a_sidecar_believes_it() -> None:
    dead = letter(1, 8, expires_at=5)
    copy, told = redrive(dead, QUEUED, WALL + 9, Order(50, 10)).writes
    assert (copy.topic, copy.spread, copy.exact) == (QUEUE, 1, True)
    assert dict(copy.headers)[RETRY_TOPIC] == QUEUE.encode()
    state = parse_retry_headers(copy.headers, QUEUED.topics, QUEUED.latest_due(WALL))
    assert isinstance(state, RetryState)
    assert (state.order, state.redrives, state.times, state.expires_at) == (Order(50, 10), 1, 0, 0)
    assert QUEUED.queue_fault(Partition(QUEUE, 1), state) == ""
    event = decode_event(told.value)
    assert isinstance(event, Event)
    assert event.state is State.REDRIVEN


def test_what_a_forged_letter_says_of_its_place_means_nothing() -> None:
    forged = letter(0, 7, order=Order(1, 1), behind=True, parked=True, settled="n1")
    retry = redrive(forged, QUEUED, WALL).decision.retry_state  # type: ignore[union-attr]
    assert retry is not None
    assert (retry.order, retry.behind, retry.parked, retry.settled) == (None, False, False, "")


def test_a_letter_of_a_partition_that_is_not_there_has_no_place(there: There) -> None:
    orders = KeyOrders(there)  # type: ignore[arg-type]
    assert orders.fault_of(letter(9, 1)) == f"there is no orders[9] and no {QUEUE}[9]"
    assert orders.fault_of(letter(1, 1)) == ""


def test_without_a_ladder_letters_go_to_the_ready_topic() -> None:
    rules = policy()
    orders = KeyOrders(There(policy=rules))  # type: ignore[arg-type]
    assert (orders.topics, orders.any, orders.of([letter()])) == ((), None, [None])
    assert orders.target == "billing-RETRY"


@pytest.mark.parametrize(("drained", "queues"), [(True, (QUEUE,)), (False, ())])
def test_the_ladder_of_the_groups_policy_counts_as_one_of_the_configuration(
    drained: bool, queues: tuple[str, ...]
) -> None:
    rules = replace(policy(), drained=drained)
    assert KeyOrders(There(ladder=True, policy=rules)).topics == queues  # type: ignore[arg-type]


def test_a_missing_queue_topic_is_named() -> None:
    with pytest.raises(ContractError, match=QUEUE):
        KeyOrders(There(missing=[QUEUE]))  # type: ignore[arg-type]
