"""What the sidecar and a Spark consumer must answer alike about a group: its topics, its delays and its bounds. Pure.

Both write into the same topics. So they must agree on the level of a wait, on what a failure may ask for, and on the
topics of a record.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from reconsume.topics.levels import LONGEST, SHORTEST_ASKED, Ladder, longest_below, longest_fit
from reconsume.topics.names import LEGAL_NAMES, Names
from reconsume.topics.partition import Partition
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.retry_rules import FailureTerms, RetryRule

CLOCK_SLACK = 3_600_000
"""ms that a due time may lie beyond the longest delay before it counts as forged: the clocks of pods differ."""
LONGEST_PASSING = 30_000
"""ms. The longest level that passes on due records which only other consumers of the group can take. It is short
compared with a roll-out, and few copies are made meanwhile."""


class GroupRules(msgspec.Struct, frozen=True):
    """The rules of a group; all delays are ms.

    - `names`: the names of the group's topics.
    - `topics`: the main topics, at least one.
    - `ladder`: the wait before each retry.
    - `table`: the delays that numbered levels refer to (level 1 is the first); not all of them need a topic.
    - `delays`: the delay of every level topic, ascending. What lies between is made of hops. A group that retries in
      place has none.
    - `max_reconsume_times`: the most retries of a record.
    - `retry_rules`: what applies to some failures instead; the first that matches.
    - `max_age`: ms from a record's own timestamp after which it is not due again; None: no bound.
    - `jitter`: percent of a wait that it is made longer by at most.
    - `instance`: the name of this process or job in the events that it writes.
    - `unknown_topic`: ms after its due time in which another consumer of the group must take a retry of a topic that
      this one does not consume. Then it is dead-lettered.
    - `relay`: the service reads the ready topic itself, and due records are forwarded there.
    - `traced`: copies carry the trace context of the attempt before.
    - `queued`: order survives long waits: what fails waits in the queue topic of its main topic, and later records of
      its key behind it. Such a group has no levels.
    - `parks`: with `queued`, a record whose retries are used up waits in its queue for a person, and its key with it.
    - `drained`: what waits in queue topics is delivered in order, though a failure is retried in place.
    - `speed`: what the waits of retries are divided by. More than 1 only under `dev up --speed`: topics, levels and
      counts stay those of production, and only due times come earlier. `max_age` is divided already.
    """

    names: Names
    topics: tuple[str, ...]
    ladder: Ladder
    table: tuple[int, ...]
    delays: tuple[int, ...]
    max_reconsume_times: int = 16
    instance: str = ""
    unknown_topic: int = 3_600_000
    traced: bool = False
    relay: bool = False
    queued: bool = False
    drained: bool = False
    parks: bool = False
    retry_rules: tuple[RetryRule, ...] = ()
    max_age: int | None = None
    jitter: int = 0
    speed: int = 1

    dead_letter: ClassVar[bool] = False
    """Whether each failure is the last one, as a rule may say."""
    has_own_ladder: ClassVar[bool] = False
    """Whether an expired lease waits for this ladder, as for a rule's own."""

    def __contains__(self, topic: object) -> bool:
        """Return whether REAL_TOPIC in the headers on the group's own topics may have this value.

        It may be the main topic of any member, whatever this one consumes: during a roll-out that adds or removes a
        main topic, two configurations of one group run side by side, and a sound retry of the other one's is passed on.
        """
        return topic in self.topics or (topic in LEGAL_NAMES and self.names.role(str(topic), self.topics) is None)

    def terms_of(self, topic: str, reason: str) -> FailureTerms:
        """Return what applies to a failure of the class `reason` at a record of the main topic `topic`."""
        if not self.retry_rules:  # the usual case, on the way of each failure
            return self
        return next((rule for rule in self.retry_rules if rule.matches(topic, reason)), self)

    def wait_of(self, retry: int, delay: int | None, level: int | None, ladder: Ladder | None = None) -> int:
        """Return how long retry `retry` (1, 2, …) waits, in ms.

        The delay that the failure asked for wins if it is allowed, then its level of the table, then the ladder: the
        group's, unless another is given.
        """
        if delay is not None and SHORTEST_ASKED <= delay <= LONGEST:
            return delay
        level_delay = self.delay_of(level)
        return (ladder or self.ladder).delay(retry) if level_delay is None else level_delay

    def delay_of(self, level: int | None) -> int | None:
        """Return the delay, in ms, of a level of the table; None if none was given.

        A level beyond the last one is the last one, as in RocketMQ.
        """
        return self.table[min(level, len(self.table)) - 1] if level is not None and level >= 1 and self.table else None

    def understands(self, delay: int | None, level: int | None) -> bool:
        """Return whether what a failure asked for is allowed."""
        if delay is None:
            return level is None or level >= -1
        return SHORTEST_ASKED <= delay <= LONGEST

    def sped_up(self, wait: int) -> int:
        """Return how many ms a wait of `wait` ms takes at this speed; one that is not 0 takes at least 1 ms."""
        return -(-wait // self.speed)

    def level_for(self, wait: int) -> int | None:
        """Return the delay of the level topic that a wait of `wait` ms begins in; None if it is shorter than all.

        It may be a second longer than the wait.
        """
        return longest_fit(wait, self.delays)

    def retry_topic(self, level: int | None, state: RetryState) -> str:
        """Return the topic that a copy waits in; the ready topic if the wait is shorter than every level."""
        if (self.queued or (self.drained and state.order is not None)) and state.topic in self.topics:
            return self.names.ordered(state.topic)
        return self.names.ready if level is None else self.names.level(level, state.topic)

    def passing_level(self, topic: str) -> int | None:
        """Return the level that passes on a record found in topic `topic`: each of the short levels in turn.

        None if the group has no levels. All partitions of one level may belong to consumers that do not take the topic
        of the record.
        """
        role = self.names.role(topic, self.topics)
        short = tuple(delay for delay in self.delays if delay <= LONGEST_PASSING) or self.delays[:1]
        shorter = longest_below((role.delay or 0) - 1 if role is not None else 0, short)
        if shorter is None:
            return short[-1] if short else None
        return shorter

    def dlq_of(self, topic: str) -> str:
        """Return the dead-letter topic for records of `topic`, which need not be one of the group's own main topics."""
        return self.names.dlq(self.family(topic))

    def family(self, topic: str) -> str:
        """Return the main topic that names the levels and the DLQ for a record found in `topic`.

        The record's headers have no influence on it.
        """
        role = self.names.role(topic, self.topics)
        return role.topic if role is not None and role.topic is not None else self.topics[0]

    def order_of(self, state: RetryState) -> Order | None:
        """Return the order of a copy among those of its key: the one it has, or else where its first copy stands.

        None in a group without queues.
        """
        return state.order or Order(offset_of(state.id)) if self.has_queues else None

    @property
    def has_queues(self) -> bool:
        """Whether records may wait in queue topics."""
        return self.queued or self.drained

    def queue_fault(self, source: Partition, state: RetryState) -> str:
        """Return why a copy of a queue topic may not be trusted, in one sentence; empty if it may.

        It belongs to this partition of this main topic, and says where it stands among those of its key.
        """
        topic, number, offset = state.id.rsplit(":", 2)
        if self.names.ordered(topic) != source.topic or int(number) != source.number:
            return f"{state.id} does not belong into {source.topic}[{source.number}]"
        if state.order is None:
            return "RETRY_ORDER is missing"
        # The present end of a main topic that was made anew may lie below the letter's own offset.
        if state.order != Order(int(offset)) and not (state.redrives and state.order.sequence):
            return f"RETRY_ORDER is {state.order.offset}.{state.order.sequence}, which is no order of {state.id}"
        if state.parked and (state.behind or state.due_at):
            return "RETRY_PARKED is on a record that is due, or behind another"
        return "RETRY_BEHIND is on a record that was retried" if state.behind and state.times else ""

    def latest_due(self, now: int) -> int:
        """Return the latest due time (epoch ms) that a header may carry at `now` (epoch ms)."""
        return now + LONGEST + CLOCK_SLACK


def offset_of(record_id: str) -> int:
    """Return the offset of the first copy, from ORIGIN_MESSAGE_ID."""
    return int(record_id.rpartition(":")[2])


def number_of(record_id: str) -> int:
    """Return the partition of the first copy, from ORIGIN_MESSAGE_ID."""
    return int(record_id.rsplit(":", 2)[1])
