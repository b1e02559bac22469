"""Event topics without a sidecar, and the view's topics as their readers see them (independent of Spark's code)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.events import RANKS, Event, State, encode_event
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import Source, group_specs
from reconsume.topics.view_position import as_java_prints, render_position
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_specs
from tests.support.kafka.topic_io import SECONDS, Out, Row, dump, produce

Value = Mapping[str, Any]
FAILURES = (State.WAITING_RETRY, State.DLQ)
KINDS = (Kind.EVENTS, Kind.VIEW)


def create_view_topics(bootstrap: str, group: str, kinds: Collection[Kind] = KINDS) -> Names:
    """The topics, or some of them, that the view's job reads and writes for a group."""
    names = Names(group)
    specs = group_specs(names, [Source("orders", 1, 1, 1_048_588, 1)], (1_000,), rows=True)
    create_specs(bootstrap, [spec for spec in specs if spec.kind in kinds])

    def readable() -> bool:
        # A broker may be named as a partition's leader a moment before it knows.
        with suppress(KafkaException):
            for topic in (getattr(names, kind) for kind in kinds):
                dump(bootstrap, topic)  # a job that runs may have written into it already
            return True
        return False

    until(readable, SECONDS, f"the topics of {group} can be read")
    return names


def event(group: str, number: int, state: State = State.WAITING_RETRY, times: int = 1, **changes: Any) -> Event:
    """An event of now about record `number` of the topic orders."""
    at = time.time_ns() // 1_000_000
    event = Event(
        group=group,
        id=f"orders:0:{number}",
        state=state,
        times=times,
        redrives=0,
        level="1s",
        due=at + 1_000,
        at=at,
        reason="http-500",
        topic="orders",
        partition=0,
        offset=number,
        timestamp=at,
        first_failed_at=at,
        instance=f"pod-{uuid.uuid4().hex[:4]}",
    )
    return Event(**{**{name: getattr(event, name) for name in event.__struct_fields__}, **changes})


def tell(bootstrap: str, events: Iterable[Event]) -> None:
    """Write events of one group as a sidecar does: the id is the key."""
    events = list(events)
    produce(bootstrap, Names(events[0].group).events, [Out(encode_event(e), e.id.encode()) for e in events])


def commit_as_job(bootstrap: str, names: Names) -> None:
    """Say that all events are read, as the Spark job does."""
    cluster = Cluster({"bootstrap.servers": bootstrap})
    topics = cluster.find_topics([names.events, names.view])
    metadata = render_position(*(as_java_prints(topics[name].id) for name in (names.events, names.view)))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": names.view_group})
    ends = cluster.spans(topics[names.events].all_partitions)
    told = [TopicPartition(*partition, span.end, metadata) for partition, span in ends.items()]
    consumer.commit(offsets=told, asynchronous=False)
    consumer.close()


def view_of(bootstrap: str, group: str) -> dict[str, Value]:
    """The view by id as its readers keep it: the greater place, then the later update, then the later offset."""
    kept: dict[str, tuple[tuple[Any, ...], Value]] = {}
    for row in dump(bootstrap, Names(group).view):
        value = json.loads(row.value or b"null")
        place = (value.get("cycle", 0), value["redrives"], value["times"], RANKS[State(value["state"])], value["at"])
        order = (*place, value["updated_at"], row.offset)
        assert (row.key or b"").decode() == value["id"]
        if value["id"] not in kept or order > kept[value["id"]][0]:
            kept[value["id"]] = order, value
    return {identity: value for identity, (_, value) in kept.items()}


def folded(rows: Iterable[Row]) -> dict[str, Value]:
    """What the view must be, from all records of an events topic."""
    by_id: dict[str, list[tuple[Value, Row]]] = {}
    for row in rows:
        value = json.loads(row.value or b"null")
        by_id.setdefault(value["id"], []).append((value, row))
    return {identity: present(told) for identity, told in by_id.items()}


def present(told: list[tuple[Value, Row]]) -> Value:
    """One record's row of the view, from its events in any order."""

    def place(one: tuple[Value, Row]) -> tuple[Any, ...]:
        value, row = one
        return (
            *(value.get("cycle", 0), value["redrives"], value["times"], RANKS[State(value["state"])], value["at"]),
            *(row.partition, row.offset),
        )

    value, row = max(told, key=place)
    failed = value["at"] if value["state"] in FAILURES else value["first_failed_at"]
    lacking = {"last_failed_at": failed, "retries": value["times"]}
    return {**lacking, **value, "updated_at": max(value["at"], row.timestamp)}


COUNTED = {"WAITING_RETRY": "waiting", "COMMIT": "committed", "DLQ": "dead", "REDRIVEN": "redriven"}


def summed(rows: Iterable[Row]) -> dict[str, Value]:
    """What the sums must be, from all records of an events topic."""
    sums: dict[str, Any] = {}
    for row in rows:
        value = json.loads(row.value or b"null")
        minute = value["at"] // 60_000 * 60_000
        key = f"{minute}|{value['topic']}|{value['level'] or ''}|{value['reason']}"
        same = {name: value[name] for name in ("v", "group", "topic", "level", "reason")}
        sums.setdefault(key, {**same, "minute": minute, **dict.fromkeys(COUNTED.values(), 0)})
        sums[key][COUNTED[value["state"]]] += 1
    return sums
