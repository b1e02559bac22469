"""One hot key on a real broker: 15 000 records behind a head that waits cost little memory, and go in order."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_ladder import LADDER, assert_in_order, queued
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.audited import violations
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import Answer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BEHIND, OTHERS, EARLY = 15_000, 200, 5_000
MORE_MB = 38
"""What the sidecar may take more for them: 7 MB of ledger, 2 MB of records at hand, and what was under way.
24 to 28 MB were measured beside other work, which decides how much is under way at a time."""


def test_fifteen_thousand_records_behind_a_head_cost_little_memory_and_keep_their_order(
    new_group: FreshGroup,
    start_service: StartService,
    start_sidecar: StartSidecar,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    group = queued(new_group(), partitions=1)
    well = threading.Event()
    service = start_service(lambda request: Answer(500 if request.value == b"head" and not well.is_set() else 200))
    retry = {**LADDER["retry"], "ordered_ladder": ["5s"]}  # type: ignore[dict-item]
    overrides = {**LADDER, "retry": retry}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    ledger, process = service.ledger, psutil.Process(sidecar.pid)
    produce(group.bootstrap, group.main, [Out(b"early:%d" % number, b"early") for number in range(EARLY)])
    sidecar.until(lambda: len(ledger.taken()) > 0, 60, "it is at work")
    begun, first = time.monotonic(), len(ledger.taken())
    sidecar.until(lambda: len(ledger.taken()) == EARLY, 60, "it has all that a sidecar at work takes")
    rate = (EARLY - first) / (time.monotonic() - begun)
    produce(group.bootstrap, group.main, [Out(b"head", b"hot")])
    sidecar.until(lambda: len(ledger.deliveries()) > EARLY, 30, "the head has failed")
    before = process.memory_info().rss
    produce(group.bootstrap, group.main, [Out(b"behind:%d" % number, b"hot") for number in range(BEHIND)])
    produce(group.bootstrap, group.main, [Out(b"free:%d" % number, b"free") for number in range(OTHERS)])
    sidecar.until(lambda: len(ledger.taken()) == EARLY + OTHERS, 120, "the other key goes on")
    waiting = f'reconsume_behind_records{{topic="{group.main}"}}'
    sidecar.until(lambda: sidecar.metric(waiting) >= BEHIND, 120, "all of the key wait")
    more = (process.memory_info().rss - before) / (1 << 20)
    well.set()
    sidecar.until(lambda: len(ledger.taken()) > EARLY + OTHERS, 60, "the head is taken")
    begun = time.monotonic()
    sidecar.until(lambda: len(ledger.taken()) == EARLY + OTHERS + 1 + BEHIND, 400, "all are taken")
    seconds = time.monotonic() - begun
    with capsys.disabled():
        sys.stdout.write(
            f"{BEHIND} behind a head: {more:.1f} MB more, then {BEHIND / seconds:.0f} records/s in a row, "
            f"and {rate:.0f} of a key without failures\n"
        )
    await_quiet(group, 60)
    assert sidecar.stop().code == 0
    assert more < MORE_MB
    assert_in_order(group, ledger)
    assert violations(group, tmp_path, overrides) == []
