"""A queue into which its owner writes without a pause, so that the client never reports an end of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reconsume.topics.events import Event, State, decode_event
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_redrive import Shop
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.load import Load
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import Answer, by_name
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config, config_of

RATE = 20
"""Records a second, so that a request for more of the queue never waits in vain."""
EARLY = 10
"""Records that are done before the owner is killed."""
MASSES = 1_500
"""Records that fail together again and again: the reader of the queue need not read their copies."""
LADDER: Config = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 20},
    "kafka": {"session.timeout.ms": 6_000},
}


@pytest.mark.long
def test_what_is_done_of_a_busy_queue_is_not_delivered_again_by_the_next_owner(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Each record fails once; its copy is the only thing that lies before the next one. The first records are done, as
    their events say, when the owner is killed."""
    group = create_group(replace(new_group(), delays=(), queued=True), 1)
    service = start_service(by_name({f"order {number}": (Answer(500), Answer(200)) for number in range(10_000)}))
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    first = {f"{group.main}:0:{offset}" for offset in range(EARLY)}

    def done() -> set[str]:
        events = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events)]
        return {event.id for event in events if isinstance(event, Event) and event.state is State.COMMIT}

    with Load(group, RATE, keys=10_000) as load:
        sidecar.until(lambda: len(service.ledger.taken()) >= 4 * EARLY, 60, "most of it is taken")
        sidecar.until(lambda: first <= done(), 60, "the first of it is done")
        sidecar.kill()
    sidecar.start()
    sidecar.until(lambda: len(service.ledger.taken()) == load.sent, 60, "all are taken")
    await_quiet(group, 60)
    early = [service.ledger.of(ident) for ident in first]
    assert [[delivery.times for delivery in one] for one in early] == [[0, 1]] * EARLY
    assert sidecar.stop().code == 0


@pytest.mark.long
def test_what_another_writes_into_a_queue_comes_through_while_its_owner_writes_in_masses(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = create_group(replace(new_group(), delays=(), queued=True), 1)
    shop = Shop()
    service = start_service(shop)
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    ((number, offset),) = produce(group.bootstrap, group.main, [Out(b"unknown", b"letter")])
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 1, 30, "it is dead")
    shop.mended.set()
    produce(group.bootstrap, group.main, [Out(b"stuck-%d" % one, b"k%d" % one) for one in range(MASSES)])
    sidecar.until(lambda: len(service.ledger.deliveries()) > 3 * MASSES, 60, "all of them are retried")
    file = tmp_path / "redrive.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471, LADDER)), encoding="utf-8")
    assert reconsume("dlq", "redrive", "--yes", "-c", file).exit_code == 0
    letter = f"{group.main}:{number}:{offset}"
    sidecar.until(lambda: len(service.ledger.of(letter)) == 2, 10, "the letter is delivered meanwhile")
    shop.well.set()
    sidecar.until(lambda: len(service.ledger.taken()) == 1 + MASSES, 60, "all are taken")
    await_quiet(group, 60)
    assert sidecar.stop().code == 0
    assert violations(group, tmp_path, LADDER) == []
