"""Push by TLS: what a handshake ends with is no attempt, and a certificate is shown and checked. On real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Committed, Failed, NotSent, Outcome
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.delivery.push.access import Access, ServiceCredentials, health_access
from reconsume.sidecar.delivery.push.connection_check import ConnectionCheck
from reconsume.sidecar.delivery.push.credentials import CERTIFICATE, KEY
from reconsume.sidecar.delivery.push.health_check import HealthCheck
from reconsume.sidecar.delivery.push.target import parse_target
from tests.integration.delivery.batch_client import Feeder, batches
from tests.support.freed import nothing_left
from tests.support.kafka.certificates import Authority
from tests.support.service import stub_service as stub
from tests.support.service.greeter import Greeter
from tests.support.service.stub_service import StubService, read_request
from tests.support.sidecar.push_client import SHORT_MS, a_push, a_record, deliver, now, run, settled
from tests.support.sidecar.service_files import ServiceFiles

NAMES = ("127.0.0.1", "localhost")


@pytest.fixture
def access(service_files: ServiceFiles) -> Access:
    return Access(ServiceCredentials(service_files.named, secure=True))


def without_certificate(service_files: ServiceFiles) -> Access:
    named = {name: file for name, file in service_files.named.items() if name not in (CERTIFICATE, KEY)}
    return Access(ServiceCredentials(named, secure=True))


def outcomes(url: str, access: Access, count: int = 1, **changes: int) -> list[Outcome]:
    """What so many deliveries give, one after the other."""
    found: list[Outcome] = []

    async def work() -> None:
        push = a_push(url, access, **changes)
        for number in range(count):
            found.append(await deliver(push, a_record(number)))
        push.close()
        await settled(lambda: push.connections == 0)

    run(work)
    return found


def test_records_go_by_tls_on_a_connection_that_is_kept(ours: Authority, access: Access) -> None:
    with StubService([stub.ok, stub.answer(500), stub.ok], context=ours.context(*NAMES)) as service:
        assert outcomes(service.url, access, 3) == [COMMITTED, Failed("http-500"), COMMITTED]
        assert service.connections == 1


def test_a_name_is_looked_for_in_the_certificate_and_an_address_too(ours: Authority, access: Access) -> None:
    with StubService([stub.ok], context=ours.context("localhost")) as service:
        by_name = service.url.replace("127.0.0.1", "localhost")
        assert outcomes(by_name, access) == [COMMITTED]
        assert outcomes(service.url, access) == [NotSent("tls-wrong-name")]
    with StubService([stub.ok], context=ours.context("elsewhere.example")) as service:
        by_name = service.url.replace("127.0.0.1", "localhost")
        assert outcomes(by_name, access) == [NotSent("tls-wrong-name")]


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (lambda ours, other: other.context(*NAMES), "tls-untrusted"),
        (lambda ours, other: ours.context(*NAMES, expired=True), "tls-expired"),
        (lambda ours, other: without_common_cipher(ours.context(*NAMES)), "tls-handshake"),
    ],
)
def test_a_service_that_is_not_trusted_gets_no_byte_of_a_record(
    ours: Authority, other: Authority, access: Access, context: Callable[..., ssl.SSLContext], reason: str
) -> None:
    with StubService([stub.ok], context=context(ours, other)) as service:
        assert outcomes(service.url, access, 2) == [NotSent(reason)] * 2
        assert service.requests == []


def without_common_cipher(context: ssl.SSLContext) -> ssl.SSLContext:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-SHA256")
    return context


def test_the_cas_of_the_system_do_not_trust_a_private_one(ours: Authority) -> None:
    with StubService([stub.ok], context=ours.context(*NAMES)) as service:
        assert outcomes(service.url, Access(ServiceCredentials({}, secure=True))) == [NotSent("tls-untrusted")]


def test_a_service_without_tls_is_no_attempt(access: Access) -> None:
    with StubService([stub.answer(400)]) as service:
        secure = service.url.replace("http:", "https:")
        # Its parser waits for the end of a head that never comes.
        assert outcomes(secure, access, connect_timeout_ms=SHORT_MS) == [NotSent("connect-timeout")]


@pytest.mark.parametrize(
    ("greet", "reason"),
    [
        (lambda connection: connection.close(), "tls-handshake"),
        (lambda connection: (connection.recv(1), connection.close()), "tls-handshake"),
        (
            lambda connection: (connection.recv(4096), connection.sendall(b"\x16\x03\x03"), connection.close()),
            "tls-handshake",
        ),
        (lambda connection: connection.sendall(b"220 mail.example ESMTP\r\n"), "tls-handshake"),
        (lambda connection: connection.recv(1), "connect-timeout"),
    ],
    ids=["closed", "reset", "closed amid", "not TLS", "slow"],
)
def test_a_handshake_that_dies_is_no_attempt_and_leaves_nothing(
    access: Access, greet: Callable[[object], object], reason: str
) -> None:
    """A hundred of them: no descriptor, thread or memory is left."""
    with Greeter(greet) as service:

        async def work() -> None:
            push = a_push(service.url, access, connect_timeout_ms=100 if reason == "connect-timeout" else 10_000)

            async def one(number: int) -> None:
                assert await deliver(push, a_record(number, bytes(100_000))) == NotSent(reason)

            await one(0)
            with nothing_left(40):
                for turn in range(25):
                    await asyncio.gather(*(one(turn * 4 + number) for number in range(4)))
                assert push.connections == 0
                service.forget()
            push.close()

        run(work)


def test_a_client_certificate_is_shown(ours: Authority, access: Access) -> None:
    with StubService([stub.ok], context=ours.context(*NAMES, mutual=ours)) as service:
        assert outcomes(service.url, access) == [COMMITTED]
        assert service.handshakes == ["sidecar"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate_that_is_missing_or_refused_is_no_attempt(
    ours: Authority, other: Authority, service_files: ServiceFiles, access: Access, version: ssl.TLSVersion
) -> None:
    """Under TLS 1.3 the service says so when the request may be sent already."""
    missed, refused = ours.context(*NAMES, mutual=ours), ours.context(*NAMES, mutual=other)
    for context in (missed, refused):
        context.maximum_version = version
    # Under TLS 1.2 nothing but a failed handshake is said of one that is missing.
    unsaid = "tls-handshake" if version is ssl.TLSVersion.TLSv1_2 else "tls-client-refused"
    with StubService([stub.ok], context=missed) as service:
        assert outcomes(service.url, without_certificate(service_files), 3) == [NotSent(unsaid)] * 3
        assert service.requests == []
    with StubService([stub.ok], context=refused) as service:
        assert outcomes(service.url, access, 3) == [NotSent("tls-client-refused")] * 3
        assert service.requests == []


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        (stub.close_before, Failed("connection-lost")),
        (stub.close_mid_json, Failed("connection-lost")),
        (stub.garbage, Failed("broken-answer")),
        (stub.endless_headers, Failed("broken-answer")),
        (stub.read_to_close, COMMITTED),
        (stub.chunked, COMMITTED),
        (stub.drip(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), COMMITTED),
        (stub.connection_close, COMMITTED),
    ],
)
def test_an_answer_means_by_tls_what_it_means_without(
    ours: Authority, access: Access, behaviour: stub.Behaviour, outcome: Outcome
) -> None:
    with StubService([behaviour], context=ours.context(*NAMES)) as service:
        (found,) = outcomes(service.url, access)
        assert getattr(found, "reason", "") == getattr(outcome, "reason", "")
        assert type(found) is type(outcome)


VERDICT = b'HTTP/1.1 500 Oh\r\nContent-Type: application/json\r\n\r\n{"verdict": "commit"}'


def ended_in_order(talk: stub.Talk) -> bool:
    """A verdict whose body ends with the connection, and TLS with its own end."""
    talk.say(VERDICT)
    assert isinstance(talk.connection, ssl.SSLSocket)
    talk.connection.unwrap()
    return False


@pytest.mark.parametrize(("behaviour", "kind"), [(ended_in_order, Committed), (stub.raw(VERDICT, keep=False), Failed)])
def test_a_body_that_ends_with_its_connection_counts_if_nobody_else_can_have_ended_it(
    ours: Authority, access: Access, behaviour: stub.Behaviour, kind: type[Outcome]
) -> None:
    with StubService([behaviour], context=ours.context(*NAMES)) as service:
        (found,) = outcomes(service.url, access)
        assert isinstance(found, kind)


def test_the_time_of_a_slow_handshake_is_no_part_of_that_of_the_answer(ours: Authority, access: Access) -> None:
    """Given a handshake and an answer that take half of the timeout and more each, then the answer counts."""
    context, half = ours.context(*NAMES), 0.6

    def slow(connection: socket.socket) -> None:
        time.sleep(half)
        with context.wrap_socket(connection, server_side=True) as secure:
            read_request(secure)
            time.sleep(half)
            secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with Greeter(slow) as service:
        assert outcomes(service.url, access, timeout_ms=1_000) == [COMMITTED]


def test_a_large_value_arrives_whole(ours: Authority, access: Access) -> None:
    value = bytes(range(256)) * 16_384
    with StubService([stub.ok], context=ours.context(*NAMES)) as service:

        async def work() -> None:
            push = a_push(service.url, access)
            for number in range(2):
                assert await deliver(push, a_record(number, value)) is COMMITTED
            push.close()

        run(work)
        assert service.requests[1].partition(b"\r\n\r\n")[2] == value
        assert service.connections == 1


def test_an_early_refusal_of_a_large_value_is_an_answer_and_the_next_record_is_delivered(
    ours: Authority, access: Access
) -> None:
    value = bytes(1 << 24)
    early = stub.answer(413)
    with StubService([early, stub.ok], early=True, context=ours.context(*NAMES)) as service:

        async def work() -> None:
            push = a_push(service.url, access)
            assert await deliver(push, a_record(0, value)) == Failed("http-413")
            assert await deliver(push, a_record(1)) is COMMITTED
            push.close()

        run(work)


def test_a_connection_that_the_service_closed_while_idle_is_not_used(ours: Authority, access: Access) -> None:
    with StubService([stub.close_idle], context=ours.context(*NAMES)) as service:

        async def work() -> None:
            push = a_push(service.url, access)
            for number in range(3):
                assert await deliver(push, a_record(number)) is COMMITTED
                await settled(lambda: push.connections == 0)
            push.close()

        run(work)
        assert service.connections == 3


def test_closing_cancels_what_is_amid_its_handshake(access: Access) -> None:
    with Greeter(lambda connection: None) as service:

        async def work() -> None:
            push = a_push(service.url, access)
            delivery = asyncio.ensure_future(deliver(push, a_record()))
            await settled(lambda: push.connections == 1)
            await asyncio.sleep(0.05)
            push.close()
            assert await delivery == CANCELLED
            assert push.connections == 0

        run(work)


def test_many_deliveries_at_once_have_a_connection_each(ours: Authority, access: Access) -> None:
    with StubService([stub.ok], context=ours.context(*NAMES, mutual=ours)) as service:

        async def work() -> None:
            push = a_push(service.url, access)
            for turn in range(10):
                records = [a_record(turn * 32 + number) for number in range(32)]
                assert await asyncio.gather(*(deliver(push, record) for record in records)) == [COMMITTED] * 32
            push.close()

        run(work)
        assert len(service.requests) == 320
        assert service.connections <= 32


def test_batches_go_by_tls_and_carry_token_and_signature(
    ours: Authority, service_files: ServiceFiles, access: Access
) -> None:
    with StubService([stub.ok], context=ours.context(*NAMES, mutual=ours)) as service:

        async def work() -> None:
            feeder = Feeder(service.url, access=access)
            feeder.feed(*(a_record(number) for number in range(6)))
            await feeder.answered(6)
            assert list(feeder.found.values()) == [COMMITTED] * 6
            feeder.batches.close()

        run(work)
        assert sorted(batches(service)) == [[0, 1, 2], [3, 4, 5]]
        for request in service.requests:
            assert f"Authorization: Bearer {service_files.token}\r\n".encode() in request
            assert b"webhook-id: batch-" in request


def test_a_look_whether_the_service_is_there_makes_the_handshake(
    ours: Authority, other: Authority, access: Access
) -> None:
    found: list[str] = []

    async def look(url: str) -> None:
        check = ConnectionCheck(parse_target(url, False), found.append, access)
        before = len(found)
        check.ask()
        await settled(lambda: len(found) > before)

    with (
        StubService([stub.ok], context=ours.context(*NAMES)) as good,
        StubService([stub.ok], context=other.context(*NAMES)) as strange,
    ):
        run(lambda: look(good.url))
        run(lambda: look(strange.url))
    assert found == ["", "tls-untrusted"]


@pytest.mark.parametrize("same", [True, False])
def test_the_health_url_gets_the_token_only_if_it_is_the_server_that_gets_the_records(
    ours: Authority, service_files: ServiceFiles, same: bool
) -> None:
    """And it is never signed: there is no message."""
    credentials = ServiceCredentials(service_files.named, secure=True)
    with StubService([stub.ok], context=ours.context(*NAMES)) as service:

        async def work() -> None:
            pace = Pace(1, guarded=True)
            health = parse_target(service.url.replace("/events", "/health"), False)
            records = parse_target(service.url if same else "https://localhost:1/", False)
            access = health_access(credentials, records, health)
            check = HealthCheck(health, pace, lambda _now: None, now, access=access)
            check.watch()
            await settled(lambda: bool(service.requests))
            check.close()
            await settled(lambda: check.connections == 0)

        run(work)
        (request, *_) = service.requests
        assert request.startswith(b"GET /health ")
        assert (f"Authorization: Bearer {service_files.token}\r\n".encode() in request) == same
        assert b"webhook-" not in request
