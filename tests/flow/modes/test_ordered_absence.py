"""Keys that wait while nobody can reach Kafka, and while nobody is there until Kafka has forgotten the progress."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from reconsume.topics.retry_order import RETRY_BEHIND
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_ladder import assert_in_order
from tests.flow.modes.test_ordered_park import put
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS, Row, dump
from tests.support.proof.ledger import Delivery
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.scene import Proxied

KEYS, DARK = 20, 30.0
LADDER = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["4s"], "max_reconsume_times": 100},
}


def counts_of(copies: Iterable[Row]) -> dict[str, list[int]]:
    """The counts that the copies of failures say, by their record."""
    counted: dict[str, list[int]] = defaultdict(list)
    for copy in (dict(row.headers) for row in copies):
        if RETRY_BEHIND not in copy:
            counted[(copy["ORIGIN_MESSAGE_ID"] or b"").decode()].append(int(copy["RECONSUMETIMES"] or b""))
    return counted


@pytest.mark.long
def test_keys_that_wait_keep_their_order_and_counts_over_half_a_minute_without_kafka(
    cleared: Proxied, tmp_path: Path
) -> None:
    """Every packet is lost: the instance is put out of the group, its heads are due meanwhile, and then it goes on."""
    group, bad = replace(fresh_group(cleared.kafka.bootstrap), delays=(), queued=True), BadFails()
    create_group(group, 1)
    kafka = {"bootstrap.servers": cleared.proxy.address, "session.timeout.ms": 6_000}
    with ExitStack() as stack:
        service = stack.enter_context(Service(tmp_path / "ledger.jsonl", bad))
        sidecar = SidecarProcess(group, service.url, tmp_path, overrides={**LADDER, "kafka": kafka})
        stack.enter_context(sidecar)
        heads = put(group, *((b"bad:%d" % key, b"%d" % key) for key in range(KEYS)))
        behind = put(group, *((b"behind:%d" % key, b"%d" % key) for key in range(KEYS)))
        sidecar.until(lambda: sidecar.key_count("behind") == KEYS, 60, "all wait")
        with cleared.proxy.packets_lost():
            time.sleep(DARK)
            later = put(group, *((b"later:%d" % key, b"%d" % key) for key in range(2 * KEYS)))
        sidecar.until(lambda: all(service.ledger.of(ident) for ident in later[KEYS:]), 90, "other keys go on")
        assert not any(service.ledger.of(ident) for ident in behind)
        tried = {head: len(service.ledger.of(head)) for head in heads}
        sidecar.until(lambda: all(len(service.ledger.of(head)) > tried[head] for head in heads), 60, "heads are tried")
        bad.well.set()
        sidecar.until(lambda: len(service.ledger.taken()) == 4 * KEYS, 90, "all are taken")
        await_quiet(group, 60)
        assert sidecar.stop().code == 0
        assert_in_order(group, service.ledger)
        for counts in counts_of(dump(group.bootstrap, group.queues[0])).values():
            assert sorted(counts) == list(range(1, len(counts) + 1)), "each attempt is counted once"
        assert dump(group.bootstrap, group.dlq) == []


@pytest.mark.long
def test_a_group_whose_progress_kafka_has_forgotten_delivers_what_waits_in_order(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """As after a week without any instance: all is read again, and what was done may be delivered again, in order."""
    group, bad = create_group(replace(new_group(), delays=(), queued=True), 1), BadFails()
    service = start_service(bad)
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    lines = [put(group, *((b"%s:%d" % (name, key), b"%d" % key) for key in range(KEYS))) for name in (b"bad", b"next")]
    done = put(group, *((b"done", b"d%d" % key) for key in range(KEYS)))
    sidecar.until(
        lambda: all(len(service.ledger.of(head)) > 2 for head in lines[0]), 60, "the heads have failed thrice"
    )
    sidecar.until(lambda: sidecar.key_count("behind") == KEYS, 60, "all wait")
    assert sidecar.stop().code == 0
    counted = counts_of(dump(group.bootstrap, group.queues[0]))
    before = len(service.ledger.deliveries())
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for future in admin.delete_consumer_groups([group.group]).values():
        future.result(SECONDS)
    lines.append(put(group, *((b"last:%d" % key, b"%d" % key) for key in range(KEYS))))
    sidecar.start()
    sidecar.until(lambda: len(service.ledger.deliveries()) >= before + 2 * KEYS, 60, "it goes on")
    bad.well.set()
    sidecar.until(lambda: len(service.ledger.taken()) == 4 * KEYS, 90, "all are taken")
    await_quiet(group, 60)
    assert sidecar.stop().code == 0
    assert "queue-start" in sidecar.log()
    assert dump(group.bootstrap, group.dlq) == []
    again = service.ledger.deliveries()[before:]
    for line in zip(*lines, strict=True):
        _assert_one_after_the_other(line, again)
        assert min(d.times for d in again if d.id == line[0]) == max(counted[line[0]]), "no attempt is forgotten"
    assert all(service.ledger.of(ident) for ident in done)


def _assert_one_after_the_other(line: Sequence[str], deliveries: Sequence[Delivery]) -> None:
    for before, after in itertools.pairwise(line):
        taken = min(d.answered for d in deliveries if d.id == before and d.means == "took" and d.answered is not None)
        assert min(d.received for d in deliveries if d.id == after) >= taken
