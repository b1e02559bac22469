"""Where a redrive sends a dead letter, and what it writes for it (contract 4.2). Pure.

The ready topic takes it, or in an ordered group with the ladder the queue of its main topic, behind its key (5.5).
"""

from __future__ import annotations

from collections.abc import Sequence

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.letters import Letter
from reconsume.topics.names import Names
from reconsume.topics.retry_order import Order
from reconsume.topics.transition_records import redriven_writes
from reconsume.topics.transitions import redriven


def redrive(letter: Letter, policy: Policy, now: int, order: Order | None = None) -> SettledRecord:
    """Return a redrive's writes: the copy for the ready topic, and its event. `now` is epoch ms.

    With an `order` the copy is for the queue of its main topic. The letter must not be UNFIT.
    """
    assert letter.retry_state is not None
    retry = redriven(letter.retry_state, now, order)
    return SettledRecord(letter.record, retry, redriven_writes(letter.record, retry.retry_state, policy, now))


def target_of(names: Names, queues: Sequence[str]) -> str:
    """Return where letters are redriven to, for people. `queues`: the queue topics, in a group that has them."""
    return ", ".join(queues) or names.ready


def planned_target(policy: Policy) -> str:
    """Return where a redrive would send letters, if all instances read its queues."""
    return target_of(policy.names, tuple(policy.names.queues_of(policy.topics)) if policy.queued else ())
