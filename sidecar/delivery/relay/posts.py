"""Decide what happens to a record that a service read itself and could not handle (relay).

The decisions are the same as for a delivery that failed. Only the reporter of the failure differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.decide import Decision, dead_letter_unreadable, decide
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.reason_classes import ReasonClasses
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.delivery.relay.post_writer import PostWriter
from reconsume.sidecar.kafka.messages import main_reading_of, reading_of
from reconsume.sidecar.observability.failure_lines import log_dead_letters
from reconsume.topics.names import Kind
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import DeadLetter, Hop, Retry, after_wait


class NotOursError(Exception):
    """The record's topic is neither a main topic of this group nor its ready topic."""


class PostResult(NamedTuple):
    """The result of a post.

    It holds the topic of the copy, its retry count, and its due time (epoch ms; None in the DLQ).
    """

    id: str
    topic: str
    times: int
    due: int | None
    reason: str


class FailurePosts:
    """Decide about posts and have them written. Called on the event loop.

    `understand`: the systems whose retry headers count on main topics. `drains`: the main topic of each drained topic.
    What was written is counted in `tally`.
    """

    def __init__(
        self,
        policy: Callable[[], Policy],
        understand: tuple[str, ...],
        drains: Mapping[str, str],
        poster: PostWriter,
        counters: LaneCounters,
        now: Callable[[], Now],
    ) -> None:
        self._policy = policy
        self._counters, self._reasons = counters, ReasonClasses()
        self._readings = {Kind.MAIN: main_reading_of(understand, drains), Kind.READY: reading_of(policy())}
        self._poster = poster
        self._now = now

    async def post(self, record: Record, failure: Failed) -> PostResult:
        """Write what follows from the failure of a record, whose retry headers are read here.

        Raises NotOursError, or what `PostWriter.post` raises.
        """
        entry = self._entry(record, failure)
        await self._poster.post(entry)
        decision, copy = entry.decision, entry.writes[0]
        self._counters.count(decision)
        log_dead_letters([entry])
        assert isinstance(decision, Retry | DeadLetter | Hop)
        retry_state = decision.retry_state
        due = None if isinstance(decision, DeadLetter) else retry_state.due_at
        return PostResult(retry_state.id, copy.topic, retry_state.times, due, retry_state.reason)

    def _entry(self, record: Record, failure: Failed) -> SettledRecord:
        policy, wall = self._policy(), self._now().wall_ms
        role = policy.names.role(record.source.topic, policy.topics)
        if role is None or role.kind not in self._readings:
            raise NotOursError
        reading = self._readings[role.kind]
        if reading is not None and record.headers is not None:
            retry_state, fault = reading(record.headers, record.source, record.offset, record.timestamp)
            record = replace(record, retry_state=retry_state, fault=fault)
        decision: Decision
        if record.fault:
            self._counters.bad_headers += 1
            decision = dead_letter_unreadable(record, policy, wall)
        elif record.retry_state is not None and record.retry_state.topic not in policy.topics:
            # Other instances consume its topic, so this service cannot judge it.
            decision = after_wait(record, policy, wall)
        else:
            self._counters.odd_requests += not policy.understands(failure.delay, failure.level)
            failure = self._reasons.bounded(failure, wall)
            self._counters.failures.add(record, failure.reason)
            decision = decide(record, failure, policy, wall)
        # Outside ordered mode a failure has no other result, and neither has an unknown topic.
        assert isinstance(decision, Retry | DeadLetter | Hop)
        return SettledRecord(record, decision, writes_of(record, decision, policy, wall))
