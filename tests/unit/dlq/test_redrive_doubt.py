"""When a redrive whose transaction has an unknown end believes that it did not happen."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq import redriver
from reconsume.sidecar.dlq.producer import SupersededError
from reconsume.sidecar.dlq.redrive_history import RedriveHistory
from reconsume.sidecar.dlq.redriver import Redriver
from reconsume.sidecar.kafka.committer.committer import SURE_AFTER_S

DLQ = Partition("billing-DLQ", 0)
BEFORE = RedriveHistory("id", 0, done=frozenset({1}))
AFTER, ANOTHER = replace(BEFORE, done=frozenset({1, 2})), replace(BEFORE, done=frozenset({1, 3}))


class Told:
    """A redrive's topics of which Kafka says so, the last one again and again; and a clock that only sleep moves."""

    def __init__(self, *says: RedriveHistory) -> None:
        self.says, self.seconds = list(says), 0.0

    def histories(self, *_: object, **__: object) -> dict[Partition, RedriveHistory]:
        return {DLQ: self.says.pop(0) if len(self.says) > 1 else self.says[0]}

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def happened(monkeypatch: pytest.MonkeyPatch, sure_after_s: float, *says: RedriveHistory) -> bool:
    """Return what a redrive makes of these answers."""
    told, one = Told(*says), Redriver.__new__(Redriver)
    monkeypatch.setattr(redriver, "time", told)
    unused: Any = None
    one._letters, one._reader, one._layout, one._histories = told, unused, {DLQ: unused}, {DLQ: BEFORE}  # type: ignore[assignment]
    one._after = {DLQ: AFTER}
    return one._has_happened([], sure_after_s)


def test_that_it_did_not_happen_is_believed_when_kafka_goes_on_saying_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that has just taken over may tell less than the one before it has confirmed (Kafka 4)."""
    assert happened(monkeypatch, SURE_AFTER_S, AFTER, BEFORE)
    assert happened(monkeypatch, SURE_AFTER_S, BEFORE, BEFORE, AFTER)
    assert not happened(monkeypatch, SURE_AFTER_S, BEFORE)
    assert not happened(monkeypatch, 0.0, BEFORE, AFTER)  # it was aborted for certain
    with pytest.raises(SupersededError):
        happened(monkeypatch, SURE_AFTER_S, BEFORE, ANOTHER)
