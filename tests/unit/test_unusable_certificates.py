"""Files of certificates that cannot be used, as a renewal leaves them for a moment: they end no thread and no loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.delivery.push.access import ServiceCredentials
from reconsume.sidecar.delivery.push.credentials import CA, CERTIFICATE, KEY, read_credentials
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.sidecar.kafka.client_check import client_faults
from reconsume.sidecar.kafka.clients import make_client, new_client, unchanging
from reconsume.sidecar.kafka.credentials.reachability import Unreachable, answers, distrust
from tests.support.deadline import until
from tests.support.kafka.certificates import Authority, locked
from tests.support.sidecar.service_files import ServiceFiles

Pair = tuple[bytes, bytes]
Hurt = Callable[[Authority, Pair], Pair]
KINDS: dict[str, Hurt] = {
    "a key of another certificate": lambda ours, pair: (pair[0], ours.issue("other")[1]),
    "a certificate that is empty": lambda ours, pair: (b"", pair[1]),
    "a key that is empty": lambda ours, pair: (pair[0], b""),
    "half of a certificate": lambda ours, pair: (pair[0][: len(pair[0]) // 3], pair[1]),
    "half of a key": lambda ours, pair: (pair[0], pair[1][: len(pair[1]) // 2]),
    "noise": lambda ours, pair: (bytes(range(256)), bytes(range(256))),
    "PEM without base64": lambda ours, pair: (
        b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
        pair[1],
    ),
    "a key with a passphrase that nobody gave": lambda ours, pair: (pair[0], locked(pair[1], "sesame")),
}


class Stopping:
    """A stop after so many waits."""

    def __init__(self, waits: int) -> None:
        self.left = waits

    def wait(self, timeout: float) -> bool:
        del timeout
        self.left -= 1
        return self.left <= 0


def kafka_of(folder: Path, pair: Pair, ca: Path) -> dict[str, str]:
    certificate, key = folder / "client.crt", folder / "client.key"
    certificate.write_bytes(pair[0])
    key.write_bytes(pair[1])
    return {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SSL",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }


def retried(config: Mapping[str, str]) -> object:
    credentials = unchanging()
    assert new_client(Consumer, {**config, "group.id": "g", "log_level": 0}, credentials, Stopping(3)) is None
    assert credentials.refused is not None
    return credentials.refused


def unreachable(config: Mapping[str, str]) -> object:
    answer = answers(config)
    assert isinstance(answer, Unreachable)
    return answer


def refused(make: Callable[[], object], *kinds: type[Exception]) -> object:
    with pytest.raises(kinds) as caught:
        make()
    return caught.value


PLACES: dict[str, Callable[[dict[str, str]], object]] = {
    "a client that a thread makes until it can": retried,
    "the trial of new credentials": unreachable,
    "an admin client": lambda kafka: refused(lambda: Connection(kafka), ConfigError),
    "a producer": lambda kafka: refused(lambda: make_client(Producer, {**kafka, "log_level": 0}), KafkaException),
    "config check": client_faults,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_kafkas_clients_refuse_them_by_the_one_error_that_threads_expect(
    tmp_path: Path, ours: Authority, kind: str, place: str
) -> None:
    config = kafka_of(tmp_path, KINDS[kind](ours, ours.issue("sidecar.test")), ours.file)
    assert PLACES[place](config)


@pytest.mark.parametrize("place", PLACES)
def test_a_wrong_passphrase_is_such_an_error_too(tmp_path: Path, ours: Authority, place: str) -> None:
    certificate, key = ours.issue("sidecar.test")
    config = kafka_of(tmp_path, (certificate, locked(key, "sesame")), ours.file)
    assert PLACES[place]({**config, "ssl.key.password": "wrong"})


@pytest.mark.parametrize(
    "ca", [b"", b"noise", b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n", b"\xff"]
)
def test_why_a_broker_is_not_trusted_is_found_out_or_not_and_nothing_is_raised(tmp_path: Path, ca: bytes) -> None:
    (file := tmp_path / "ca").write_bytes(ca)
    texts = {"ssl.ca.pem": ca.decode("latin-1")}
    for kafka in ({"ssl.ca.location": str(file)}, texts):
        assert distrust(["127.0.0.1:1", ".:1", f"{'x' * 300}:1"], kafka) is None


@pytest.mark.parametrize("client_class", [Consumer, Producer, AdminClient])
@pytest.mark.parametrize("error", [ValueError("a line of a key"), OSError("gone")])
def test_what_the_tls_library_raises_below_a_client_is_that_error_too(
    monkeypatch: pytest.MonkeyPatch, client_class: type, error: Exception
) -> None:
    """Given a thread that makes a client again and again, then the next usable files are taken up."""
    tries: list[object] = []

    def make(config: dict[str, Any]) -> object:
        tries.append(config)
        if len(tries) < 3:
            raise error
        return client_class

    credentials = unchanging()
    assert new_client(make, {}, credentials, Stopping(9)) is client_class
    assert (len(tries), credentials.refused) == (3, None)
    with pytest.raises(KafkaException) as caught:
        make_client(lambda config: tries.clear() or make(config), {})
    assert "a line of a key" not in str(caught.value), "an error may quote the file"


@pytest.mark.parametrize("kind", KINDS)
def test_for_the_service_they_are_one_sentence(service_files: ServiceFiles, ours: Authority, kind: str) -> None:
    pair = KINDS[kind](ours, (service_files.read(CERTIFICATE), service_files.read(KEY)))
    for name, content in zip((CERTIFICATE, KEY), pair, strict=True):
        service_files.write(name, content)
    with pytest.raises(ConfigError):
        read_credentials(service_files.named, secure=True)


def test_the_service_credentials_that_come_after_them_are_taken_up(
    service_files: ServiceFiles, ours: Authority
) -> None:
    """Given one kind after the other while the files are followed, then the good ones behind each are in use."""

    async def story() -> None:
        held = ServiceCredentials(service_files.named, secure=True)
        following = asyncio.create_task(held.follow(0.01))
        for hurt in KINDS.values():
            good, before = (service_files.read(CERTIFICATE), service_files.read(KEY)), held.current
            for name, content in zip((CERTIFICATE, KEY), hurt(ours, good), strict=True):
                service_files.write(name, content)
            service_files.write(CA, b"")
            await arrives(lambda: held.problem)
            service_files.write(CA, ours.pem)
            service_files.renew_certificate()
            await arrives(lambda before=before: not held.problem and held.current is not before)
        assert not following.done()
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following

    asyncio.run(story())


async def arrives(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(until, condition, 20, "it was noticed")
