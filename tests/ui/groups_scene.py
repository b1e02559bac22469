"""Twenty groups on one broker, each in another state, and the dashboard in front of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer

from reconsume.sidecar.settings import Settings, load
from reconsume.sidecar.settings.addresses import parse_listen
from reconsume.sidecar.ui.app import DashboardOptions
from reconsume.sidecar.ui.groups_app import GroupsDashboard
from reconsume.topics.durations import parse_duration
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold
from reconsume.topics.names import Kind
from reconsume.topics.policy_record import (
    PaceTold,
    ReleaseTold,
    SettlementRecord,
    SubscriptionRecord,
    instance_key,
    render_record,
    settlement_key,
)
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_specs, specs_of
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.sidecar.redrive import dead_letter
from tests.support.sidecar.running_api import Loop
from tests.ui.members import committed, member
from tests.ui.scene import TOKEN, Scene, wall

COUNT = 20
DELAY = parse_duration("10s")
NEVER, GONE, OUTAGE, MIXED, DEAD, HELD, WAITS = range(7)
"""Groups by what is special about them: never started; all pods stopped; in an outage; …"""
OLD_MS = 90_000


def fleet(bootstrap: str, token: str) -> list[GroupTopics]:
    """Create the topics of twenty groups in one request."""
    groups = [
        GroupTopics(bootstrap, f"fleet-{token}-{number:02}", (f"orders-{token}-{number:02}",), (DELAY,))
        for number in range(COUNT)
    ]
    create_specs(bootstrap, [spec for group in groups for spec in specs_of(group, 1, also=[Kind.POLICY])])
    return groups


def commit(group: GroupTopics) -> None:
    """Let the group have committed that nothing of its main topic is done."""
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group, "enable.auto.commit": False})
    try:
        until(lambda: committed(consumer, [group.main]), SECONDS, "the offset is committed")
    finally:
        consumer.close()


def heartbeat(group: GroupTopics, instance: str, version: str = "0.3.0", pace: PaceTold | None = None) -> None:
    """Let an instance say how it is."""
    release = ReleaseTold(version, "abc", "3.12", "2.16")
    state = pace or PaceTold("open", wall(), 1, 256)
    record = SubscriptionRecord({group.main: "*"}, wall(), state, release=release, labels={"team": "payments"})
    produce(group.bootstrap, group.names.policy, [Out(render_record(record), instance_key(instance))])


@contextmanager
def planted_fleet(bootstrap: str, token: str) -> Iterator[list[GroupTopics]]:
    """Twenty groups, of which the first are in a state each."""
    groups = fleet(bootstrap, token)
    for number, group in enumerate(groups):
        if number != NEVER:
            commit(group)
        if number not in (NEVER, GONE):
            heartbeat(group, "pod-0")
    old = wall() - OLD_MS
    produce(bootstrap, groups[GONE].main, [Out(b"undelivered", timestamp=old)] * 3)
    heartbeat(groups[OUTAGE], "pod-0", pace=PaceTold("outage", wall() - 60_000, 1, 1, "http-503", cause="failing"))
    heartbeat(groups[MIXED], "pod-1", "0.3.1")
    letters = [dead_letter(groups[DEAD], number, b"x", reason="bad-sku") for number in range(3)]
    produce(bootstrap, groups[DEAD].dlq, letters)
    ident = f"{groups[DEAD].main}:0:1"
    dismissal = SettlementRecord(0, 2, "commit", "seen", "ann", wall(), "n-1", f"{groups[DEAD].dlq}:0:1")
    produce(bootstrap, groups[DEAD].names.policy, [Out(render_record(dismissal), settlement_key(ident))])
    hold = HoldRecord(wall(), wall() + 3_600_000, "migration", "ann", all=True)
    produce(bootstrap, groups[HELD].names.policy, [Out(render_hold(hold), hold_key("h1"))])
    produce(bootstrap, next(iter(groups[WAITS].levels)), [b"later", b"later"])
    with ExitStack() as stack:
        for number in (OUTAGE, MIXED, DEAD):
            stack.enter_context(member(groups[number], "pod-0"))
        yield groups


def settings_of_many(folder: Path, bootstrap: str, pattern: str, more: str = "") -> tuple[Path, Settings]:
    """A configuration with nothing but Kafka and the groups."""
    file = folder / "many.yaml"
    file.write_text(f"kafka: {{bootstrap.servers: '{bootstrap}'}}\nui: {{groups: ['{pattern}']}}\n{more}")
    return file, load(file, (), {}, many=True)


@contextmanager
def groups_dashboard(
    settings: Settings, group: GroupTopics, folder: Path, *, token: bool = True, far: bool = False, base_path: str = ""
) -> Iterator[Scene]:
    """Serve the dashboard of many groups; `group` is the one that a `Scene` names."""
    tokens, audit = folder / "token", folder / "audit.jsonl"
    tokens.write_text(f"{TOKEN}\n")
    listen = parse_listen("0.0.0.0:0" if far else "127.0.0.1:0")
    wanted = DashboardOptions(listen, tokens if token else None, audit, base_path=base_path)
    loop = Loop()
    served = GroupsDashboard(settings, wanted)
    try:
        loop.run(served.start)
        yield Scene(group, f"http://127.0.0.1:{served.server.port}", audit)
    finally:
        loop.run(served.stop)
        loop.close()


def series(text: str) -> Mapping[tuple[str, str], float]:
    """The metrics of groups, by name and group."""
    rows = [line.partition(" ") for line in text.splitlines() if line.startswith("reconsume_group")]
    return {(row[0].partition("{")[0], row[0].split('"')[1]): float(row[2]) for row in rows}
