"""A record that is retried in place is named where an operator looks, and what a heartbeat says is of its moment."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

from reconsume.topics.names import Kind
from reconsume.topics.policy_record import InstanceHeard, SubscriptionRecord, parse_record
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.policy import set_policy, with_policy

SECONDS = 60.0
SOON = 30.0
"""Seconds within which a change is in a heartbeat: less than the 60 between two that bring nothing new."""
AT_ONCE = 5.0
"""Seconds: two between two looks, one between two heartbeats, and what a busy machine adds."""
FAILURES = 20


def heartbeats(group: GroupTopics) -> list[SubscriptionRecord]:
    """What the instances have said, in its order."""
    heard = [parse_record(row.key, row.value) for row in dump(group.bootstrap, group.names.policy)]
    return [one.record for one in heard if isinstance(one, InstanceHeard) and one.record is not None]


def test_the_record_that_blocks_its_key_is_named_until_a_ladder_takes_it(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given a key whose first record fails in place, when a ladder begins, then heartbeats soon name it no more."""
    group = create_group(replace(new_group(), delays=(), queued=True), 1, also=(Kind.POLICY, Kind.VIEW))
    service = start_service(by_name({"poison": (FAIL,)}))
    ordered = {"order": "key", "outage_failures": None}
    sidecar = start_sidecar(group, service.url, overrides={"deliver": ordered, "retry": {"ordered_ladder": None}})
    produce(group.bootstrap, group.main, [Out(f"{name}:0".encode(), b"ada") for name in ("poison", "good")])
    ident = f"{group.main}:0:0"
    sidecar.until(lambda: any(one.in_place for one in heartbeats(group)), SECONDS, "a heartbeat names the record")

    [head] = next(one.in_place for one in reversed(heartbeats(group)) if one.in_place)
    assert (head.id, head.reason, head.times > 0) == (ident, "http-500", True)
    [shown] = [one["in_place"] for one in sidecar.status()["partitions"] if one["topic"] == group.main]
    assert (shown["id"], shown["times"] >= head.times) == (ident, True)
    assert sidecar.metric(f'reconsume_blocked_keys{{topic="{group.main}"}}') == 1
    assert ident in sidecar.wait_log("1 key is blocked by failures")
    command = {"deliver": {"url": "http://127.0.0.1:1/", **ordered}, "view": {"source": "events"}, "retry": {}}
    rows = {
        row["id"]: row
        for row in map(json.loads, for_group(tmp_path, group, "find", "--key", "ada", **command).stdout.splitlines())
    }
    assert rows[ident]["why"].startswith("retried in place: ")
    assert "the last with http-500" in rows[ident]["why"]
    [alone] = map(json.loads, for_group(tmp_path, group, "retries", "show", ident, **command).stdout.splitlines())
    assert "retried in place: " in alone["why"]
    listed = for_group(tmp_path, group, "retries", "list", "--blocked", **command)
    assert [json.loads(line)["id"] for line in listed.stdout.splitlines()] == [ident], listed.stderr

    set_policy(group, ordered_ladder=["1h"])
    sidecar.until(lambda: not heartbeats(group)[-1].in_place, SOON, "the heartbeat is as new as the ladder")
    assert heartbeats(group)[-1].retried_in_place == 0


def test_the_first_blocked_key_and_the_last_free_one_are_told_at_once(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(replace(new_group(), delays=(), queued=True), 1, also=(Kind.POLICY, Kind.VIEW))
    is_repaired = threading.Event()
    service = start_service(lambda request: OK if is_repaired.is_set() or request.value != b"poison" else FAIL)
    overrides = {
        "deliver": {"order": "key", "outage_failures": None},
        "retry": {"ordered_ladder": None, "ordered_interval": "200ms"},
    }
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    sidecar.until(lambda: heartbeats(group), SECONDS, "it has said that it runs")
    produce(group.bootstrap, group.main, [Out(b"poison", b"ada"), Out(b"good", b"bob")])
    sidecar.until(lambda: len(service.ledger.deliveries()) >= 4, SECONDS, "the third failure of the record")
    sidecar.until(lambda: heartbeats(group)[-1].in_place, AT_ONCE, "a heartbeat names it")
    is_repaired.set()
    sidecar.until(lambda: len(service.ledger.taken()) == 2, SECONDS, "both are taken")
    sidecar.until(lambda: not heartbeats(group)[-1].in_place, AT_ONCE, "a heartbeat names nothing any more")
    assert sidecar.metric(f'reconsume_blocked_keys{{topic="{group.main}"}}') == 0


def test_the_first_heartbeat_of_an_outage_has_the_failures_that_made_it(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(lambda _request: FAIL)
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"outage_failures": FAILURES}})
    sidecar.until(lambda: heartbeats(group) and sidecar.status()["policy"], SECONDS, "it has said that it runs")
    produce(group.bootstrap, group.main, [b"order %d" % number for number in range(4 * FAILURES)])

    def of_outage() -> SubscriptionRecord | None:
        return next((one for one in heartbeats(group) if one.pace is not None and one.pace.cause == "failing"), None)

    first = sidecar.until(of_outage, SECONDS, "a heartbeat says that all fails")
    assert first is not None
    assert first.sums is not None
    [sums] = first.sums.failures
    assert (sums.failed >= FAILURES, sums.failed) == (True, sums.attempts)
