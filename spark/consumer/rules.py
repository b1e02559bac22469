"""What a Spark job must know of its group to send failures where the sidecar would: names, delays, limits.

Built once on the driver and carried to the workers as one frozen value; delays are written and read as in the group's
policy. Pure.
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
"""How much later than the longest delay, in ms, a due time may lie before it counts as forged: the sidecar's bound."""
LONGEST_PASSING = 30_000
"""The longest level, in ms, that passes on a due record of a topic that is not ours: the sidecar's."""
COUNTED = 999_999
"""The greatest RECONSUMETIMES that fits the header's six digits."""


class Rules(msgspec.Struct, frozen=True):
    """Everything that routing needs to know about the group. Delays are ms; made by `build_rules`.

    `table` is the delay table that numbered levels point into, `delays` every level topic there is, rising.
    `instance` names the job in the events that it writes. `unknown_topic`: so many ms after its due time a retry of a
    main topic that is not ours, and that nobody of the group has taken, is a dead letter.
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
        """Whether the headers on the group's own topics may name it as REAL_TOPIC.

        Any job or sidecar of the group may consume it: not only ours, but no topic of the group's own.
        """
        return topic in self.topics or (topic in LEGAL_NAMES and self.names.role(str(topic), self.topics) is None)

    @property
    def levels(self) -> dict[str, int]:
        """Every level topic and its delay in ms."""
        return {self.names.level(delay, topic): delay for delay in self.delays for topic in self.topics}

    def asked(self, delay: int | None, level: int | None) -> int | None:
        """The wait that a failure asked for, in ms; None when it did not, or asked for what is not allowed."""
        if delay is not None and SHORTEST_ASKED <= delay <= LONGEST:
            return delay
        if level is not None and 1 <= level <= len(self.table):
            return self.table[level - 1]
        return None

    def understands(self, delay: int | None, level: int | None) -> bool:
        """Whether what a failure asked for is allowed; for what is not, the ladder answers."""
        if delay is None:
            return level is None or -1 <= level <= len(self.table)
        return SHORTEST_ASKED <= delay <= LONGEST

    def level_for(self, wait: int) -> int:
        """The level topic's delay that a wait of so many ms starts in.

        A wait below the shortest level takes that one: a micro-batch cannot hold a record back in memory.
        """
        return longest_fit(wait, self.delays) or self.delays[0]

    def dlq_of(self, topic: str) -> str:
        """The dead-letter topic for records of `topic`, which need not be one of the group's own main topics."""
        return self.names.dlq(self.family(topic))

    def family(self, topic: str) -> str:
        """The main topic that names the levels and the DLQ for a record found in `topic`, whatever its headers say."""
        role = self.names.role(topic, self.topics)
        return role.topic if role is not None and role.topic is not None else self.topics[0]

    def passing_level(self, found: str, wait: int) -> int:
        """The level that passes on a record which was found in topic `found` and is another's business, for `wait` ms.

        Of those that are due each of the short levels in turn.
        """
        if (level := longest_fit(wait, self.delays)) is not None:
            return level
        role = self.names.role(found, self.topics)
        short = tuple(delay for delay in self.delays if delay <= LONGEST_PASSING) or self.delays[:1]
        shorter = longest_fit((role.delay or 0) - 1 if role is not None else 0, short)
        return short[-1] if shorter is None else shorter

    def latest_due(self, now: int) -> int:
        """The latest due time, epoch ms, that a header may carry at `now`."""
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
    """The rules of a group; the same values as in the sidecar's `retry:` section. ValueError when one cannot be."""
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
    """The ladder as the wire agreement knows it; ValueError for a formula with unknown keys or a delay amiss."""
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
