"""A queue into which its owner writes without a pause, so that the client never reports an end of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.proof.load import Load
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import Answer, by_name

RATE = 20
"""Records a second, so that a request for more of the queue never waits in vain."""
EARLY = 10
"""Records that are done long before the owner is killed."""
LADDER = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 20},
    "kafka": {"session.timeout.ms": 6_000},
}


@pytest.mark.long
def test_what_is_done_of_a_busy_queue_is_not_delivered_again_by_the_next_owner(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Each record fails once; its copy is the only thing that lies before the next one."""
    group = create_group(replace(new_group(), delays=(), queued=True), 1)
    service = start_service(by_name({f"order {number}": (Answer(500), Answer(200)) for number in range(10_000)}))
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    with Load(group, RATE, keys=10_000) as load:
        sidecar.until(lambda: len(service.ledger.taken()) >= 4 * EARLY, 60, "most of it is done")
        sidecar.kill()
    sidecar.start()
    sidecar.until(lambda: len(service.ledger.taken()) == load.sent, 60, "all are taken")
    await_quiet(group, 60)
    early = [service.ledger.of(f"{group.main}:0:{offset}") for offset in range(EARLY)]
    assert [[delivery.times for delivery in one] for one in early] == [[0, 1]] * EARLY
    assert sidecar.stop().code == 0
