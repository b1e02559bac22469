"""What became of each record of a story, in a form that does not depend on when: for two worlds of one plan.

Compared are, for each record: its attempts and their outcomes, the copies that its failures caused (retry, wait,
reason, level, headers), the events, and its end. Times are compared by what they are the time of: a due time as a wait
after the failure, a failure as a moment at which the lane was told an outcome.

Not compared is what no promise says, and what moments decide:

- when anything happens, and in which order what belongs to different keys does;
- copies without a decision of the service: hops, and what waits behind another record of its key (how many there are
  depends on when a record is read);
- how often an attempt is delivered again after a crash, a rebalance or a refused copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from reconsume.sidecar.core.outcome import NotSent, Throttled
from reconsume.topics.events import Event, State
from reconsume.topics.retry_headers import RetryState
from tests.sim.checker import Found, Written
from tests.sim.ladder_checker import taken
from tests.sim.plan import Plan
from tests.sim.service_model import Delivery
from tests.sim.world import World

CRASHES = frozenset({"crash", "freeze", "lose", "join", "rollout", "revoke", "grow", "outside", "renewqueue"})
"""After these others than those that kill may be taken for records that kill, if the moment is a bad one."""
REFUSALS = frozenset({"refuse", "oversize", "unled", "underreplicated"})
LOSSES = frozenset({"truncate", "recreate", "unreach", "cut", "cutqueue", "forget", "settle"})
REPEATS = CRASHES | REFUSALS | LOSSES
"""After these an attempt may be delivered again, or retries that only memory counts begin again."""
BY_NOBODY = ("crashed-service", "by-operator", "unknown-topic")
"""Reasons of ends that no answer of the service has caused."""


class Outline(NamedTuple):
    """One record's story. The parts are lists where a plan says how often something happens, else sets."""

    attempts: Hashable
    copies: Hashable
    events: Hashable
    end: str


class Difference(NamedTuple):
    """What is not the same in two worlds. `part`: of the outline. `record`: its id."""

    part: str
    record: str
    one: object
    other: object


class Histories:
    """The records of a world at its end."""

    def __init__(self, world: World) -> None:
        self.world, self.found = world, Found(world)
        self._has_tables = len({(one.table, one.ladder) for one in world.plan.configs}) > 1
        """Whether pods with other waits are alive together: whose turn it is decides about waits and levels."""
        self.is_repeating = bool(world.plan.killers) or bool(REPEATS & kinds_of(world.plan))

    def set_aside(self) -> set[str]:
        """Return the records whose end moments decide: that are lost with their log, or were ended by no answer."""
        found, kinds = self.found, kinds_of(self.world.plan)
        aside = set(found.excused)
        if CRASHES & kinds:
            aside |= {origin for origin in found.dead if self._reason(origin).startswith("crashed-service")}
        if self.world.removed or len(self.world.mains) > 1:
            aside |= {origin for origin in found.dead if self._reason(origin).startswith("unknown-topic")}
        if "settle" in kinds:
            aside |= self.world.operator.settled.keys()
        return aside

    def outline(self, origin: str) -> Outline:
        """Return the story of a record."""
        found = self.found
        return Outline(
            self._attempts(found.deliveries[origin]),
            frozenset(self._copy(origin, one) for one in found.copies[origin] + found.dead[origin] if told(one)),
            self._collected(self._event(event) for event in found.events[origin]),
            self.end(origin),
        )

    def end(self, origin: str) -> str:
        """Return how the story of a record ended."""
        if self.found.dead[origin]:
            return f"dead: {cause_of(self._reason(origin))}"
        return "done" if taken(self.found, origin) else "open"

    def _reason(self, origin: str) -> str:
        return next((copy.retry_state.reason for copy in self.found.dead[origin]), "")

    def _attempts(self, deliveries: Iterable[Delivery]) -> Hashable:
        sent = [one for one in deliveries if not isinstance(one.outcome, NotSent)]
        if self.is_repeating:
            return frozenset((one.record.times, one.outcome) for one in sent if not isinstance(one.outcome, Throttled))
        return tuple((one.record.times, one.outcome) for one in sent)

    def _collected(self, parts: Iterable[Hashable]) -> Hashable:
        return frozenset(parts) if self.is_repeating else frozenset(Counter(parts).items())

    def _copy(self, origin: str, written: Written) -> Hashable:
        state, is_dead = written.retry_state, written.topic == "billing-DLQ"
        failed_ms = state.last_failed_at or state.first_failed_at
        headers = dict(written.stored.headers)
        return (
            *("DLQ" if is_dead else "retry", state.times, state.redrives, state.most_times, cause_of(state.reason)),
            *(bool(state.settled), state.parked, state.order, state.expires_at, state.cycle),
            self._wait(state.due_at - failed_ms) if state.due_at and not by_nobody(state.reason) else None,
            self._was_heard(origin, failed_ms, state.reason, is_parked=state.parked),
            self._was_heard(origin, state.first_failed_at, state.reason, is_parked=state.parked),
            is_dead or self._lies_in_its_level(origin, state),
            *(tuple(sorted(headers)), headers.get("__dlq.errors.delivery.count")),
        )

    def _lies_in_its_level(self, origin: str, state: RetryState) -> bool:
        """Whether a copy with these retries is in the level that the event of the retry names; hops go elsewhere."""
        world = self.world
        levels = [event.level for event in self.found.events[origin] if event.times == state.times and event.due]
        topics = {copy.topic for copy in self.found.copies[origin] if copy.retry_state.times == state.times}
        names, queued = world.everything.names, world.plan.queued
        wanted = {names.ready if level is None else f"billing-RETRY-{level}" for level in levels}
        return queued or not levels or bool(wanted & topics)

    def _event(self, event: Event) -> Hashable:
        parked, origin = event.parked is True, event.id
        return (
            *(event.state, event.times, event.redrives, event.reason, event.topic),
            None if self._has_tables else event.level,
            *(event.partition, event.offset, event.timestamp, event.retries, parked, event.cycle),
            None if by_nobody(event.reason) else event.text,
            self._due(event),
            self._was_heard(origin, event.at, event.reason, is_parked=parked),
            self._was_heard(origin, event.first_failed_at, event.reason, is_parked=parked),
        )

    def _due(self, event: Event) -> Hashable:
        """Return the wait that an event announces, or whether it repeats a due time that was announced before."""
        if not event.due or by_nobody(event.reason):
            return None
        if event.state is not State.COMMIT:
            return self._wait(event.due - event.at)
        return event.due in {one.due for one in self.found.events[event.id] if one.state is State.WAITING_RETRY}

    def _wait(self, ms: int) -> int | None:
        return None if self._has_tables else ms

    def _was_heard(self, origin: str, at_ms: int, reason: str, *, is_parked: bool) -> bool | None:
        """Whether the lane was told an outcome then; None where something else decides about the time."""
        if by_nobody(reason) or is_parked:
            return None
        return at_ms in self.world.heard[origin]


def kinds_of(plan: Plan) -> set[str]:
    """The kinds of the faults of a plan."""
    return {fault.kind for fault in plan.faults}


def by_nobody(reason: str) -> bool:
    """Whether something ended a record that was no answer of the service."""
    return reason.startswith(BY_NOBODY)


def cause_of(reason: str) -> str:
    """Return a reason as far as no moment decides it: how many processes a record has killed is one."""
    return reason.split(":")[0] if by_nobody(reason) else reason


def told(copy: Written) -> bool:
    """Whether an outcome has caused a copy."""
    state = copy.retry_state
    return copy.topic == "billing-DLQ" or (not state.behind and (state.times > 0 or state.parked))


def is_mixed(plan: Plan) -> bool:
    """Whether pods of different retries, ends or kinds of retry are alive together: whose turn it is decides."""
    return len({(one.in_place, one.retries, one.parks) for one in plan.configs}) > 1


def differences(one: World, other: World) -> list[Difference]:
    """Return all that is not the same in two worlds of one plan."""
    first, second = Histories(one), Histories(other)
    assert one.sent == other.sent, "the same records arrive in both worlds"
    if is_mixed(one.plan):
        return []
    aside = first.set_aside() | second.set_aside()
    found = list[Difference]()
    for origin in sorted(one.sent.keys() - aside):
        outlines = zip(Outline._fields, first.outline(origin), second.outline(origin), strict=True)
        found += [Difference(part, origin, ours, theirs) for part, ours, theirs in outlines if ours != theirs]
    return found
