"""The names, delays and limits of a group, by which a Spark job sends failures to the same topics as the sidecar. Pure.

The driver builds them once as one frozen value, which Spark carries to the workers. Delays are written as in the
group's policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from topics.durations import parse_duration
from topics.levels import (
    LEVELS,
    LONGEST,
    SHORTEST_ASKED,
    Exponential,
    Ladder,
    LadderSpec,
    build_ladder,
    level_delays,
    longest_fit,
)
from topics.names import LEGAL_NAMES, Names, build_names

LadderText: TypeAlias = str | Sequence[str] | Mapping[str, str | float]
"""As in the policy: `rocketmq`, `pulsar`, a list of delays, or `{"initial": "5s", "multiplier": 2, "max": "2h"}`."""

CLOCK_SLACK = 3_600_000
"""ms that a due time may lie beyond the longest delay before it counts as forged: the sidecar's bound."""
LONGEST_PASSING = 30_000
"""ms. The longest level that passes on a due record of a topic that this job does not consume: the sidecar's bound."""
COUNTED = 999_999
"""The greatest RECONSUMETIMES that fits the header's six digits."""


class Rules(msgspec.Struct, frozen=True):
    """The rules of a group, by which records are routed. `build_rules` makes and checks them; all delays are ms.

    - `names`: the names of the group's topics.
    - `topics`: the main topics.
    - `ladder`: the wait before each retry.
    - `table`: the delay table, which numbered levels refer to (level 1 is the first).
    - `delays`: the delay of every level topic, ascending.
    - `max_reconsume_times`: the most retries of a record.
    - `instance`: the name of the job in the events that it writes.
    - `unknown_topic`: ms after its due time in which another consumer of the group must take a retry of a topic that
      this job does not consume. Then it is dead-lettered.
    """

    names: Names
    topics: tuple[str, ...]
    ladder: Ladder
    table: tuple[int, ...]
    delays: tuple[int, ...]
    max_reconsume_times: int = 16
    instance: str = "spark"
    unknown_topic: int = 3_600_000

    def __contains__(self, topic: object) -> bool:
        """Whether REAL_TOPIC in the headers on the group's own topics may have this value.

        It may be any main topic that a job or sidecar of the group consumes, but not one of the group's own topics.
        """
        return topic in self.topics or (topic in LEGAL_NAMES and self.names.role(str(topic), self.topics) is None)

    @property
    def levels(self) -> dict[str, int]:
        """Every level topic and its delay in ms."""
        return {self.names.level(delay, topic): delay for delay in self.delays for topic in self.topics}

    def asked(self, delay: int | None, level: int | None) -> int | None:
        """Return the wait, in ms, that a failure asked for; None if it asked for no wait that is allowed."""
        if delay is not None and SHORTEST_ASKED <= delay <= LONGEST:
            return delay
        if level is not None and 1 <= level <= len(self.table):
            return self.table[level - 1]
        return None

    def understands(self, delay: int | None, level: int | None) -> bool:
        """Whether the delay or level that a failure asked for is allowed. If it is not, the ladder decides."""
        if delay is None:
            return level is None or -1 <= level <= len(self.table)
        return SHORTEST_ASKED <= delay <= LONGEST

    def level_for(self, wait: int) -> int:
        """Return the delay of the level topic in which a wait of `wait` ms begins.

        A wait below the shortest level takes the shortest one, because a micro-batch cannot hold a record back in
        memory.
        """
        return longest_fit(wait, self.delays) or self.delays[0]

    def dlq_of(self, topic: str) -> str:
        """Return the dead-letter topic for records of `topic`, which need not be one of the group's own main topics."""
        return self.names.dlq(self.family(topic))

    def family(self, topic: str) -> str:
        """Return the main topic that names the levels and the DLQ for a record found in `topic`.

        The record's headers have no influence on it.
        """
        role = self.names.role(topic, self.topics)
        return role.topic if role is not None and role.topic is not None else self.topics[0]

    def passing_level(self, found: str, wait: int) -> int:
        """Return the delay of the level that passes on a record which another consumer of the group must handle.

        The record was found in topic `found` and must wait `wait` ms. A record that is due goes through the short
        levels in turn.
        """
        if (level := longest_fit(wait, self.delays)) is not None:
            return level
        role = self.names.role(found, self.topics)
        short = tuple(delay for delay in self.delays if delay <= LONGEST_PASSING) or self.delays[:1]
        shorter = longest_fit((role.delay or 0) - 1 if role is not None else 0, short)
        return short[-1] if shorter is None else shorter

    def latest_due(self, now: int) -> int:
        """Return the latest due time (epoch ms) that a header may carry at `now` (epoch ms)."""
        return now + LONGEST + CLOCK_SLACK


def build_rules(
    group: str,
    topics: Sequence[str],
    *,
    ladder: LadderText = "rocketmq",
    levels: Sequence[str] = tuple(LEVELS.split()),
    max_reconsume_times: int = 16,
    topic_prefix: str = "{group}",
    instance: str = "spark",
    unknown_topic: str = "1h",
) -> Rules:
    """Return the rules of a consumer group. The values are the same as in the sidecar's `retry:` section.

    - `group`: the name of the consumer group.
    - `topics`: the main topics, at least one.
    - `ladder`: `rocketmq`, `pulsar`, a list of delays, or a formula as in LadderText.
    - `levels`: the delay table, ascending durations such as `10s`.
    - `max_reconsume_times`: the most retries of a record, from 0 to 999 999.
    - `topic_prefix`: `{group}` or `{topic}-{group}`, by which the names of level topics and DLQ begin.
    - `instance`: the name of the job in the events that it writes.
    - `unknown_topic`: a duration such as `1h`; see Rules.

    Raises ValueError, with one sentence, if a value is not valid or a name is not allowed on Kafka.
    """
    if isinstance(topics, str) or not topics:
        raise ValueError("write the main topics as a list with at least one name")
    if not 0 <= max_reconsume_times <= COUNTED:
        raise ValueError(f"max_reconsume_times must be 0 to {COUNTED}, and it is {max_reconsume_times}")
    table = tuple(parse_duration(text) for text in levels)
    rungs = build_ladder(read_ladder(ladder), table)
    delays = level_delays(rungs, table)
    names = build_names(group, topics, delays, topic_prefix)
    patience = parse_duration(unknown_topic)
    return Rules(names, tuple(topics), rungs, table, delays, max_reconsume_times, instance, patience)


def read_ladder(ladder: LadderText) -> LadderSpec:
    """Return the ladder's description as `topics.levels` takes it.

    Raises ValueError if a formula has an unknown key, or a delay is not valid.
    """
    if isinstance(ladder, str):
        return ladder
    if not isinstance(ladder, Mapping):
        return tuple(parse_duration(text) for text in ladder)
    default, given = Exponential(), dict(ladder)
    initial, longest = given.pop("initial", None), given.pop("max", None)
    multiplier = float(given.pop("multiplier", default.multiplier))
    if given:
        raise ValueError(f"a formula has initial, multiplier and max, not {', '.join(map(str, given))}")
    return Exponential(
        default.initial if initial is None else parse_duration(str(initial)),
        multiplier,
        default.max if longest is None else parse_duration(str(longest)),
    )
