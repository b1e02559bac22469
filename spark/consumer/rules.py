"""The rules of a group, by which a Spark job routes records to the same topics as the sidecar.

Pure, but for `rules_from`, which has the sidecar's own reader read a file.

The driver makes `Rules` once, as one frozen value that Spark carries to the workers: `build_rules` from values,
`rules_from` from the group's reconsume.yaml. Before a batch, `following.py` asks `with_policy` for the rules in force:
the values of the group's policy and of its newest sidecar over the job's own; and adds the holds.

A value is read alike wherever it comes from (`read_terms`). The sidecar's settings read the same values by
their own table, which a Spark job must not import. Tests compare the two, because a value must be taken or refused
alike by all members of a group.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from reconsume.topics.durations import parse_duration
from reconsume.topics.group_rules import GroupRules
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.levels import (
    LONGEST,
    SHORTEST_ASKED,
    Exponential,
    Ladder,
    LevelsSpec,
    build_ladder,
    level_delays,
    numbered,
)
from reconsume.topics.names import build_names, check_name, group_fault
from reconsume.topics.rates import Rate, parse_rate
from reconsume.topics.retry_headers import LARGEST_COUNT
from reconsume.topics.retry_rules import MOST_PATTERNS, MOST_RULES, RetryRule
from reconsume.topics.tags import FORM as TAGS_FORM
from reconsume.topics.tags import HEADER as TAGS_HEADER
from reconsume.topics.tags import HEADER_FORM, check_once, parse_tags

NAME = re.compile(r"[a-zA-Z0-9._-]{1,60}")
"""The names of queries."""
LadderText: TypeAlias = str | Sequence[str] | Mapping[str, str | float]
"""As in the policy: `rocketmq`, `pulsar`, a list of delays, or `{"initial": "5s", "multiplier": 2, "max": "2h"}`."""
Values: TypeAlias = Mapping[str, Any]
"""Values of the policy by its keys, such as `max_reconsume_times`."""

RETRY_KEYS = ("ladder", "levels", "max_reconsume_times", "rules", "max_age", "jitter")
RATE_KEYS = ("rate", "group_rate")
KEYS = (*RETRY_KEYS, *RATE_KEYS)
"""The keys of the policy that a Spark job follows. The others are about delivery by HTTP, or about order."""
ORDERED = "the group keeps the order of its records, which a Spark consumer cannot: let a sidecar consume it"
BURST = 10
"""Seconds. A batch has no more records than the rate allows in them."""
OLDEST = parse_duration("3650d")
"""ms. The longest `max_age`."""


class Rules(GroupRules, frozen=True):
    """The rules of a group, by which records are routed. `build_rules` and `rules_from` make and check them.

    `name`: what tells the query from the group's others.
    `own`: the job's own values by the keys of the policy, as they are written. They hold where the policy has none.
    `failure_text`: `message`, the message of an exception is the failure's text, or `none`.
    `tags`: the wanted tags of main topics; all records of the other main topics are wanted. `tags_header`: the header
    that has a record's tag.
    `rate`: how many records the query may take, over all batches; None: no limit.
    `holds`: what operators hold now, in the order in which they said it.
    `file`: the absolute path of the configuration that they were read from; empty if there is none.
    """

    name: str = ""
    own: Values = msgspec.field(default_factory=dict)
    failure_text: str = "message"
    tags: dict[str, frozenset[bytes] | None] = msgspec.field(default_factory=dict)
    tags_header: str = TAGS_HEADER
    rate: Rate | None = None
    holds: tuple[HoldRecord, ...] = ()
    file: str = ""

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

    def bound(self, most: int) -> int:
        """Return how many records a batch of one source may have, which would have `most` without a rate."""
        return most if self.rate is None else max(1, min(most, int(self.rate.per_second * BURST)))


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
    if isinstance(topics, str) or not topics:
        raise ValueError("write the main topics as a list with at least one name")
    if failure_text not in ("message", "none"):
        raise ValueError(f"failure_text: must be message or none, and it is {str(failure_text)[:40]}")
    retry = (ladder, levels, max_reconsume_times, rules, max_age, jitter)
    own = dict(zip(KEYS, (*retry, rate, group_rate), strict=True))
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
        unknown_topic=_named("unknown_topic", lambda text: read_duration(text, SHORTEST_ASKED, LONGEST), unknown_topic),
        failure_text=failure_text,
        tags=_named("tags", lambda tags: read_tags(tags, topics), tags or {}),
        tags_header=_named("tags_header", read_header, tags_header),
        own=own,
        **msgspec.structs.asdict(terms),
    )


def with_policy(rules: Rules, policy: Values) -> Rules:
    """Return the rules with the values of the group's policy over the job's own; keys that no job follows are ignored.

    Raises ValueError, with one sentence, if a value is not valid, a level's name is not allowed on Kafka, or the group
    keeps the order of its records.
    """
    if policy.get("ordered_ladder") is not None:
        raise ValueError(f"ordered_ladder: {ORDERED}")
    terms = read_terms({**rules.own, **{key: policy[key] for key in KEYS if key in policy}})
    build_names(rules.names.group, rules.topics, terms.delays, rules.names.template)
    return msgspec.structs.replace(rules, **msgspec.structs.asdict(terms))


# --- the configuration file -------------------------------------------------------------------------------------------

READ = """
import json, sys
from pathlib import Path
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.load import load_with_origins
try:
    read = load_with_origins(Path(sys.argv[1]), ["kafka.bootstrap.servers=b:1"], {})
except ConfigError as error:
    sys.exit(error.problems[0])
print(json.dumps(read.layers.tree, default=str))
"""
"""The program that prints the values of a file and its base, if they are good. The brokers of a query are elsewhere."""


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
        rules = build_rules(name=name, **_arguments(_file_values(Path(file))))
    except ValueError as fault:
        raise ValueError(f"{file}: {fault}") from None
    return msgspec.structs.replace(rules, file=str(Path(file).absolute()))


def _file_values(path: Path) -> Values:
    """Return the values of a file over those of its base. Raises ValueError if a sidecar would refuse them."""
    # In a process of its own, as for `redrive_rows`: a Spark job and the sidecar share no code.
    done = subprocess.run([sys.executable, "-P", "-c", READ, str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError((done.stderr.strip().splitlines() or ["its reader ended without a word"])[-1])
    values: Values = json.loads(done.stdout)
    return values


def _arguments(values: Values) -> dict[str, Any]:
    """Return the arguments of `build_rules` that are in a configuration."""
    retry, deliver = values.get("retry", {}), values.get("deliver", {})
    if deliver.get("order", "none") != "none":
        raise ValueError(f"deliver.order: {ORDERED}")
    if retry.get("ordered_ladder") is not None:
        raise ValueError(f"retry.ordered_ladder: {ORDERED}")
    if deliver.get("broadcast", False):
        raise ValueError("deliver.broadcast: a broadcast has no consumer group and no retries: read its topics")
    if retry.get("understand", []):
        raise ValueError("retry.understand: a Spark consumer knows the headers of no other system; leave it out")
    text = deliver.get("failure_text")
    if text is None or (deliver.get("mode") != "spark" and text != "none"):
        text = "message"
    topics = [{"name": entry} if isinstance(entry, str) else entry for entry in values["topics"]]
    if any(topic.get("drains") is not None for topic in topics):
        raise ValueError("topics: drains is for sidecars: Spark queries take each topic for itself; leave it out")
    return {
        "group": values["group"],
        "topics": [topic["name"] for topic in topics],
        "tags": {topic["name"]: topic.get("tags", "*") for topic in topics},
        "failure_text": text,
        **{key: retry[key] for key in (*RETRY_KEYS, "unknown_topic") if key in retry},
        **{key: deliver[key] for key in RATE_KEYS if key in deliver},
        **{key: values[key] for key in ("topic_prefix", "tags_header") if key in values},
    }


# --- the values -------------------------------------------------------------------------------------------------------

Times: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
Topic: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9._*?\[\]!-]{1,249}\Z")]
Reason: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9._*?\[\]!-]{1,64}\Z")]


class Formula(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ladder by a formula; what is UNSET has `Exponential`'s default."""

    initial: str | msgspec.UnsetType = msgspec.UNSET
    multiplier: Annotated[float, msgspec.Meta(ge=1, le=100)] = Exponential().multiplier
    max: str | msgspec.UnsetType = msgspec.UNSET


WrittenLadder: TypeAlias = str | tuple[str, ...] | Formula


class WrittenRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule of `retry.rules` as it is written; None is what the group has."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}\Z")]
    topics: Annotated[tuple[Topic, ...], msgspec.Meta(max_length=MOST_PATTERNS)] = ()
    reasons: Annotated[tuple[Reason, ...], msgspec.Meta(max_length=MOST_PATTERNS)] = ()
    ladder: WrittenLadder | None = None
    max_reconsume_times: Times | None = None
    max_age: str | None = None
    dead_letter: bool = False


class Written(msgspec.Struct, frozen=True):
    """The values of KEYS as they are written."""

    ladder: WrittenLadder
    levels: str | tuple[str, ...] | None
    max_reconsume_times: Times
    rules: Annotated[tuple[WrittenRule, ...], msgspec.Meta(max_length=MOST_RULES)]
    max_age: str | None
    jitter: Annotated[str, msgspec.Meta(pattern=r"^0?([0-4]?[0-9]|50)%\Z")]
    rate: str | None
    group_rate: str | None


class RetryTerms(msgspec.Struct, frozen=True):
    """What the values say: fields of `Rules`; delays and ages are ms, `jitter` is percent."""

    ladder: Ladder
    table: tuple[int, ...]
    delays: tuple[int, ...]
    max_reconsume_times: int
    retry_rules: tuple[RetryRule, ...]
    max_age: int | None
    jitter: int
    rate: Rate | None


def read_terms(values: Values) -> RetryTerms:
    """Return what values say that have all of KEYS. Raises ValueError with a sentence that names the key."""
    written = msgspec.convert({key: values[key] for key in KEYS}, Written)
    ladder = _named("ladder", read_ladder, written.ladder)
    max_age = _named("max_age", read_age, written.max_age)
    base = RetryRule("", (), (), ladder, written.max_reconsume_times, max_age)
    rules = _named("rules", lambda rules: read_rules(rules, base), written.rules)
    levels = written.levels
    spec: LevelsSpec = _named("levels", _delays, levels) if isinstance(levels, tuple) else levels
    delays = level_delays(spec, ladder, *(rule.ladder for rule in rules))
    rates = [_named(key, parse_rate, rate) for key in RATE_KEYS if (rate := getattr(written, key)) is not None]
    rate = min(rates, key=lambda rate: rate.per_second, default=None)
    jitter = int(written.jitter.removesuffix("%"))
    return RetryTerms(ladder, numbered(spec), delays, written.max_reconsume_times, rules, max_age, jitter, rate)


def _named(key: str, read: Any, value: object) -> Any:
    """Read a value; the sentence of a refusal begins with its key."""
    try:
        return read(value)
    except ValueError as fault:
        raise ValueError(f"{key}: {fault}") from None


def read_ladder(written: WrittenLadder) -> Ladder:
    """Return a ladder. Raises ValueError if one of its delays is none, or there is no such ladder."""
    if isinstance(written, str):
        return build_ladder(written)
    if isinstance(written, tuple):
        return build_ladder(_delays(written))
    default = Exponential()
    initial = default.initial if written.initial is msgspec.UNSET else _delay(written.initial)
    longest = default.max if written.max is msgspec.UNSET else _delay(written.max)
    return build_ladder(Exponential(initial, written.multiplier, longest))


def _delays(texts: Sequence[str]) -> tuple[int, ...]:
    return tuple(map(_delay, texts))


def _delay(text: str) -> int:
    return read_duration(text, SHORTEST_ASKED, LONGEST)


def read_duration(value: object, least: int, most: int) -> int:
    """Return the ms of a duration between two bounds. Raises ValueError for anything else."""
    ms = parse_duration(value) if isinstance(value, str) else None
    if ms is None or not least <= ms <= most:
        raise ValueError(f"{str(value)[:40]} is not a duration between {least // 1000}s and {most // 86_400_000}d")
    return ms


def read_age(value: object) -> int | None:
    """Return the ms of an age; None is no bound. Raises ValueError if it is none."""
    return None if value is None else read_duration(value, SHORTEST_ASKED, OLDEST)


def read_tags(value: object, topics: Sequence[str]) -> dict[str, frozenset[bytes] | None]:
    """Return the wanted tags of main topics, of which not all are wanted. Raises ValueError if one has no such form."""
    if not isinstance(value, Mapping) or not value.keys() <= set(topics):
        raise ValueError("must be expressions like TagA||TagB by main topic")
    for topic, tags in value.items():
        if not isinstance(tags, str) or re.fullmatch(TAGS_FORM, tags) is None or not tags.isprintable():
            raise ValueError(f"{topic}: must be * or tags joined by ||, like TagA||TagB, and it is {str(tags)[:40]}")
        check_once(tags)
    return {topic: wanted for topic, tags in value.items() if (wanted := parse_tags(tags)) is not None}


def read_header(value: object) -> str:
    """Return the name of a header. Raises ValueError if it is none."""
    if not isinstance(value, str) or re.fullmatch(HEADER_FORM, value) is None:
        raise ValueError(f"must be the name of a header, and it is {str(value)[:40]!r}")
    return value


def read_rules(written: Sequence[WrittenRule], group: RetryRule) -> tuple[RetryRule, ...]:
    """Return complete rules: what a rule leaves out is that of `group`. Raises ValueError if one is not valid."""
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
        ladder=group.ladder if rule.ladder is None else read_ladder(rule.ladder),
        max_reconsume_times=group.max_reconsume_times if times is None else times,
        max_age=group.max_age if age is None else age,
        dead_letter=rule.dead_letter,
        has_own_ladder=rule.ladder is not None,
    )
