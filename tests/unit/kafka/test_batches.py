"""When a consumer's thread waits for more messages: only where more are expected soon."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import Consumer

from reconsume.sidecar.kafka.consumer.hand_over import (
    BATCH,
    BUSY,
    GATHER,
    HEAVY,
    MOST_TOGETHER,
    STEADY,
    WINDOW,
    Batches,
)
from reconsume.sidecar.kafka.scan import TOGETHER


class Client:
    """A client with these messages for its next calls."""

    def __init__(self) -> None:
        self.queued: list[list[str]] = []

    def consume(self, most: int, wait: float) -> list[str]:
        return self.queued.pop(0) if self.queued else []


class Rig:
    """Batches on a clock of the test; `naps` are the times that they waited for other messages."""

    def __init__(self) -> None:
        self.at, self.naps = 100.0, list[float]()
        self._client, self._batches = Client(), Batches(lambda: self.at, self.naps.append)
        self.take(["a"])  # the first window begins before the program, so it is of no load

    def take(self, *queued: list[str]) -> list[str]:
        """Return the next batch, if the calls of the client return these messages."""
        self._client.queued = list(queued)
        taken = cast(list[str], list(self._batches.next_batch(cast(Consumer, self._client), 0.1)))
        if taken:
            self._batches.ended(len(taken), 0)
        return taken

    def window(self, rate: float) -> None:
        """Let a window pass in which so many messages a second come."""
        self.at += 10 * WINDOW  # a window ends with a message, and may be longer
        self.take(["a"] * int(rate * 10 * WINDOW))
        self.naps.clear()


@pytest.mark.parametrize("rate", [STEADY / 2, BUSY * 2])
def test_a_message_waits_for_no_other_at_a_low_rate_or_at_full_speed(rate: float) -> None:
    """Given a load at which few or many come, when a message comes, then what is there is handed over at once."""
    rig = Rig()
    rig.window(rate)
    assert rig.take(["a"], ["b"]) == ["a", "b"]
    assert rig.naps == []


def test_at_a_steady_load_a_message_waits_for_others() -> None:
    """Given a steady load, when a message comes, then those of the next moment go along."""
    rig = Rig()
    rig.window(STEADY * 2)
    assert rig.take(["a"], ["b", "c"]) == ["a", "b", "c"]
    assert rig.naps == [GATHER]


def test_without_a_message_nothing_is_waited_for() -> None:
    """Given a steady load that has ended, when no message comes, then the turn is over."""
    rig = Rig()
    rig.window(STEADY * 2)
    assert rig.take() == []
    assert rig.naps == []


def test_the_first_message_after_a_rest_ends_the_waiting() -> None:
    """Given a steady load that has ended, when one message comes much later, then the next one waits for no other."""
    rig = Rig()
    rig.window(STEADY * 2)
    rig.window(10)
    assert rig.take(["a"]) == ["a"]
    assert rig.naps == []


def test_a_batch_is_limited() -> None:
    """Given the first message, when the rest is asked for, then the batch has BATCH messages at most."""
    asked: list[int] = []

    class Asked(Client):
        def consume(self, most: int, wait: float) -> list[str]:
            asked.append(most)
            return ["a"] * most

    assert len(list(Batches().next_batch(cast(Consumer, Asked()), 0.1))) == sum(asked) == BATCH
    assert max(asked) == TOGETHER, "the client parses the headers of all messages of a call"


def test_after_heavy_messages_they_are_taken_one_by_one_and_more_together_the_longer_they_are_light() -> None:
    asked: list[int] = []

    class Asked(Client):
        def consume(self, most: int, wait: float) -> list[str]:
            asked.append(most)
            return super().consume(most, wait)

    client, batches = Asked(), Batches()

    def take(weight: int) -> list[int]:
        asked.clear()
        client.queued = [["a"], ["b"]]
        taken = list(batches.next_batch(cast(Consumer, client), 0.1))
        batches.ended(len(taken), weight)
        return asked.copy()

    assert take(2 * HEAVY) == [1, TOGETHER]
    assert take(2) == [1, 1, 1]
    assert [take(2)[1] for _ in range(6)] == [2, 4, 8, 16, MOST_TOGETHER, MOST_TOGETHER]
