"""How batches are gathered, sent and answered: on a real loop and real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Failed, NotSent, Outcome, Rejected, Throttled
from reconsume.sidecar.core.pace.pace import Pace, State
from reconsume.sidecar.core.record import Now, Partition, Record
from tests.integration.delivery.batch_client import FOREVER, Feeder, batches, offsets
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import StubService
from tests.support.sidecar.push_client import SECONDS, SHORT_MS, a_record, run, settled

JSON = "Content-Type: application/json"
MISSING = "missing-verdict"


def some(count: int, start: int = 0) -> list[Record]:
    return [a_record(offset) for offset in range(start, start + count)]


def test_what_comes_together_goes_together_and_never_more_than_the_size() -> None:
    """Given seven records in one turn of the loop and no wait, then three requests carry them, the last at once."""
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url)
            feeder.feed(*some(7))
            await feeder.answered(7)
            feeder.batches.close()

        run(work)
        assert sorted(batches(service)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_batch_waits_to_be_filled_as_long_as_it_may_and_no_longer() -> None:
    """Given a wait, when a second record comes within it, then both go when it is over, counted from the first."""
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_wait=0.3)
            began = time.monotonic()
            feeder.feed(*some(1))
            await asyncio.sleep(0.15)
            assert not service.requests
            feeder.feed(*some(1, 1))
            await feeder.answered(2)
            assert time.monotonic() - began >= 0.3
            feeder.batches.close()

        run(work)
        assert batches(service) == [[0, 1]]


def test_a_full_batch_does_not_wait() -> None:
    """Given a wait far longer than this test, when a batch is full, then it goes; the next one waits anew."""
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_wait=FOREVER)
            feeder.feed(*some(2))
            await asyncio.sleep(0.05)
            feeder.feed(*some(3, 2))
            await feeder.answered(3)
            feeder.batches.close()
            await feeder.answered(5)
            assert feeder.found == {0: COMMITTED, 1: COMMITTED, 2: COMMITTED, 3: CANCELLED, 4: CANCELLED}

        run(work)
        assert batches(service) == [[0, 1, 2]]


def test_a_batch_does_not_wait_where_the_gate_can_give_no_more() -> None:
    """Given two places, and so never a third record, then two go at once: a probe must not wait, nor a slow start."""
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, places=2, max_wait=FOREVER)
            feeder.feed(*some(4))
            await feeder.answered(4)
            feeder.batches.close()

        run(work)
        assert batches(service) == [[0, 1], [2, 3]]


def test_places_that_answers_free_one_by_one_are_filled_together() -> None:
    """Given a gate that is always full, when a batch is answered, then the next one is whole, not one record."""
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, places=6, max_wait=FOREVER)
            feeder.feed(*some(18))
            await feeder.answered(18)
            feeder.batches.close()

        run(work)
        assert [len(batch) for batch in batches(service)] == [3] * 6


def test_the_body_is_never_longer_than_it_may_be() -> None:
    """Given records of 400 bytes and room for two of them, then no request is longer, and a larger one goes alone."""
    values = [b"v" * 400, b"v" * 400, b"v" * 400, b"v" * 9_000, b"v" * 400]
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_size=100, max_bytes=1_700, max_wait=FOREVER)
            feeder.feed(*(a_record(offset, value) for offset, value in enumerate(values)))
            await settled(lambda: len(feeder.found) == 4)
            feeder.batches.close()
            await feeder.answered(5)

        run(work)
        assert sorted(batches(service)) == [[0, 1], [2], [3]]
        bodies = {tuple(offsets(request)): len(request.partition(b"\r\n\r\n")[2]) for request in service.requests}
        assert bodies[(0, 1)] <= 1_700 < bodies[(3,)]


def test_no_more_requests_are_out_than_allowed_however_small_they_are() -> None:
    """Given one request at a time, when records trickle in meanwhile, then they are gathered until it is answered."""
    gate = threading.Event()

    def after_the_gate(talk: stub.Talk) -> bool:
        gate.wait(SECONDS)
        return stub.ok(talk)

    with StubService([after_the_gate, stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, requests=1)
            for offset in range(6):
                feeder.feed(a_record(offset))
                await asyncio.sleep(0.01)
            assert len(service.requests) == 1
            gate.set()
            await feeder.answered(6)
            feeder.batches.close()

        run(work)
        assert batches(service) == [[0], [1, 2, 3], [4, 5]]


def test_what_was_gathered_goes_as_soon_as_more_requests_may_be_out() -> None:
    """The one that is out may hang for as long as it may."""
    gate = threading.Event()

    def after_the_gate(talk: stub.Talk) -> bool:
        gate.wait(SECONDS)
        return stub.ok(talk)

    with StubService([after_the_gate, stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, requests=1)
            feeder.feed(a_record(0))
            await settled(lambda: len(service.requests) == 1)
            feeder.feed(a_record(1))
            await asyncio.sleep(0.01)
            feeder.batches.set_limits(10_000, 2)
            await feeder.answered(1)
            assert list(feeder.found) == [1]
            gate.set()
            await feeder.answered(2)
            feeder.batches.close()

        run(work)
        assert batches(service) == [[0], [1]]


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (stub.answer(200, "Reconsume-Verdict: retry"), Failed("retry-asked", asked=True)),
        (stub.answer(500), Failed("http-500")),
        (stub.answer(429), Throttled(1_000)),
        (stub.garbage, "broken-answer"),
        (stub.hang, "timeout"),
    ],
)
def test_one_answer_is_the_outcome_of_every_record_at_one_moment(
    behaviour: stub.Behaviour, expected: Outcome | str
) -> None:
    """Given an answer, or none, to a batch, then all have its outcome, with one `Now`: the pace counts one failure."""
    with StubService([behaviour]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, pace=Pace(3, failures=2), timeout_ms=SHORT_MS)
            feeder.feed(*some(3))
            await feeder.answered(3)
            (found,) = set(feeder.found.values())
            assert found == expected or (isinstance(found, Failed) and found.reason == expected)
            assert all(at is feeder.told[0] for at in feeder.told)
            assert feeder.gate.pace.state is not State.OUTAGE
            feeder.batches.close()

        run(work)
        assert batches(service) == [[0, 1, 2]]


def test_a_list_of_verdicts_tells_the_records_apart() -> None:
    """Given verdicts on two of three records and on a stranger, then the third is retried and the stranger counted."""
    said = [
        {"id": "orders:3:2", "verdict": "dead-letter", "reason": "bad-sku"},
        {"id": "orders:3:99", "verdict": "dead-letter"},
        {"id": "orders:3:0", "verdict": "commit"},
    ]
    with StubService([stub.answer(200, JSON, body=json.dumps({"verdicts": said}).encode())]) as service:

        async def work() -> None:
            feeder = Feeder(service.url)
            feeder.feed(*some(3))
            await feeder.answered(3)
            missing = feeder.found.pop(1)
            assert isinstance(missing, Failed)
            assert missing.reason == MISSING
            assert feeder.found == {0: COMMITTED, 2: Rejected("bad-sku")}
            assert feeder.batches.odd_verdicts.counts == {"unknown-id": 1}
            feeder.batches.close()

        run(work)


def test_the_same_list_means_something_else_for_the_next_batch() -> None:
    """Given a service that gives the same bytes again, then they are read again."""
    said = json.dumps({"verdicts": [{"id": f"orders:3:{n}", "verdict": "commit"} for n in (0, 1, 2, 4)]}).encode()
    with StubService([stub.answer(200, JSON, body=said)]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, requests=1)
            feeder.feed(*some(6))
            await feeder.answered(6)
            reasons = [found.reason if isinstance(found, Failed) else "" for found in feeder.found.values()]
            assert reasons == ["", "", "", MISSING, "", MISSING]
            feeder.batches.close()

        run(work)


def test_the_longest_list_of_verdicts_is_read() -> None:
    """Given 1024 records and a reason of 256 characters for each, then it is a verdict, not an endless answer."""
    count = 1024
    reason = "\u00e9" * 161
    said = [{"id": f"orders:3:{n}", "verdict": "dead-letter", "reason": reason} for n in range(count)]
    body = json.dumps({"verdicts": said}).encode()
    assert len(body) > 1024 * 1024
    with StubService([stub.answer(200, JSON, body=body)]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_size=count, places=count, max_bytes=1 << 24)
            feeder.feed(*some(count))
            await feeder.answered(count)
            assert set(feeder.found.values()) == {Rejected("dead-letter-asked", reason)}
            feeder.batches.close()

        run(work)


def test_records_of_a_partition_that_goes_are_taken_out_of_the_batch_before_it_is_sent() -> None:
    """Given records of two partitions, when one is revoked, then its records are cancelled, later, and the rest goes.

    When it comes back under another epoch, its records start a batch without the old ones.
    """
    other = Partition("orders", 4)
    moved = [Record(other, offset, epoch, 1, None, b"v", None, None) for offset, epoch in ((10, 1), (10, 2), (11, 2))]
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_size=4, max_wait=FOREVER)
            feeder.feed(a_record(0), moved[0])
            await asyncio.sleep(0.01)
            feeder.batches.recall([other], lost=False)
            assert feeder.found == {}
            await feeder.answered(1)
            assert feeder.found == {10: CANCELLED}
            feeder.feed(a_record(1), *moved[1:])
            await settled(lambda: len(feeder.told) == 5)
            assert feeder.found == dict.fromkeys((0, 1, 10, 11), COMMITTED)
            feeder.batches.close()

        run(work)
        assert batches(service) == [[0, 1, 10, 11]]


def test_a_full_batch_that_waits_for_its_place_is_recalled_too() -> None:
    """Given one request that hangs and a full batch behind it, when its partition is lost, then it is never sent."""
    with StubService([stub.hang]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, requests=1, timeout_ms=SHORT_MS)
            feeder.feed(*some(7))
            await settled(lambda: len(service.requests) == 1)
            feeder.batches.recall([a_record().source], lost=True)
            await feeder.answered(4)
            assert feeder.found == dict.fromkeys((3, 4, 5, 6), CANCELLED)
            await feeder.answered(7)
            feeder.batches.close()

        run(work)
        assert batches(service) == [[0, 1, 2]]


def test_what_was_gathered_when_the_service_went_away_is_given_back_and_the_probe_goes_alone() -> None:
    """Given one request that is refused and more behind it, then these are not sent, nor together with the probe."""
    with StubService([stub.ok]) as gone:
        url = gone.url

    async def work() -> None:
        feeder = Feeder(url, requests=1)
        feeder.feed(*some(8))
        await feeder.answered(8)
        refused, kept = NotSent("connection-refused"), NotSent("outage")
        assert feeder.found == dict.fromkeys((0, 1, 2), refused) | dict.fromkeys((3, 4, 5, 6, 7), kept)
        assert feeder.gate.in_flight == 0
        feeder.gate.pace.tick(Now(0, feeder.gate.pace.probe_at_ms), 0)
        feeder.feed(*some(5, 10))
        await feeder.answered(9)
        assert {offset: feeder.found[offset] for offset in feeder.found if offset >= 10} == {10: refused}
        feeder.batches.close()

    run(work)


def test_closing_cancels_what_is_not_sent() -> None:
    """Given a batch that waits and a record that comes after the end, then both are cancelled, and nothing is sent."""
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_wait=FOREVER)
            feeder.feed(*some(2))
            feeder.batches.close()
            feeder.feed(*some(1, 2))
            assert feeder.found == {}
            await feeder.answered(3)
            assert set(feeder.found.values()) == {CANCELLED}

        run(work)
        assert service.requests == []
