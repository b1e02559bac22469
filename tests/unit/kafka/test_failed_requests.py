"""What a request that fails leaves of those who made it: nothing, whatever was being handled meanwhile.

No broker is needed: nobody listens at the address, and each request fails in the client itself, as in an outage.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.kafka.consumer import committed_offsets
from sidecar.kafka.consumer.committed_offsets import committed
from topics.partition import Partition

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
WITHIN_S = 0.05
QUEUE = Partition("queue", 0)


class Held:
    """What the caller of a request has at hand, as a client with its threads."""


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    made = Consumer(NOBODY)
    yield made
    made.close()


def left_of(request: Callable[[], object]) -> Held | None:
    """Make a request that fails; what it has kept of the caller."""

    def call() -> weakref.ref[Held]:
        held = Held()
        request()
        return weakref.ref(held)

    return call()()


def test_the_client_keeps_the_error_that_is_handled_while_a_request_fails(consumer: Consumer) -> None:
    """The fault of the library that the rule in kafka/errors.py is about. Once it is gone, so may the rule be."""

    def ask() -> None:
        consumer.committed([TopicPartition(*QUEUE)], timeout=WITHIN_S)

    def ask_again_in_the_handler() -> None:
        try:
            ask()
        except KafkaException:
            with pytest.raises(KafkaException):
                ask()

    def ask_again_after_it() -> None:
        for _ in range(2):
            with pytest.raises(KafkaException):
                ask()

    assert left_of(ask_again_in_the_handler) is not None
    assert left_of(ask_again_after_it) is None


@pytest.mark.parametrize("patient", [True, False])
def test_offsets_that_do_not_come_leave_nothing_of_the_call(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """A call of `POST /v1/settle` left its clients, one for each time that no coordinator answered."""
    for name in ("COMMITTED_WITHIN", "ONE_WITHIN"):
        monkeypatch.setattr(committed_offsets, name, WITHIN_S)
    assert left_of(lambda: committed(consumer, [QUEUE, Partition("queue", 1)], patient=patient)) is None
