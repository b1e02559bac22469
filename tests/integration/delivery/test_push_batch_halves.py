"""A batch that is refused as a whole is sent again in halves, and only a record that fails alone has failed."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Outcome, Rejected, Throttled
from reconsume.sidecar.core.pace.pace import Pace, State
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.response_reader import LOST
from tests.integration.delivery.batch_client import Feeder, batches, offsets
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import Behaviour, StubService, Talk
from tests.support.sidecar.paces import AWAY
from tests.support.sidecar.push_client import a_record, run, settled


def refuses(status: int, bad: Collection[int], most: int = 1_000) -> Behaviour:
    """Refuse each batch with one of these records by `status`, and each of more than `most` by 413."""

    def behave(talk: Talk) -> bool:
        found = offsets(talk.request)
        refused = 413 if len(found) > most else status if set(found) & set(bad) else 200
        return stub.answer(refused)(talk)

    return behave


def ends_at(bad: Collection[int]) -> Behaviour:
    """End the connection of each batch with one of these records, as a worker does that such a record ends."""

    def behave(talk: Talk) -> bool:
        return not set(offsets(talk.request)) & set(bad) and stub.ok(talk)

    return behave


def fed(service: StubService, count: int, **limits: Any) -> dict[int, Outcome]:
    """What becomes of so many records, in one batch."""
    found: dict[int, Outcome] = {}

    async def work() -> None:
        feeder = Feeder(service.url, max_size=count, **limits)
        feeder.feed(*(a_record(number) for number in range(count)))
        await feeder.answered(count)
        found.update(feeder.found)
        feeder.batches.close()

    run(work)
    return found


def test_a_batch_that_is_too_large_goes_in_halves_and_none_of_its_records_fails() -> None:
    """Given a service that takes eight records at once, when it gets 32, then each is done, by the largest that go."""
    with StubService([refuses(500, (), most=8)]) as service:
        assert set(fed(service, 32, requests=1).values()) == {COMMITTED}
        assert [len(batch) for batch in batches(service)] == [32, 16, 8, 8, 16, 8, 8]


def test_a_record_that_is_too_large_alone_fails_alone() -> None:
    """Given one record that the service takes in no company, then the others are done, and it is one attempt."""
    with StubService([refuses(413, (3,))]) as service:
        found = fed(service, 5)
        assert found.pop(3) == Failed("http-413")
        assert set(found.values()) == {COMMITTED}


def test_a_batch_whose_connection_is_lost_goes_in_halves_until_the_record_that_ends_it_is_alone() -> None:
    """Given one worker of several that a record ends, then no other record of its batch has failed."""
    with StubService([ends_at((5,))]) as service:
        found = fed(service, 8, requests=2)
        assert found.pop(5) == LOST
        assert set(found.values()) == {COMMITTED}
        assert max(len(batch) for batch in batches(service)[1:]) == 4


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.integers(2, 24),
    bad=st.sets(st.integers(0, 23), max_size=5),
    most=st.integers(1, 24),
    requests=st.integers(1, 4),
)
def test_with_split_exactly_the_records_that_fail_alone_fail(
    count: int, bad: set[int], most: int, requests: int
) -> None:
    """Given any bad records and any greatest size, then each record has one outcome: its own."""
    with StubService([refuses(400, bad, most)]) as service:
        found = fed(service, count, requests=requests, split=True, pace=Pace(1_000))
        for offset in range(count):
            assert found[offset] == (Failed("http-400") if offset in bad else COMMITTED)
        assert len(service.requests) < 2 * count


@pytest.mark.parametrize(
    ("split", "behaviour", "expected"),
    [
        (False, stub.answer(500), Failed("http-500")),
        (True, stub.answer(503), Failed("http-503")),
        (True, stub.answer(429), Throttled(1_000)),
        (True, stub.answer(500, "Reconsume-Verdict: dead-letter"), Rejected("dead-letter-asked")),
    ],
)
def test_what_is_of_all_records_is_not_halved(split: bool, behaviour: Behaviour, expected: Outcome | None) -> None:
    """Given a failure that says something of the service or of all records, then it is that of each at once."""
    with StubService([behaviour]) as service:
        found = set(fed(service, 4, split=split).values())
        assert found == {expected} or expected is None
        assert len(service.requests) == 1


def test_while_the_pace_is_not_open_a_failing_batch_fails_as_a_whole() -> None:
    """Given a service that asked for time, when a batch fails then, then it is not sent again in halves."""
    with StubService([stub.answer(500)]) as service:
        pace = Pace(1_000)
        pace.note(a_record(99), Throttled(1_000), Now(0, 0))
        assert pace.state is State.THROTTLED
        assert set(fed(service, 4, split=True, pace=pace).values()) == {Failed("http-500")}
        assert len(service.requests) == 1


def test_halves_of_a_batch_are_given_back_in_an_outage() -> None:
    """Given an outage that began while the batch was out, then its records are no attempt, and are not sent."""
    gate = threading.Event()

    def refuse(talk: Talk) -> bool:
        gate.wait(10)
        return stub.answer(413)(talk)

    with StubService([refuse]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_size=4, places=4)
            feeder.feed(*(a_record(number) for number in range(4)))
            await settled(lambda: len(service.requests) == 1)
            feeder.gate.pace.note(a_record(9), AWAY, Now(0, 0))
            gate.set()
            await feeder.answered(4)
            assert all(isinstance(outcome, NotSent) for outcome in feeder.found.values())
            feeder.batches.close()

        run(work)
        assert len(service.requests) == 1
