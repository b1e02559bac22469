"""Recognise the level topics of main topics that left the configuration, where each main topic has its own levels.

With the prefix `{topic}-{group}` the name of a level says its main topic. But one name can be read in several ways:
`x-a-b-RETRY-1s` is a level of topic `x-a` and group `b`, of topic `x` and group `a-b`, and of any topic of the group
`x-a-b`. So a name alone is not proof. It counts as this group's own if no other group that it could belong to has
topics in the cluster. Else only this group's committed offsets on that topic prove it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from reconsume.topics.names import Kind, Names, Role


class RemovedLevel(msgspec.Struct, frozen=True):
    """A level topic of a main topic that left the configuration. `others`: the groups that it may belong to instead."""

    name: str
    topic: str
    delay: int
    others: tuple[str, ...]


def removed_levels(names: Names, mains: Collection[str], there: Collection[str]) -> tuple[RemovedLevel, ...]:
    """Return the topics in `there`, sorted, whose names are levels of this group for a topic that is not in `mains`.

    `there`: the names of all topics of the cluster.
    """
    roles = ((name, removed_role(names, name, mains)) for name in there if "-RETRY-" in name)
    return tuple(
        RemovedLevel(name, role.topic, role.delay, tuple(_others(names, role.topic, there)))
        for name, role in sorted(roles, key=lambda pair: pair[0])
        if role is not None and role.topic is not None and role.delay is not None
    )


def removed_queues(names: Names, mains: Collection[str], there: Collection[str]) -> dict[str, str]:
    """Return the topic of each queue in `there` that is none of `mains` with this prefix, sorted by name.

    By its name alone a queue may be another group's.
    """
    present, before, behind = names.queues_of(mains), f"{names.group}-ORDERED-", f"-{names.group}-ORDERED"
    queues = dict[str, str]()
    for name in sorted(name for name in there if "-ORDERED" in name and name not in present):
        if name.startswith(before):
            queues[name] = name.removeprefix(before)
        elif name.endswith(behind):
            queues[name] = name.removesuffix(behind)
    return queues


def removed_role(names: Names, name: str, mains: Collection[str]) -> Role | None:
    """Return the meaning of a name as a level of a topic not in `mains`. None if it has not exactly this form."""
    prefix = name.rpartition("-RETRY-")[0]
    topic = prefix.removesuffix(f"-{names.group}")
    if not names.per_topic or topic == prefix or not topic or topic in mains:
        return None
    role = names.role(name, [topic])
    own = names.role(topic, mains) is not None  # no group consumes its own topics
    return None if own or role is None or role.kind is not Kind.LEVEL else role


def removed_topics(names: Names, levels: Collection[str], mains: Collection[str]) -> list[str]:
    """Return the topics that are not in `mains` and to which some of these levels belong, sorted."""
    roles = (removed_role(names, name, mains) for name in levels)
    return sorted({role.topic for role in roles if role is not None and role.topic is not None})


def _others(names: Names, topic: str, there: Collection[str]) -> Iterator[str]:
    """Yield the other groups to which a level of `topic` may belong, of those that have topics in the cluster."""
    prefix = names.prefix(topic)
    words = prefix.split("-")
    # Each split of the prefix into a topic and a group, and the whole of it as a group with the prefix {group}.
    for group in dict.fromkeys("-".join(words[first:]) for first in range(len(words))):
        other = Names(group)
        if group not in ("", names.group) and any(name in there for name in (other.ready, other.events, other.policy)):
            yield group
