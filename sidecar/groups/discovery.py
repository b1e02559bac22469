"""Find groups by their policy topics, and work out a group's configuration from what is in Kafka.

A configuration with `ui.groups` names groups, or globs, and has no `group` and no `topics`. Whoever serves or asks
about one of these groups (`survey.py`, `reconsume ui`, a command with `--group`) needs its settings all the same. They
come from Kafka:

- the main topics and their tags from the heartbeats; without any (every instance has stopped cleanly) from the offsets
  that the consumer group has committed, or from the names of queue topics and DLQs;
- `topic_prefix`, the levels, the order of keys and the source of the view from the names of the topics that exist.

What is in no topic, such as a timeout, has its default here: nothing that only reads needs it, and a policy of the
group applies over it as everywhere.

`settings_of_group` and `group_named` ask Kafka and block; the rest is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal

from reconsume.sidecar.errors import ConfigError, ContractError
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.queries import heartbeats_with_queries
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import ABSENT, suggestion
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.load import validate
from reconsume.topics.durations import render_duration
from reconsume.topics.names import TEMPLATES, Names, canonical_delay, group_fault

POLICY_TOPIC = Names("").policy
"""How the names of all policy topics end."""
MOST_GROUPS = 200
"""Groups that one process watches; the first ones by name."""
MOST_PARTITIONS = 20_000
"""Partitions of which it is asked whether a group has committed something there."""
CLIENT = "reconsume-groups"

NO_SERVICE = "http://127.0.0.1:1/"
"""Stands for the address of the service, which only its own pod reaches."""

Partitions = Mapping[str, Collection[PartitionName]]
"""The topics that exist, each with its partitions that have a leader."""


def groups_among(topics: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the groups that `wanted` names, sorted: those whose policy topic exists, and each name that is no glob."""
    every = {name.removesuffix(POLICY_TOPIC) for name in topics if name.endswith(POLICY_TOPIC)}
    chosen = {name for name in every if name and not group_fault(name) and is_wanted(name, wanted)}
    return tuple(sorted(chosen | {name for name in wanted if not is_glob(name)}))


def is_wanted(group: str, wanted: Iterable[str]) -> bool:
    """Return whether one of the names or globs is that of the group."""
    return any(fnmatchcase(group, pattern) for pattern in wanted)


def is_glob(pattern: str) -> bool:
    """Return whether a name of `ui.groups` means any number of groups."""
    return any(sign in pattern for sign in "*?[")


def main_topics(names: Names, state: ControlState, topics: Partitions, committed: Iterable[str]) -> dict[str, str]:
    """Return the main topics of a group, each with its tags.

    `committed`: the topics in which the consumer group has committed something; needed only without heartbeats, or
    where a heartbeat names some of its topics only.
    """
    tags = {
        topic: text for beat in heartbeats_with_queries(state).values() for topic, text in beat.subscription.items()
    }
    queue_prefix, dlq_suffix = f"{names.group}-ORDERED-", f"-{names.group}-DLQ"
    if not tags:
        others = [topic for topic in committed if not is_own(names.group, topic)]
        others += [name.removeprefix(queue_prefix) for name in topics if name.startswith(queue_prefix)]
        others += [name.removesuffix(dlq_suffix) for name in topics if name.endswith(dlq_suffix)]
        tags = dict.fromkeys(others, "*")
    elif is_cut(state):
        tags |= {topic: "*" for topic in committed if topic not in tags and not is_own(names.group, topic)}
    return {topic: tags[topic] for topic in sorted(tags) if topic in topics}


def is_cut(state: ControlState) -> bool:
    """Return whether a heartbeat has no room for all topics of its instance."""
    return any(beat.subscribed for beat in heartbeats_with_queries(state).values())


def is_own(group: str, topic: str) -> bool:
    """Return whether a topic has a name that the group gives to its own topics, with either prefix."""
    return topic.startswith((f"{group}-RETRY", f"{group}-DLQ", f"{group}-ORDERED-")) or any(
        mark in topic for mark in (f"-{group}-RETRY-", f"-{group}-DLQ", f"-{group}-ORDERED")
    )


def layout_of(
    group: str, mains: Mapping[str, str], topics: Partitions, mode: Literal["push", "relay"] = "push"
) -> dict[str, object]:
    """Return the settings of a group that the names of its topics tell, as they are written in YAML."""
    per_topic = Names(group, TEMPLATES[1])
    is_per_topic = Names(group).dlq("") not in topics and any(per_topic.dlq(main) in topics for main in mains)
    names = per_topic if is_per_topic else Names(group)
    delays = [render_duration(delay) for delay in sorted(set(delays_in(names, mains, topics)))]
    retry: dict[str, object] = {"levels": delays, "ladder": delays} if delays else {}
    if queues := any(queue in topics for queue in names.queues_of(mains)):
        retry = {"ordered_ladder": delays or ["10s"]}
    return {
        "group": group,
        "topics": [{"name": topic, "tags": tags} for topic, tags in mains.items()],
        "topic_prefix": names.template,
        "retry": retry,
        "deliver": {"mode": mode}
        if mode == "relay"
        else {"url": NO_SERVICE, "order": "key" if queues or not delays else "none"},
        "view": {"source": "spark" if names.view in topics else "events"},
    }


def delays_in(names: Names, mains: Iterable[str], topics: Iterable[str]) -> Iterator[int]:
    """Yield the delay (ms) of each level topic that exists."""
    for prefix in {f"{names.prefix(main)}-RETRY-" for main in mains}:
        yield from filter(None, (canonical_delay(name, prefix) for name in topics))


def settings_from(base: Settings, layout: Mapping[str, object]) -> Settings:
    """Return the settings of a group: what its topics tell, and Kafka, dashboard and operators from `base`.

    Raises ConfigError.
    """
    made, faults = validate({**layout, "kafka": {"bootstrap.servers": "unused:1"}})
    if made is None:
        raise ConfigError([f"{layout['group']}: {fault.text}" for fault in faults])
    shared = {name: getattr(base, name) for name in ("kafka", "ui", "operators", "tracing", "log", "api")}
    return replace(made, **shared, configured=frozenset())


def committed_topics(cluster: Cluster, group: str, topics: Partitions) -> frozenset[str]:
    """Return the topics, other than the group's own, in which a consumer group has committed something.

    Raises BrokerError.
    """
    others = [one for name, partitions in sorted(topics.items()) if not is_own(group, name) for one in partitions]
    return frozenset(topic for topic, _ in cluster.committed(group, others[:MOST_PARTITIONS]))


def found_settings(base: Settings, group: str, state: ControlState, topics: Partitions, cluster: Cluster) -> Settings:
    """Return the settings of a group by its control log and topics. Raises BrokerError, ContractError, ConfigError."""
    names = Names(group)
    mains = main_topics(names, state, topics, ())
    if not mains or is_cut(state):
        mains = main_topics(names, state, topics, committed_topics(cluster, group, topics))
    if not mains:
        raise ContractError(f"{group}: never started, so its main topics are not known")
    modes = {beat.mode for beat in state.beats.known().values() if beat.mode}
    return settings_from(base, layout_of(group, mains, topics, "relay" if modes == {"relay"} else "push"))


def settings_of_group(base: Settings, group: str) -> Settings:
    """Return the settings of one of the groups of `ui.groups`, by what is in Kafka.

    Raises ConfigError if it is none of them, and BrokerError or ContractError if Kafka does not say what it is.
    """
    cluster = Cluster(base.kafka, CLIENT)
    topics = cluster.partitions_by_topic()
    known = groups_among(topics, base.ui.groups)
    if not is_wanted(group, base.ui.groups):
        question = suggestion(group, known)
        raise ConfigError([f"--group {group}: is none of ui.groups{f'; {question}' if question else ''}"])
    names = Names(group)
    if names.policy not in topics:
        question = suggestion(group, known)
        raise ContractError(f"{names.policy}: {ABSENT}{f'; {question}' if question else ''}")
    state = ControlLog(cluster, names).read()
    return found_settings(base, group, state, topics, cluster)
