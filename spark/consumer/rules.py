"""The names, delays and limits of a group, by which a Spark job sends failures to the same topics as the sidecar. Pure.

The driver builds them as one frozen value, which Spark carries to the workers, and again when the group's policy has
changed (`following.py`). Delays are written as in the group's policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from reconsume.spark.consumer.policy_values import KEYS, RetryTerms, Values, read_terms
from reconsume.topics.durations import parse_duration
from reconsume.topics.group_rules import GroupRules
from reconsume.topics.names import build_names, check_name, group_fault

NAME = re.compile(r"[a-zA-Z0-9._-]{1,60}")
"""The names of queries."""
LadderText: TypeAlias = str | Sequence[str] | Mapping[str, str | float]
"""As in the policy: `rocketmq`, `pulsar`, a list of delays, or `{"initial": "5s", "multiplier": 2, "max": "2h"}`."""


class Rules(GroupRules, frozen=True):
    """The rules of a group, by which records are routed. `build_rules` makes and checks them.

    `name`: what tells the query from the group's others.
    `own`: the job's own values by the keys of the policy, as they are written. They hold where the policy has none.
    `failure_text`: `message`, the message of an exception is the failure's text, or `none`.
    """

    name: str = ""
    own: Values = msgspec.field(default_factory=dict)
    failure_text: str = "message"

    @property
    def private_group(self) -> str:
        """The consumer group that holds the query's progress, and by which its transactional ids begin."""
        return self.names.spark_group(self.name)

    @property
    def levels(self) -> dict[str, int]:
        """Every level topic and its delay in ms."""
        return {self.names.level(delay, topic): delay for delay in self.delays for topic in self.topics}

    @property
    def level_prefixes(self) -> list[str]:
        """How the names of level topics begin, whatever their delays."""
        return sorted({self.names.level(0, topic).removesuffix("0s") for topic in self.topics})


def build_rules(
    group: str,
    topics: Sequence[str],
    *,
    name: str,
    ladder: LadderText = "rocketmq",
    levels: str | Sequence[str] | None = None,
    max_reconsume_times: int = 16,
    rules: Sequence[Mapping[str, Any]] = (),
    max_age: str | None = None,
    jitter: str = "0%",
    topic_prefix: str = "{group}",
    unknown_topic: str = "1h",
    failure_text: Literal["message", "none"] = "message",
) -> Rules:
    """Return the rules of a consumer group. The values are the same as in the sidecar's `retry:` section.

    - `group`: the name of the consumer group.
    - `topics`: the main topics, at least one.
    - `name`: what tells this query from the group's others: letters, digits, `.`, `_`, `-`, 60 at most. Events have it
      as `spark/<name>`. A query that is to go on where another one stopped has the same name.
    - `ladder`: `rocketmq`, `pulsar`, a list of delays, or a formula as in LadderText.
    - `levels`: None (six for `rocketmq`, at most eight for any other), `ladder` (one for each delay), `table`, or a
      list of ascending durations such as `10s`.
    - `max_reconsume_times`: the most retries of a record, from 0 to 999 999.
    - `rules`: what applies to some failures instead, such as `{"name": "busy", "reasons": ["http-409"], "ladder":
      ["1m"]}`.
    - `max_age`: the age of a record, such as `3d`, after which it is not due again; None is without limit.
    - `jitter`: by how much a wait is made longer at most, `0%` to `50%`.
    - `topic_prefix`: `{group}` or `{topic}-{group}`, by which the names of level topics and DLQ begin.
    - `unknown_topic`: a duration such as `1h`; see Rules.
    - `failure_text`: what is kept of an exception next to its class, in the header, the events and the log: `message`,
      which may hold data of the record, or `none`.

    Raises ValueError, with one sentence, if a value is not valid or a name is not allowed on Kafka.
    """
    if isinstance(topics, str) or not topics:
        raise ValueError("write the main topics as a list with at least one name")
    if failure_text not in ("message", "none"):
        raise ValueError(f"failure_text: must be message or none, and it is {str(failure_text)[:40]}")
    own = dict(zip(KEYS, (ladder, levels, max_reconsume_times, rules, max_age, jitter), strict=True))
    if fault := group_fault(group):
        raise ValueError(f"group {group} {fault}")
    terms = read_terms(own)
    names = build_names(group, topics, terms.delays, topic_prefix)
    if not NAME.fullmatch(name):
        raise ValueError(f"name: must be 1 to 60 letters, digits, '.', '_' or '-', and it is {name[:70]!r}")
    check_name(names.spark_group(name))
    return Rules(
        names=names,
        topics=tuple(topics),
        name=name,
        instance=f"spark/{name}",
        unknown_topic=parse_duration(unknown_topic),
        failure_text=failure_text,
        own=own,
        **fields_of(terms),
    )


def with_policy(rules: Rules, policy: Values) -> Rules:
    """Return the rules with the values of the group's policy over the job's own; keys that no job follows are ignored.

    Raises ValueError, with one sentence, if a value is not valid or a level's name is not allowed on Kafka.
    """
    over = {key: policy[key] for key in KEYS if key in policy}
    terms = read_terms({**rules.own, **over})
    build_names(rules.names.group, rules.topics, terms.delays, rules.names.template)
    return msgspec.structs.replace(rules, **fields_of(terms))


def fields_of(terms: RetryTerms) -> dict[str, Any]:
    """Return the fields of rules that the policy's values decide."""
    return {name: getattr(terms, name) for name in RetryTerms.__struct_fields__}
