"""Requests of topics with a path, a timeout or a bound of their own: alone and in batches, on real sockets."""

from __future__ import annotations

import json
import threading
import time

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import COMMITTED, Failed
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.push.topic_call import TopicCall
from reconsume.topics.retry_headers import RetryState
from tests.integration.delivery.batch_client import FOREVER, Feeder
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import StubService, Talk
from tests.support.sidecar.push_client import SHORT_MS, a_push, a_record, deliver, run, settled

BILLS, FEES, TAXES = "bills", "fees", "taxes"
OWN = TopicCall("/own?by=kafka", SHORT_MS)


def fresh(topic: str, offset: int) -> Record:
    return replace(a_record(offset), source=Partition(topic, 0))


def retry(topic: str, offset: int) -> Record:
    life = RetryState(f"{topic}:0:{offset}", topic, 1)
    return replace(a_record(offset), source=Partition("billing-RETRY-10s", 0), retry_state=life)


def path_of(request: bytes) -> str:
    return request.split(b" ")[1].decode()


def timeout_of(request: bytes) -> int:
    return int(request.partition(b"\r\nReconsume-Timeout: ")[2].partition(b"\r\n")[0])


def topics_of(request: bytes) -> list[str]:
    return [record["topic"] for record in json.loads(request.partition(b"\r\n\r\n")[2])["records"]]


def test_fresh_records_retries_and_tries_in_place_go_to_the_path_of_their_topic() -> None:
    with StubService([stub.ok]) as service:

        async def work() -> None:
            push = a_push(service.url, calls={BILLS: OWN})
            in_place = fresh(BILLS, 4).tried(1)
            for record in (fresh("orders", 1), fresh(BILLS, 2), retry(BILLS, 3), in_place, retry("orders", 5)):
                assert await deliver(push, record) is COMMITTED
            push.close()

        run(work)
        own = OWN.path
        assert [path_of(request) for request in service.requests] == ["/events", own, own, own, "/events"]
        usual = 10_000
        assert [timeout_of(request) for request in service.requests] == [usual, SHORT_MS, SHORT_MS, SHORT_MS, usual]


@pytest.mark.parametrize(("usual", "own", "reason"), [(10_000, SHORT_MS, "timeout"), (SHORT_MS, 10_000, "")])
def test_a_topic_has_the_time_of_its_own_timeout_shorter_or_longer(usual: int, own: int, reason: str) -> None:
    with StubService([late]) as service:

        async def work() -> None:
            push = a_push(service.url, timeout_ms=usual, calls={BILLS: TopicCall(None, own)})
            told = await deliver(push, fresh(BILLS, 1))
            push.close()
            assert (told.reason if isinstance(told, Failed) else "") == reason

        run(work)


def late(talk: Talk) -> bool:
    """Answer when the short timeout is over."""
    time.sleep(3 * SHORT_MS / 1_000)
    return stub.ok(talk)


@pytest.mark.parametrize("mix", [False, True])
def test_a_batch_is_of_one_topic_or_where_they_mix_of_topics_that_agree(mix: bool) -> None:
    calls = {BILLS: OWN, FEES: OWN, TAXES: TopicCall("/taxes")}
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_size=16, calls=calls, mix=mix)
            order = ("orders", BILLS, TAXES, FEES, "orders", TAXES, BILLS)
            feeder.feed(*(fresh(topic, offset) for offset, topic in enumerate(order)), retry(FEES, 7))
            await feeder.answered(8)
            feeder.batches.close()

        run(work)
        came = sorted((path_of(request), sorted(topics_of(request))) for request in service.requests)
        timeouts = {path_of(request): timeout_of(request) for request in service.requests}
    assert timeouts == {"/events": 10_000, OWN.path: SHORT_MS, "/taxes": 10_000}
    of_own = [(OWN.path, [BILLS, BILLS, FEES, FEES])] if mix else [(OWN.path, [BILLS] * 2), (OWN.path, [FEES] * 2)]
    assert came == [("/events", ["orders"] * 2), *of_own, ("/taxes", [TAXES] * 2)]


def test_each_batch_waits_by_itself_and_what_is_recalled_or_left_is_given_back() -> None:
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_size=2, max_wait=FOREVER, calls={BILLS: OWN})
            feeder.feed(fresh("orders", 0), fresh(BILLS, 1), fresh(BILLS, 2), fresh(BILLS, 3))
            await feeder.answered(2)
            feeder.batches.recall({Partition(BILLS, 0)}, lost=False)
            await feeder.answered(3)
            feeder.batches.close()
            await feeder.answered(4)
            assert sorted(offset for offset, told in feeder.found.items() if told is COMMITTED) == [1, 2]

        run(work)
        assert [path_of(request) for request in service.requests] == [OWN.path]


def test_requests_of_a_topic_are_bounded_although_each_holds_one_record_and_others_pass_by() -> None:
    ready = threading.Event()

    def when_ready(talk: Talk) -> bool:
        return ready.wait(60) and stub.ok(talk)

    with StubService([when_ready, when_ready, stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, max_size=4, calls={BILLS: TopicCall(requests=2, topic=BILLS)})
            for count in (1, 2):
                feeder.feed(fresh(BILLS, count))
                await settled(lambda count=count: len(service.requests) == count)
            feeder.feed(fresh(BILLS, 3))
            feeder.feed(fresh("orders", 9))
            await feeder.answered(1)
            assert feeder.found == {9: COMMITTED}
            assert len(service.requests) == 3
            ready.set()
            await feeder.answered(4)
            feeder.batches.close()

        run(work)
