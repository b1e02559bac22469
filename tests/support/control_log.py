"""Records of a control log, and what it says of them, without Kafka."""

from __future__ import annotations

from collections.abc import Iterator

from reconsume.sidecar.group_policy.state import ControlRecord, ControlState
from reconsume.topics.policy_record import KEY, BadRecord, Heard


def said(*heard: Heard, at: int = 0, begin: int = 0, size: int = 100) -> Iterator[ControlRecord]:
    """Return records with this content, in their order. One that cannot be read has the key of a policy."""
    for offset, one in enumerate(heard, begin):
        yield ControlRecord(KEY if isinstance(one, BadRecord) else b"", one, offset, at, size)


def state_of(*heard: Heard, at: int = 0, now_ms: int = 0) -> ControlState:
    """Return what a control log with these records says. `at`: when they were written, `now_ms`: when they are read."""
    state = ControlState()
    for record in said(*heard, at=at):
        state.apply(record, now_ms)
    return state
