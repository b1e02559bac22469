"""A group with much going on, planted on a real broker, and the dashboard in front of it, served for a browser."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from reconsume.sidecar.settings import Settings, load
from reconsume.sidecar.settings.addresses import parse_listen
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.ui import pages
from reconsume.sidecar.ui.app import Dashboard, DashboardOptions
from reconsume.topics.durations import render_duration
from reconsume.topics.events import Event, State, encode_event
from reconsume.topics.policy_record import PaceTold, PolicyRecord, SubscriptionRecord, instance_key, render_record
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.kafka.view_topics import event
from tests.support.sidecar.redrive import dead_letter
from tests.support.sidecar.running_api import Loop
from tests.support.view_rows import out, view_row
from tests.ui.hostile import ATTACKS, LONG, TOGETHER
from tests.ui.members import commit

TOKEN = "a-token-for-tests"
DELAYS = (10_000, 30_000, 60_000, 300_000, 1_800_000)
REASONS = ("http-503", "http-503", "http-503", "http-503", "timeout", "bad-sku", "connection-reset")
WHY = ("http-503: Service Unavailable", "bad-sku: A-17 is not sold", "timeout: no answer in 15m")
"""Why its dead letters died."""
VALUE = b'{"order": 1024, "sku": "A-17", "lines": [{"sku": "A-17", "count": 2}], "note": "leave at the door"}'
STORY = "3:1024"
"""The end of the id whose journey is told."""
RUNNING = "billing-7c9f-x2x"
"""The instance that is a member of the group."""
AWAY = "billing-7c9f-k8m"
"""The instance whose service is away."""


@dataclass(frozen=True)
class Scene:
    """The group, and where its dashboard is."""

    group: GroupTopics
    url: str
    audit: Path

    @property
    def story(self) -> str:
        """The id of the record with the long journey."""
        return f"{self.group.main}:{STORY}"


def wall() -> int:
    return time.time_ns() // 1_000_000


def plant(group: GroupTopics, *, hostile: bool = True) -> None:
    """Fill all topics that the dashboard reads; `hostile`: also with what would hurt a careless page."""
    create_group(group, partitions=1, also=UNUSED)
    names, now, attacks = group.names, wall(), TOGETHER if hostile else ()
    produce(group.bootstrap, names.view, [out(row) for row in view_rows(group, now, attacks)])
    told = [*counted(group, now), *journey(group, now), *hostile_journey(group, now, attacks)]
    produce(group.bootstrap, names.events, [Out(encode_event(one), one.id.encode()) for one in told])
    produce(group.bootstrap, group.dlq, letters(group, now, attacks))
    produce(group.bootstrap, names.policy, policies(group, now, hostile=hostile))
    produce(group.bootstrap, names.ready, [b"waits"] * 12)
    commit(group)


def view_rows(group: GroupTopics, now: int, attacks: Sequence[str]) -> Iterator[object]:
    chance = random.Random(7)
    for number in range(420):
        delay = chance.choice((*DELAYS, *DELAYS[:2]))
        failed = now + 12_000 - chance.randrange(0, min(delay, 240_000))
        yield view_row(
            number, group=group.group, id=f"{group.mains[number % 3 == 0]}:{number % 4}:{number}",
            topic=group.mains[number % 3 == 0], level=render_duration(delay), due=failed + delay,
            reason=chance.choice(REASONS), last_failed_at=min(failed, now), at=failed, times=1 + number % 5,
        )  # fmt: skip
    for number in range(600, 660):
        state = (State.COMMIT, State.COMMIT, State.DLQ, State.REDRIVEN)[number % 4]
        reason, _, text = WHY[number % 3].partition(": ") if state is State.DLQ else ("http-503", "", "")
        yield view_row(
            number, state, group=group.group, id=f"{group.main}:1:{number}", topic=group.main, reason=reason,
            text=text, at=now - 600_000 + 5_000 * (number - 600), last_failed_at=now - 600_000,
        )  # fmt: skip
    for number, attack in enumerate(attacks):
        yield view_row(
            number, group=group.group, id=f"{attack}:{number}", topic=attack, level=attack, reason=attack,
            instance=attack, due=now + 1_000 * number, last_failed_at=now - 200_000,
        )  # fmt: skip
    for number, state in enumerate((State.WAITING_RETRY, State.DLQ) if attacks else ()):
        yield view_row(
            number, state, group=group.group, id=f"{LONG}:0:{number}", topic=LONG, reason=LONG[:120], text=LONG,
            level=LONG if state is State.WAITING_RETRY else None, instance=LONG, last_failed_at=now - 200_000,
        )  # fmt: skip
    yield view_row(
        1024, State.COMMIT, group=group.group, id=f"{group.main}:{STORY}", topic=group.main, partition=3,
        reason="http-503", times=1, redrives=1, retries=4, first_failed_at=now - 7_200_000,
        last_failed_at=now - 320_000, instance=RUNNING,
    )  # fmt: skip


def counted(group: GroupTopics, now: int) -> Iterator[Event]:
    """Events of the last hour, which only the sums show."""
    chance = random.Random(3)
    for ago in range(58):
        more = 6 if ago < 12 else 1
        counts = {State.WAITING_RETRY: more * chance.randrange(3, 9), State.COMMIT: chance.randrange(2, 9)}
        for state, count in (counts | {State.DLQ: chance.randrange(0, 3)}).items():
            for number in range(count):
                yield event(
                    group.group, number, state, id=f"{group.main}:7:{number}", topic=group.main, level="10s",
                    at=now - ago * 60_000,
                )  # fmt: skip


def journey(group: GroupTopics, now: int) -> Iterator[Event]:
    """Three retries, dead, brought back, one more failure, done."""
    at, first = now - 7_200_000, now - 7_200_000
    steps = (
        (State.WAITING_RETRY, 1, 0, 10_000, "http-503", 10_400), (State.WAITING_RETRY, 2, 0, 60_000, "timeout", 75_000),
        (State.WAITING_RETRY, 3, 0, 300_000, "http-503", 300_900), (State.DLQ, 3, 0, 0, "http-503", 6_400_000),
        (State.REDRIVEN, 0, 1, 0, "http-503", 800), (State.WAITING_RETRY, 1, 1, 10_000, "http-503", 10_200),
        (State.COMMIT, 1, 1, 0, "", 0),
    )  # fmt: skip
    for state, times, redrives, delay, reason, then in steps:
        yield event(
            group.group, 1024, state, times, id=f"{group.main}:{STORY}", topic=group.main, partition=3,
            redrives=redrives, level=render_duration(delay) if delay else None, due=at + delay if delay else 0,
            at=at, reason=reason, first_failed_at=first, instance=RUNNING,
        )  # fmt: skip
        at += then


def hostile_journey(group: GroupTopics, now: int, attacks: Sequence[str]) -> Iterator[Event]:
    for number, attack in enumerate(attacks):
        yield event(
            group.group, number, State.DLQ, id=f"{LONG}:0:1", topic=LONG, level=None, due=0, reason=LONG[:120],
            text=LONG, instance=LONG, at=now - 60_000 + number, first_failed_at=now - 60_000,
        )  # fmt: skip
        yield event(
            group.group, number, times=number, id=f"{TOGETHER[0]}:0", topic=attack, level=attack, reason=attack,
            text=attack, instance=attack, at=now - 60_000 + number, due=now + 60_000, first_failed_at=now - 60_000,
        )  # fmt: skip


def letters(group: GroupTopics, now: int, attacks: Sequence[str]) -> Iterator[Out]:
    for number in range(9):
        yield dead_letter(
            group, 2_000 + number, VALUE, key=b"customer-%d" % number, reason=WHY[number % 3],
            redrives=(number == 5 and 3) or 0, own=(("content-type", b"application/json"),),
            at=now - 90_000 * (9 - number),
        )  # fmt: skip
    everything = "\n".join(ATTACKS).encode()
    own = tuple((attack.replace("\x00", ""), attack.encode()) for attack in ATTACKS)
    for number, attack in enumerate(attacks):
        value = (everything, b'{"note": "<script>window.hurt=1</script>"}', b"\xff<script>", None, b"")[number]
        yield dead_letter(
            group, 3_000 + number, value, key=everything, own=own, reason=f"{attack[:60]}: {attack}",
            at=now - 900_000 + number,
        )  # fmt: skip
    if attacks:
        yield dead_letter(
            group, 4_000, LONG.encode() * 9, key=LONG.encode(), own=((LONG, LONG.encode()),), topic=LONG,
            reason=f"{LONG[:120]}: {LONG}", at=now - 950_000,
        )  # fmt: skip


def policies(group: GroupTopics, now: int, *, hostile: bool) -> Sequence[Out]:
    author, before = (ATTACKS[0], ATTACKS[1]) if hostile else ("bob@laptop", "15m")
    records = (
        PolicyRecord({"max_reconsume_times": 16}, "alice@ops-1", now - 86_400_000 * 3, {}),
        PolicyRecord({"max_reconsume_times": 5}, "bob@laptop", now - 86_400_000, {"max_reconsume_times": 16}),
        PolicyRecord({"max_reconsume_times": 5, "timeout": "30s"}, author, now - 7_200_000, {"timeout": before}),
        PolicyRecord({"max_reconsume_times": 5, "timeout": "30s", "concurrency": 64}, "alice@ops-1", now - 3_600_000,
                     {"concurrency": 256}),
    )  # fmt: skip
    told = [Out(render_record(record), b"policy") for record in records]
    return [*told, *heartbeats(group, now, hostile=hostile)]


LATE = {AWAY: 94_000, ATTACKS[1]: 2**62}
"""ms by which a retry of theirs is overdue, by instance."""


def heartbeats(group: GroupTopics, now: int, *, hostile: bool) -> Sequence[Out]:
    """What the instances tell of themselves; in three minutes they pass for silent."""
    ours = dict.fromkeys(group.mains, "*")
    busy = PaceTold("open", now - 7_200_000, 31, 256)
    away = PaceTold("outage", now - 95_000, 1, 1, "connection refused by 127.0.0.1:8080")
    instances = [(RUNNING, 12_000, ours, busy), (AWAY, 31_000, ours, away), ("billing-6b1d-old", 900_000, ours, None)]
    if hostile:
        evil = PaceTold(ATTACKS[0], 2**62, 2**62, 0, "".join(ATTACKS)[:300])
        instances.append((ATTACKS[1], 5_000, {ATTACKS[0]: ATTACKS[2]}, evil))
    return [
        Out(
            render_record(SubscriptionRecord(topics, now - ago, pace, overdue=LATE.get(name, 0))),
            instance_key(name),
        )
        for name, ago, topics, pace in instances
    ]


def settings_of(group: GroupTopics, folder: Path, *, in_place: bool = False) -> Settings:
    """The group's configuration. `in_place`: it keeps the order of keys, without queues."""
    file = folder / "reconsume.yaml"
    levels = ", ".join(render_duration(delay) for delay in group.delays)
    order = "key" if group.queued or in_place else "none"
    retry = "{ordered_ladder: [10s]}" if group.queued else f"{{levels: [{levels}], ladder: [{levels}]}}"
    file.write_text(
        f"group: {group.group}\ntopics: [{', '.join(group.mains)}]\nkafka: {{bootstrap.servers: '{group.bootstrap}'}}\n"
        f"deliver: {{url: 'http://127.0.0.1:1/', order: {order}}}\nretry: {retry}\n"
        "view: {source: spark}\n"
    )
    return load(file, (), {})


@contextmanager
def dashboard(
    group: GroupTopics,
    folder: Path,
    *,
    token: bool = True,
    listen: str = "127.0.0.1:0",
    read: Literal["open", "signed-in"] = "open",
    base_path: str = "",
    in_place: bool = False,
) -> Iterator[Scene]:
    """Serve the group's dashboard."""
    tokens, audit = folder / "token", folder / "audit.jsonl"
    tokens.write_text(f"{TOKEN}\n")
    settings = settings_of(group, folder, in_place=in_place)
    wanted = DashboardOptions(parse_listen(listen), tokens if token else None, audit, read=read, base_path=base_path)
    loop = Loop()
    served = Dashboard(settings, build_policy(settings, "ui"), wanted)
    try:
        loop.run(served.start)
        with patch.object(pages, "FAILED_WITHIN_MS", 900_000):  # on a slow machine the failures must not pass
            yield Scene(group, f"http://127.0.0.1:{served.server.port}", audit)
    finally:
        loop.run(served.stop)
        loop.close()
