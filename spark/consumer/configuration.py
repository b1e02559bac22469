"""Make the rules of a query: from arguments, from the group's reconsume.yaml, or with the group's policy over them.

The sidecar's own settings read every value (`sidecar/settings`), so all members of a group take and refuse the same.
The driver calls this: `build_rules` and `rules_from` once, and `with_policy` when `following.py` has read the control
log. Executors get the `Rules` that come of it, and need none of the settings. Nothing here has state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.group_policy import policy_values
from reconsume.sidecar.settings.load import Layers, load
from reconsume.sidecar.settings.model import Settings
from reconsume.spark.consumer.rules import Rules, Values
from reconsume.topics.levels import numbered
from reconsume.topics.names import check_name
from reconsume.topics.tags import HEADER as TAGS_HEADER
from reconsume.topics.tags import parse_tags

NAME = re.compile(r"[a-zA-Z0-9._-]{1,60}")
"""The names of queries."""
LadderText: TypeAlias = str | Sequence[str] | Mapping[str, str | float]
"""As in the policy: `rocketmq`, `pulsar`, a list of delays, or `{"initial": "5s", "multiplier": 2, "max": "2h"}`."""

RETRY_KEYS = ("ladder", "levels", "max_reconsume_times", "rules", "max_age", "jitter")
RATE_KEYS = ("rate", "group_rate")
KEYS = (*RETRY_KEYS, *RATE_KEYS)
"""The keys of the policy that a Spark job follows. The others are about delivery by HTTP, or about order."""
BROKERS = {"bootstrap.servers": "unused:1"}
"""Stands for the brokers, which the settings need, and which a query has from elsewhere."""
ORDERED = "the group keeps the order of its records, which a Spark consumer cannot: let a sidecar consume it"


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
    tags: Mapping[str, str] | None = None,
    tags_header: str = TAGS_HEADER,
    rate: str | None = None,
    group_rate: str | None = None,
) -> Rules:
    """Return the rules of a consumer group. The values are the same as in the sidecar's configuration.

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
    - `tags`: which records of a main topic are wanted, by their header TAGS: `TagA||TagB`, or `*` for all, as where
      nothing is given. The others are done at once. `tags_header` names another header.
    - `rate`, `group_rate`: how many records the query takes at most, such as `100/s`, `600/m` or `5/h`. A query is one
      instance of its group, so the lower one of the two applies.

    Raises ValueError, with one sentence, if a value is not valid or a name is not allowed on Kafka.
    """
    if isinstance(topics, str):
        raise ValueError("topics: must be a list of main topics")
    if unknown := sorted(set(tags or ()) - set(topics)):
        raise ValueError(f"tags: {unknown[0]} is not one of the main topics")
    tree = {
        "group": group,
        "topics": [{"name": topic, "tags": (tags or {}).get(topic, "*")} for topic in topics],
        "topic_prefix": topic_prefix,
        "tags_header": tags_header,
        "kafka": BROKERS,
        "retry": {
            "ladder": ladder,
            "levels": levels,
            "max_reconsume_times": max_reconsume_times,
            "rules": rules,
            "max_age": max_age,
            "jitter": jitter,
            "unknown_topic": unknown_topic,
        },
        "deliver": {"mode": "spark", "failure_text": failure_text, "rate": rate, "group_rate": group_rate},
    }
    return _rules_of(_settings_of(tree), name)


def rules_from(file: str | Path, *, name: str) -> Rules:
    """Return the rules of the group whose configuration is in a file, such as `reconsume.yaml`, and in its `base`.

    They are those that `build_rules` makes of its `group`, `topics` with their `tags`, `tags_header`,
    `topic_prefix` and `retry`, and of `rate`, `group_rate` and `failure_text` of `deliver`. Nothing else of it is
    used; variables of the environment are not read. `name` is as in `build_rules`. Any mode of delivery will do,
    since a sidecar and Spark queries of one group may have one file; in modes other than `spark`, `failure_text` is
    `message`, unless it is `none`.

    Raises ValueError, with one sentence that names the file, if it cannot be read, a key is unknown, a value is not
    valid, or the group is one that no Spark query can consume: in order, by broadcast, or with `retry.understand`.
    """
    try:
        settings = load(Path(file), [f"kafka.bootstrap.servers={BROKERS['bootstrap.servers']}"], {})
        if fault := _foreign_setting(settings):
            raise ValueError(fault)
        return replace(_rules_of(settings, name), file=str(Path(file).absolute()))
    except ConfigError as refused:
        raise ValueError(f"{file}: {refused.problems[0]}") from None
    except ValueError as fault:
        raise ValueError(f"{file}: {fault}") from None


def with_policy(rules: Rules, policy: Values) -> Rules:
    """Return the rules with the values of the group's policy over the job's own; keys that no job follows are ignored.

    Raises ValueError, with one sentence, if a value is not valid, a level's name is not allowed on Kafka, or the group
    keeps the order of its records.
    """
    if policy.get("ordered_ladder") is not None:
        raise ValueError(f"ordered_ladder: {ORDERED}")
    values = {**rules.own, **{key: policy[key] for key in KEYS if key in policy}}
    tree = {
        "group": rules.names.group,
        "topics": rules.topics,
        "topic_prefix": rules.names.template,
        "kafka": BROKERS,
        "retry": {key: values[key] for key in RETRY_KEYS},
        "deliver": {"mode": "spark", **{key: values[key] for key in RATE_KEYS}},
    }
    return replace(rules, **_terms_of(_settings_of(tree)))


def _settings_of(tree: Values) -> Settings:
    """Return the settings of a configuration. Raises ValueError with the first fault."""
    try:
        return Layers(msgspec.json.decode(msgspec.json.encode(tree))).checked()  # lists in place of other sequences
    except ConfigError as refused:
        raise ValueError(refused.problems[0]) from None
    except TypeError as fault:
        raise ValueError(f"a value of a type that no setting has: {fault}") from None


def _foreign_setting(settings: Settings) -> str:
    """Return why no Spark query can consume a group with these settings; empty if one can."""
    if settings.deliver.order != "none" or settings.queued:
        return f"deliver.order: {ORDERED}"
    if settings.deliver.broadcast:
        return "deliver.broadcast: a broadcast has no consumer group and no retries: read its topics"
    if settings.retry.understand:
        return "retry.understand: a Spark consumer knows the headers of no other system; leave it out"
    if settings.drains:
        return "topics: drains is for sidecars: Spark queries take each topic for itself; leave it out"
    return ""


def _rules_of(settings: Settings, name: str) -> Rules:
    """Return the rules of checked settings. Raises ValueError if the name is not one."""
    if not NAME.fullmatch(name):
        raise ValueError(f"name: must be 1 to 60 letters, digits, '.', '_' or '-', and it is {name[:70]!r}")
    check_name(settings.names.spark_group(name))
    values = policy_values(settings)
    tags = ((topic.name, parse_tags(topic.tags)) for topic in settings.topics)
    return Rules(
        names=settings.names,
        topics=settings.topic_names,
        name=name,
        instance=f"spark/{name}",
        unknown_topic=settings.retry.unknown_topic,
        failure_text="none" if settings.deliver.failure_text == "none" else "message",
        tags={topic: wanted for topic, wanted in tags if wanted is not None},
        tags_header=settings.tags_header,
        own={key: values[key] for key in KEYS},
        **_terms_of(settings),
    )


def _terms_of(settings: Settings) -> dict[str, Any]:
    """Return the fields of `Rules` that the policy may change."""
    deliver = settings.deliver
    rates = [rate for rate in (deliver.rate, deliver.group_rate) if rate is not None]
    return {
        "ladder": settings.ladder,
        "table": numbered(settings.retry.levels),
        "delays": settings.delays,
        "max_reconsume_times": settings.retry.max_reconsume_times,
        "retry_rules": settings.retry_rules,
        "max_age": settings.retry.max_age,
        "jitter": settings.retry.jitter,
        "rate": min(rates, key=lambda rate: rate.per_second, default=None),
    }
