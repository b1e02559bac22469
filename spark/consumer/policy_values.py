"""The values of a group's retry policy, as they are written in YAML, and what they say. Pure.

`build_rules` and the policy topic hold the same values. The sidecar's settings read them too; a test compares the two,
because a value must be taken or refused alike by all members of a group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from reconsume.topics.durations import parse_duration
from reconsume.topics.levels import (
    LONGEST,
    SHORTEST_ASKED,
    Exponential,
    Ladder,
    LadderSpec,
    LevelsSpec,
    build_ladder,
    level_delays,
    numbered,
)
from reconsume.topics.retry_headers import LARGEST_COUNT
from reconsume.topics.retry_rules import MOST_PATTERNS, MOST_RULES, RetryRule

Values: TypeAlias = Mapping[str, Any]
"""Values of the policy by its keys, such as `max_reconsume_times`."""

KEYS = ("ladder", "levels", "max_reconsume_times", "rules", "max_age", "jitter")
"""The keys of the policy that a Spark job follows. The others are about delivery by HTTP."""
OLDEST = parse_duration("3650d")
"""ms. The longest `max_age`."""
MOST_JITTER = 50
"""Percent."""
MULTIPLIERS = (1, 100)
"""The least and the greatest multiplier of a formula."""
PERCENT = re.compile(r"([0-9]{1,3})%")

Times: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
Topic: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9._*?\[\]!-]{1,249}\Z")]
Reason: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9._*?\[\]!-]{1,64}\Z")]


class WrittenRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule of `retry.rules` as it is written; None is what the group has."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}\Z")]
    topics: Annotated[tuple[Topic, ...], msgspec.Meta(max_length=MOST_PATTERNS)] = ()
    reasons: Annotated[tuple[Reason, ...], msgspec.Meta(max_length=MOST_PATTERNS)] = ()
    ladder: Any = None
    max_reconsume_times: Times | None = None
    max_age: str | None = None
    dead_letter: bool = False


class RetryTerms(msgspec.Struct, frozen=True):
    """What the values say: fields of `topics.group_rules.GroupRules`; delays and ages are ms, `jitter` is percent."""

    ladder: Ladder
    table: tuple[int, ...]
    delays: tuple[int, ...]
    max_reconsume_times: int
    retry_rules: tuple[RetryRule, ...]
    max_age: int | None
    jitter: int


def read_terms(values: Values) -> RetryTerms:
    """Return what values say that have all of KEYS. Raises ValueError with a sentence that names the key."""
    ladder = build_ladder(_named("ladder", read_ladder, values["ladder"]))
    most = _named("max_reconsume_times", read_times, values["max_reconsume_times"])
    max_age = _named("max_age", read_age, values["max_age"])
    base = RetryRule("", (), (), ladder, most, max_age)
    rules = _named("rules", lambda rules: read_rules(rules, base), values["rules"])
    levels = _named("levels", read_levels, values["levels"])
    delays = level_delays(levels, ladder, *(rule.ladder for rule in rules))
    jitter = _named("jitter", read_jitter, values["jitter"])
    return RetryTerms(ladder, numbered(levels), delays, most, rules, max_age, jitter)


def _named(key: str, read: Any, value: object) -> Any:
    """Read a value; the sentence of a refusal begins with its key."""
    try:
        return read(value)
    except ValueError as fault:
        raise ValueError(f"{key}: {fault}") from None


def read_ladder(value: object) -> LadderSpec:
    """Return a ladder as `topics.levels` takes it. Raises ValueError if it has no such form."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _formula(value)
    return _delays(value)


def _formula(fields: Mapping[str, object]) -> Exponential:
    default = Exponential()
    if unknown := fields.keys() - {"initial", "multiplier", "max"}:
        raise ValueError(f"a formula has initial, multiplier and max, not {', '.join(sorted(map(str, unknown)))}")
    return Exponential(
        _delay(fields["initial"]) if "initial" in fields else default.initial,
        _multiplier(fields.get("multiplier", default.multiplier)),
        _delay(fields["max"]) if "max" in fields else default.max,
    )


def _multiplier(value: object) -> float:
    least, most = MULTIPLIERS
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"a multiplier is a number from {least} to {most}, not {str(value)[:40]}")
    return float(value)


def _delays(value: object) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"must be a name or a list of delays, not {str(value)[:40]}")
    return tuple(_delay(delay) for delay in value)


def _delay(value: object) -> int:
    return read_duration(value, SHORTEST_ASKED, LONGEST)


def read_duration(value: object, least: int, most: int) -> int:
    """Return the ms of a duration between two bounds. Raises ValueError for anything else."""
    ms = parse_duration(value) if isinstance(value, str) else None
    if ms is None or not least <= ms <= most:
        raise ValueError(f"{str(value)[:40]} is not a duration between {least // 1000}s and {most // 86_400_000}d")
    return ms


def read_levels(value: object) -> LevelsSpec:
    """Return the choice of levels; None is the default. Raises ValueError if it has no such form."""
    if value is None or isinstance(value, str):
        return value
    return _delays(value)


def read_times(value: object) -> int:
    """Return the most retries. Raises ValueError if it is no count."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_COUNT:
        raise ValueError(f"must be 0 to {LARGEST_COUNT}, and it is {str(value)[:40]}")
    return value


def read_age(value: object) -> int | None:
    """Return the ms of an age; None is no bound. Raises ValueError if it is none."""
    return None if value is None else read_duration(value, SHORTEST_ASKED, OLDEST)


def read_jitter(value: object) -> int:
    """Return the percent of a text such as `10%`. Raises ValueError if it is none, or too much."""
    match = PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) > MOST_JITTER:
        raise ValueError(f"must be 0% to {MOST_JITTER}%, and it is {str(value)[:40]}")
    return int(match[1])


def read_rules(value: object, group: RetryRule) -> tuple[RetryRule, ...]:
    """Return complete rules: what a rule leaves out is that of `group`. Raises ValueError if one is not valid."""
    if not isinstance(value, list | tuple) or len(value) > MOST_RULES:
        raise ValueError(f"must be a list of at most {MOST_RULES} rules")
    written = msgspec.convert(value, tuple[WrittenRule, ...])
    names = [rule.name for rule in written]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two rules are called {twice[0]}")
    return tuple(_complete(rule, group) for rule in written)


def _complete(rule: WrittenRule, group: RetryRule) -> RetryRule:
    times, age = rule.max_reconsume_times, read_age(rule.max_age)
    return RetryRule(
        name=rule.name,
        topics=rule.topics,
        reasons=rule.reasons,
        ladder=group.ladder if rule.ladder is None else build_ladder(read_ladder(rule.ladder)),
        max_reconsume_times=group.max_reconsume_times if times is None else times,
        max_age=group.max_age if age is None else age,
        dead_letter=rule.dead_letter,
    )
