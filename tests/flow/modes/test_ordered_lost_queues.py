"""A queue topic that is cut, deleted or recreated: what is gone is named, and nothing else is lost, or stands."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.faults.test_restarts_in_place import await_restart, restarts
from tests.flow.modes.test_ordered_park import put
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import SECONDS, create_topic, delete_topics, dump, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails


def queued(group: GroupTopics) -> GroupTopics:
    return create_group(replace(group, delays=(), queued=True), 1)


def ladder(wait: str) -> dict[str, dict[str, object]]:
    return {
        "deliver": {"order": "key", "outage_failures": None},
        "retry": {"ordered_ladder": [wait], "max_reconsume_times": 20},
    }


def cut(group: GroupTopics, below: int) -> None:
    """Lose what lies in the queue below an offset, as by retention."""
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for future in admin.delete_records([TopicPartition(group.queues[0], 0, below)]).values():
        future.result(SECONDS)


@pytest.mark.parametrize("wait", ["20s", pytest.param("35s", marks=pytest.mark.long)])
def test_of_a_queue_that_is_cut_only_what_is_gone_is_lost_and_its_key_goes_on(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, wait: str
) -> None:
    """Under a new owner; and, where the head is due so late that nobody has it at hand, under the one that runs."""
    group, service = queued(new_group()), start_service(BadFails())
    sidecar = start_sidecar(group, service.url, overrides=ladder(wait))
    (head,) = put(group, (b"bad", b"a"))
    sidecar.until(lambda: len(dump(group.bootstrap, group.queues[0])) == 1, 30, "the head waits")
    behind = put(group, (b"behind:1", b"a"), (b"behind:2", b"a"))
    sidecar.until(lambda: len(dump(group.bootstrap, group.queues[0])) == 3, 30, "the others wait behind it")
    (bad,) = put(group, (b"bad", b"b"))
    sidecar.until(lambda: len(dump(group.bootstrap, group.queues[0])) == 4, 30, "the head of another key waits")
    if wait == "20s":
        assert sidecar.stop().code == 0
    cut(group, dump(group.bootstrap, group.queues[0])[1].offset)
    if wait == "20s":
        sidecar.start()
    sidecar.until(lambda: all(service.ledger.of(origin) for origin in behind), 90, "what waited behind goes on")
    sidecar.until(lambda: len(service.ledger.of(bad)) > 1, 90, "the other head is tried again")
    assert "queue-lost" in sidecar.log()
    assert wait == "20s" or sidecar.metric(f'reconsume_records_lost_total{{topic="{group.main}"}}') == 1
    assert len(service.ledger.of(head)) == 1
    first, second = (service.ledger.of(origin) for origin in behind)
    assert [len(first), len(second)] == [1, 1]
    assert second[0].received >= (first[0].answered or 0)
    assert sidecar.stop().code == 0


def test_for_a_recreated_queue_the_process_restarts_and_the_next_one_keeps_the_order_of_what_comes(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group, bad = queued(new_group()), BadFails()
    service = start_service(bad)
    sidecar = start_sidecar(group, service.url, overrides=ladder("5s"))
    lost = put(group, (b"bad:1", b"a"), (b"behind:1", b"a"))
    sidecar.until(lambda: len(dump(group.bootstrap, group.queues[0])) >= 2, 30, "both wait in the queue")
    delete_topics(group.bootstrap, group.queues[0])
    create_topic(group.bootstrap, group.queues[0], 1)
    await_restart(sidecar, 1)
    assert restarts(sidecar) == ["queue-topic"]
    new = put(group, (b"bad:2", b"a"), (b"behind:2", b"a"), (b"free", b"b"))
    sidecar.until(lambda: len(dump(group.bootstrap, group.queues[0])) >= 2, 60, "both wait in the present queue")
    bad.well.set()
    sidecar.until(lambda: all(service.ledger.of(origin) for origin in new), 60, "all are delivered")
    await_quiet(group, 60)
    assert sidecar.stop().code == 0
    deliveries = [service.ledger.of(origin) for origin in new[:2]]
    for before, after in itertools.pairwise(deliveries):
        assert after[0].received >= (before[-1].answered or 0)
    assert not service.ledger.of(lost[1])


def test_a_recreated_queue_that_is_longer_than_what_was_read_is_read_from_its_beginning(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """The client reads on at the old offset, and reports nothing; what others have written stands before it too."""
    group, behaviour = queued(new_group()), BadFails()
    service = start_service(behaviour)
    sidecar = start_sidecar(group, service.url, overrides=ladder("5s"))
    put(group, (b"bad", b"a"), (b"behind", b"a"))
    sidecar.until(lambda: len(dump(group.bootstrap, group.queues[0])) >= 2, 30, "both wait in the queue")
    sidecar.until(lambda: sidecar.key_count("blocked") == 1, 30, "the reader knows it")
    sidecar.pause()
    delete_topics(group.bootstrap, group.queues[0])
    create_topic(group.bootstrap, group.queues[0], 1, {"message.timestamp.type": "LogAppendTime"})
    junk = [b"junk:%d" % number for number in range(40)]
    produce(group.bootstrap, group.queues[0], junk)
    sidecar.signal(signal.SIGCONT)
    await_restart(sidecar, 1)
    sidecar.until(lambda: {row.value for row in dump(group.bootstrap, group.dlq)} >= set(junk), 60, "all of it is read")
    behaviour.well.set()  # the main topic still has the head, which would fail another 20 times
    (free,) = put(group, (b"free", b"a"))
    sidecar.until(lambda: bool(service.ledger.of(free)), 60, "the key goes on")
    assert sidecar.stop().code == 0


@pytest.mark.long
def test_the_keys_of_a_queue_that_is_deleted_go_on_without_it(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group, service = queued(new_group()), start_service(BadFails())
    sidecar = start_sidecar(group, service.url, overrides=ladder("20s"))
    lost = put(group, (b"bad", b"a"), (b"behind", b"a"))
    sidecar.until(lambda: len(dump(group.bootstrap, group.queues[0])) >= 2, 30, "both wait in the queue")
    delete_topics(group.bootstrap, group.queues[0])
    sidecar.wait_log("was deleted", 40)
    (free,) = put(group, (b"free", b"a"))
    sidecar.until(lambda: bool(service.ledger.of(free)), 120, "the key goes on")
    assert restarts(sidecar) == []
    assert not service.ledger.of(lost[1])
    create_topic(group.bootstrap, group.queues[0], 1)
    await_restart(sidecar, 1)
    (bad, behind) = put(group, (b"bad", b"b"), (b"behind", b"b"))
    sidecar.until(lambda: len(dump(group.bootstrap, group.queues[0])) >= 2, 30, "both wait in the present queue")
    assert (len(service.ledger.of(bad)), len(service.ledger.of(behind))) == (1, 0)
    assert sidecar.stop().code == 0
