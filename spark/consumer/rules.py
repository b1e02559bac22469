"""The names, delays and limits of a group, by which a Spark job sends failures to the same topics as the sidecar. Pure.

The driver builds them once as one frozen value, which Spark carries to the workers. Delays are written as in the
group's policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from topics.durations import parse_duration
from topics.group_rules import GroupRules
from topics.levels import Exponential, LadderSpec, LevelsSpec, build_ladder, level_delays, numbered
from topics.names import build_names, group_fault
from topics.retry_headers import LARGEST_COUNT

LadderText: TypeAlias = str | Sequence[str] | Mapping[str, str | float]
"""As in the policy: `rocketmq`, `pulsar`, a list of delays, or `{"initial": "5s", "multiplier": 2, "max": "2h"}`."""


class Rules(GroupRules, frozen=True):
    """The rules of a group, by which records are routed. `build_rules` makes and checks them."""

    @property
    def levels(self) -> dict[str, int]:
        """Every level topic and its delay in ms."""
        return {self.names.level(delay, topic): delay for delay in self.delays for topic in self.topics}


def build_rules(
    group: str,
    topics: Sequence[str],
    *,
    ladder: LadderText = "rocketmq",
    levels: str | Sequence[str] = "ladder",
    max_reconsume_times: int = 16,
    topic_prefix: str = "{group}",
    instance: str = "spark",
    unknown_topic: str = "1h",
) -> Rules:
    """Return the rules of a consumer group. The values are the same as in the sidecar's `retry:` section.

    - `group`: the name of the consumer group.
    - `topics`: the main topics, at least one.
    - `ladder`: `rocketmq`, `pulsar`, a list of delays, or a formula as in LadderText.
    - `levels`: `ladder`, `table`, or a list of ascending durations such as `10s`.
    - `max_reconsume_times`: the most retries of a record, from 0 to 999 999.
    - `topic_prefix`: `{group}` or `{topic}-{group}`, by which the names of level topics and DLQ begin.
    - `instance`: the name of the job in the events that it writes.
    - `unknown_topic`: a duration such as `1h`; see Rules.

    Raises ValueError, with one sentence, if a value is not valid or a name is not allowed on Kafka.
    """
    if isinstance(topics, str) or not topics:
        raise ValueError("write the main topics as a list with at least one name")
    if not 0 <= max_reconsume_times <= LARGEST_COUNT:
        raise ValueError(f"max_reconsume_times must be 0 to {LARGEST_COUNT}, and it is {max_reconsume_times}")
    chosen: LevelsSpec = levels if isinstance(levels, str) else tuple(parse_duration(text) for text in levels)
    rungs = build_ladder(read_ladder(ladder))
    table, delays = numbered(chosen), level_delays(chosen, rungs)
    if fault := group_fault(group):
        raise ValueError(f"group {group} {fault}")
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
    default, fields = Exponential(), dict(ladder)
    initial, longest = fields.pop("initial", None), fields.pop("max", None)
    multiplier = float(fields.pop("multiplier", default.multiplier))
    if fields:
        raise ValueError(f"a formula has initial, multiplier and max, not {', '.join(map(str, fields))}")
    return Exponential(
        default.initial if initial is None else parse_duration(str(initial)),
        multiplier,
        default.max if longest is None else parse_duration(str(longest)),
    )
