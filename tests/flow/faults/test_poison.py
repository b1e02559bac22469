"""Many records that the service refuses, on a real broker: they hold up no others, and come to the DLQ alone too."""

from __future__ import annotations

import threading
import time

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.ledger import TOOK
from tests.support.service.behaviours import FAIL, Answer, Behaviour, Request, by_name
from tests.support.sidecar.pace_run import finish, values

PARTITIONS = 8
OTHERS = range(1, PARTITIONS)
"""Partitions without malformed records."""
MALFORMED = 1_000
RATE = 40
"""Good records a second beside them."""
LATE = 15_000
"""ms that a good record may be late at most."""
DEFAULTS = {"outage_failures": 20, "concurrency": 256}
pytestmark = pytest.mark.timeout(600)


class Good:
    """Good records, one at a time for each of the other partitions; each says when it was sent."""

    def __init__(self, group: GroupTopics) -> None:
        self.sent = 0
        self._group, self._ended = group, threading.Event()
        self._thread = threading.Thread(target=self._send, name="good")

    def __enter__(self) -> Good:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._ended.wait(len(OTHERS) / RATE):
            value = b"good:%d" % (time.time_ns() // 1_000_000)
            produce(self._group.bootstrap, self._group.main, [Out(value, partition=number) for number in OTHERS])
            self.sent += len(OTHERS)


def script(request: Request) -> Behaviour:
    return Answer(400) if (request.value or b"").startswith(b"malformed") else Answer(after=0.005)


@pytest.mark.long
def test_a_thousand_malformed_records_in_one_partition_hold_up_no_other(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), PARTITIONS)
    service = start_service(script)
    overrides = {"deliver": DEFAULTS, "retry": {"ladder": ["1s"], "max_reconsume_times": 1}}
    poison = [Out(b"malformed:%d" % number, partition=0) for number in range(MALFORMED)]
    produce(group.bootstrap, group.main, poison)
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    with Good(group) as good:
        sidecar.until(lambda: len(service.ledger.deliveries()) - good.sent > 2 * MALFORMED - 30, 90, "most have failed")
    sidecar.until(lambda: len(service.ledger.taken()) == good.sent, 30, "all good records are taken")
    sidecar.until(lambda: len(service.ledger.deliveries()) >= 2 * MALFORMED + good.sent, 90, "all have failed twice")
    run = finish(group, service, sidecar, 0)
    taken = [delivery for delivery in run.evidence.deliveries if delivery.means == TOOK]
    late = [delivery.received - int((delivery.value or b"").partition(b":")[2]) for delivery in taken]
    assert len(late) > 100
    assert max(late) <= LATE
    assert (run.report.dead_lettered, run.report.waiting, run.report.duplicates) == (MALFORMED, 0, 0)


@pytest.mark.long
def test_where_only_poison_is_left_it_comes_to_the_dlq(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Thirty records are refused, and there is never a good one beside them: from the twenty-first failure on, each
    takes a second at most."""
    group = create_group(new_group())
    service = start_service(by_name({"poison": (FAIL,)}))
    overrides = {"deliver": DEFAULTS, "retry": {"ladder": ["1s"], "max_reconsume_times": 1}}
    sidecar = start_sidecar(group, service.url, overrides=overrides)
    begun = time.monotonic()
    produce(group.bootstrap, group.main, values("poison", 30))
    sidecar.until(lambda: len(service.ledger.deliveries()) == 60, 60, "each has had its two attempts")
    assert time.monotonic() - begun < 60
    assert sidecar.metric('reconsume_pace_changes_total{state="probing"}') >= 10
    run = finish(group, service, sidecar, 0)
    assert (run.report.dead_lettered, run.report.waiting, run.spent) == (30, 0, 30)
