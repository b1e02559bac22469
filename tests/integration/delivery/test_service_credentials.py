"""Credentials that are renewed while requests are out: no request is dropped, and what is bad changes nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, NotSent
from reconsume.sidecar.delivery.push.access import LOOK_EVERY, Access, ServiceCredentials
from reconsume.sidecar.delivery.push.credentials import CA, CERTIFICATE, SECRETS, TOKEN
from reconsume.sidecar.delivery.push.pool import Push
from reconsume.sidecar.delivery.push.signature import secrets_in
from reconsume.sidecar.observability.repeats import Repeats
from tests.integration.delivery.batch_client import Feeder
from tests.support.freed import nothing_left
from tests.support.kafka.certificates import Authority
from tests.support.service import stub_service as stub
from tests.support.service.signatures import takes
from tests.support.service.stub_service import StubService
from tests.support.sidecar.push_client import SECONDS, a_push, a_record, deliver, run, settled
from tests.support.sidecar.push_requests import Read
from tests.support.sidecar.service_files import ServiceFiles

SOON = 0.02
"""Seconds between two looks at the files in these tests."""
NAMES = ("127.0.0.1",)


def verifies(request: Read, secret: str) -> bool:
    """Whether a receiver with this secret takes the request."""
    return takes({name.lower(): value for name, value in request.headers}, request.body, secret)


def following(credentials: ServiceCredentials, work: Callable[[], Awaitable[None]]) -> None:
    """Run while the files are looked at."""

    async def both() -> None:
        follow = asyncio.ensure_future(credentials.follow(SOON))
        await work()
        assert not follow.done()
        follow.cancel()

    run(both)


def test_a_change_is_noticed_within_the_time_that_is_promised() -> None:
    assert LOOK_EVERY <= 30 / 2


class Gate:
    """A service that answers when it is opened, and at once from then on."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, talk: stub.Talk) -> bool:
        self.open.wait(SECONDS)
        return stub.ok(talk)


def test_a_renewed_token_and_secret_go_with_the_next_request_on_the_same_connection(
    ours: Authority, service_files: ServiceFiles
) -> None:
    credentials = ServiceCredentials(service_files.named, secure=True)
    with StubService([stub.ok], context=ours.context(*NAMES, mutual=ours)) as service:

        async def work() -> None:
            push = a_push(service.url, Access(credentials), idle_ms=60_000)
            for _ in range(3):
                assert await deliver(push, a_record()) is COMMITTED
                request = Read(service.requests[-1])
                assert request["Authorization"] == f"Bearer {service_files.token}"
                assert verifies(request, service_files.secret)
                former = service_files.secret
                service_files.renew_token()
                service_files.renew_secret(beside=True)
                newest = secrets_in(service_files.secret.encode())
                await settled(partial(in_force, credentials, service_files.token, newest))
                assert await deliver(push, a_record()) is COMMITTED
                assert all(verifies(Read(service.requests[-1]), secret) for secret in (former, service_files.secret))
            push.close()

        following(credentials, work)
        assert service.connections == 1


def in_force(credentials: ServiceCredentials, token: str, newest: tuple[bytes, ...]) -> bool:
    """Whether this token, and this secret before all others, are in use."""
    return credentials.current.token == token and credentials.current.secrets[:1] == newest


def until_renewed(credentials: ServiceCredentials) -> Callable[[], bool]:
    former = credentials.current
    return lambda: credentials.current is not former


@pytest.mark.parametrize("out", [1, 12], ids=["few", "many"])
def test_a_certificate_renewed_while_requests_are_out_is_shown_by_the_next_and_drops_none(
    ours: Authority, service_files: ServiceFiles, out: int
) -> None:
    """Those that are out are answered on their connections, which then carry no other request."""
    credentials, gate = ServiceCredentials(service_files.named, secure=True), Gate()
    with StubService([gate], context=ours.context(*NAMES, mutual=ours)) as service:

        async def work() -> None:
            push = a_push(service.url, Access(credentials), idle_ms=60_000)
            first = [asyncio.ensure_future(deliver(push, a_record(number))) for number in range(out)]
            await settled(lambda: len(service.requests) == out)
            renewed = until_renewed(credentials)
            service_files.renew_certificate("renewed")
            await settled(renewed)
            gate.open.set()
            assert await asyncio.gather(*first) == [COMMITTED] * out
            assert await asyncio.gather(*(deliver(push, a_record(100 + n)) for n in range(out))) == [COMMITTED] * out
            assert set(service.handshakes) == {"sidecar", "renewed"}
            assert service.handshakes[:out] == ["sidecar"] * out
            assert "renewed" in service.handshakes
            assert len(service.requests) == 2 * out, "no request was sent twice"
            push.close()

        following(credentials, work)


def test_an_idle_connection_of_a_former_certificate_is_closed(ours: Authority, service_files: ServiceFiles) -> None:
    credentials = ServiceCredentials(service_files.named, secure=True)
    with StubService([stub.ok], context=ours.context(*NAMES, mutual=ours)) as service:

        async def work() -> None:
            push = a_push(service.url, Access(credentials), idle_ms=60_000)
            assert await deliver(push, a_record()) is COMMITTED
            service_files.renew_certificate("renewed")
            await settled(lambda: push.connections == 0)
            assert await deliver(push, a_record(1)) is COMMITTED
            push.close()

        following(credentials, work)
        assert service.handshakes == ["sidecar", "renewed"]


def test_a_ca_renewed_in_two_steps_never_loses_the_service(
    ours: Authority, other: Authority, service_files: ServiceFiles
) -> None:
    """First both CAs, then the service's certificate, then the next CA alone; batches go on meanwhile."""
    credentials = ServiceCredentials(service_files.named, secure=True)
    with StubService([stub.ok], context=ours.context(*NAMES)) as service:

        async def work() -> None:
            feeder = Feeder(service.url, access=Access(credentials), places=60)
            delivered = 0

            async def some() -> None:
                nonlocal delivered
                feeder.feed(*(a_record(delivered + number) for number in range(30)))
                delivered += 30
                await feeder.answered(delivered)

            for step in ([ours, other], [other]):
                await some()
                renewed = until_renewed(credentials)
                service_files.write(CA, b"".join(authority.pem for authority in step))
                await settled(renewed)
                await some()
                service.context = other.context(*NAMES)
            await some()
            assert list(feeder.found.values()) == [COMMITTED] * delivered
            feeder.batches.close()

        following(credentials, work)


@pytest.mark.parametrize("name", [CA, CERTIFICATE, TOKEN, SECRETS])
@pytest.mark.parametrize("content", [b"", b"nonsense\nnonsense", None], ids=["empty", "nonsense", "gone"])
def test_a_file_that_is_bad_at_run_time_is_told_and_the_former_stays(
    ours: Authority, service_files: ServiceFiles, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None
) -> None:
    credentials = ServiceCredentials(service_files.named, secure=True)
    good, token = service_files.read(name), service_files.token
    with StubService([stub.ok], context=ours.context(*NAMES, mutual=ours)) as service:

        async def work() -> None:
            push = a_push(service.url, Access(credentials))
            if content is None:
                service_files.named[name].unlink()
            else:
                service_files.write(name, content)
            await settled(lambda: bool(credentials.problem))
            assert credentials.problem.startswith(f"{name} = {service_files.named[name]}: ")
            assert await deliver(push, a_record()) is COMMITTED
            assert Read(service.requests[-1])["Authorization"] == f"Bearer {token}"
            service_files.write(name, good)
            await settled(lambda: not credentials.problem)
            push.close()

        with caplog.at_level(logging.INFO, logger="reconsume"):
            following(credentials, work)
    (line, *_) = caplog.records
    assert (line.levelname, line.__dict__["event"]) == ("ERROR", "service-credentials-unusable")
    assert name in line.getMessage()
    assert not any(secret in caplog.text for secret in (service_files.token, service_files.secret, "nonsense"))


def test_a_bad_file_is_logged_once_a_minute() -> None:
    """The limit of all lines does it: each look writes the same one."""
    repeats, text = Repeats(), "credentials for the service cannot be used; the former stay in use: %s"
    record = logging.LogRecord("reconsume.service-credentials", logging.ERROR, "", 0, text, ("x",), None)
    record.event = "service-credentials-unusable"
    written = [repeats.admit(record, LOOK_EVERY * look) for look in range(6)]
    assert written == [True, False, False, False, False, False]


def test_a_certificate_that_the_service_takes_no_more_ends_in_an_outage_until_it_is_renewed(
    ours: Authority, other: Authority, tmp_path: Path
) -> None:
    service_files = ServiceFiles(tmp_path / "mounted", ours)
    credentials = ServiceCredentials(service_files.named, secure=True)
    with StubService([stub.ok], context=ours.context(*NAMES, mutual=other)) as service:

        async def work() -> None:
            push = a_push(service.url, Access(credentials))
            assert await deliver(push, a_record()) == NotSent("tls-client-refused")
            renewed = until_renewed(credentials)
            certificate, key = other.issue("sidecar.test", common_name="renewed")
            service_files.named[CERTIFICATE].write_bytes(certificate + key)
            service_files.named["deliver.tls.key_file"].write_bytes(key)
            await settled(renewed)
            assert await deliver(push, a_record()) is COMMITTED
            push.close()

        following(credentials, work)


def test_a_hundred_renewals_leave_nothing(ours: Authority, service_files: ServiceFiles) -> None:
    credentials = ServiceCredentials(service_files.named, secure=True)
    with StubService([stub.ok], context=ours.context(*NAMES, mutual=ours)) as service:

        async def turn(push: Push) -> None:
            renewed = until_renewed(credentials)
            service_files.renew_token()
            service_files.write(CA, service_files.read(CA) + b"\n")
            await settled(renewed)
            assert await deliver(push, a_record(0, bytes(100_000))) is COMMITTED
            service.requests.clear()

        async def work() -> None:
            push = a_push(service.url, Access(credentials))
            await turn(push)
            with nothing_left(20):
                for _ in range(100):
                    await turn(push)
                await settled(lambda: push.connections <= 1)
            push.close()

        following(credentials, work)
