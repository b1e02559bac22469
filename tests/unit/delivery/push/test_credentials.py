"""The files with what the service is called with: read whole or not at all, and never shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reconsume.sidecar.delivery.push.credentials import CA, CERTIFICATE, KEY, LARGEST, SECRETS, TOKEN, read_credentials
from reconsume.sidecar.errors import ConfigError
from tests.support.kafka.certificates import Authority, locked
from tests.support.sidecar.service_files import ServiceFiles


def faults(service_files: ServiceFiles) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read_credentials(service_files.named, secure=True)
    text = str(refused.value)
    assert not any(secret in text for secret in (service_files.token, service_files.secret))
    return refused.value.problems


def test_good_files_are_read(service_files: ServiceFiles) -> None:
    read = read_credentials(service_files.named, secure=True)
    assert (read.token, len(read.secrets)) == (service_files.token, 1)
    assert read.context is not None
    assert read.context.check_hostname
    assert service_files.token not in repr(read)


def test_a_certificate_and_its_key_may_be_in_one_file(service_files: ServiceFiles) -> None:
    pem = service_files.read(CERTIFICATE) + service_files.read(KEY)
    service_files.write(CERTIFICATE, pem)
    del service_files.named[KEY]
    assert read_credentials(service_files.named, secure=True).context is not None


def test_every_version_of_the_files_has_a_digest_of_its_own(service_files: ServiceFiles) -> None:
    first = read_credentials(service_files.named, secure=True)
    service_files.write(TOKEN, b"another")
    second = read_credentials(service_files.named, secure=True)
    assert (first.digest == second.digest, first.tls_digest == second.tls_digest) == (False, True)
    service_files.renew_certificate()
    third = read_credentials(service_files.named, secure=True)
    assert (second.digest == third.digest, second.tls_digest == third.tls_digest) == (False, False)


def gone(path: Path) -> None:
    path.unlink()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def too_long(path: Path) -> None:
    path.write_bytes(b"A" * (5 << 20))


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", [CA, CERTIFICATE, KEY, TOKEN, SECRETS])
@pytest.mark.parametrize(
    ("hurt", "says"),
    [
        (gone, "is not there"),
        (pipe, "cannot be read: it is a pipe"),
        (device, "cannot be read: it is a device"),
        (folder, "cannot be read: it is a folder"),
        (too_long, "cannot be read: it has more than "),
        (noise, ""),
        (empty, ""),
    ],
)
def test_what_is_no_such_file_is_one_sentence_with_its_setting(
    service_files: ServiceFiles, name: str, hurt: Callable[[Path], None], says: str
) -> None:
    hurt(service_files.named[name])
    (fault,) = faults(service_files)
    # Certificate and key are judged together.
    assert fault.startswith(f"{CERTIFICATE if name == KEY and not says else name} = ")
    assert says in fault


def test_all_bad_files_are_named_together(service_files: ServiceFiles) -> None:
    for name in service_files.named:
        empty(service_files.named[name])
    assert [fault.partition(" ")[0] for fault in faults(service_files)] == [TOKEN, SECRETS, CA]


def test_a_key_of_another_certificate_is_named(service_files: ServiceFiles, ours: Authority) -> None:
    service_files.write(KEY, ours.issue("other")[1])
    assert faults(service_files) == [
        f"{CERTIFICATE} = {service_files.named[CERTIFICATE]}: its key is not that of its certificate"
    ]


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(service_files: ServiceFiles) -> None:
    service_files.write(KEY, locked(service_files.read(KEY), "sesame"))
    assert faults(service_files) == [
        f"{KEY} = {service_files.named[KEY]}: its key has a passphrase; mount it without one"
    ]


def test_each_file_has_a_bound(service_files: ServiceFiles) -> None:
    assert set(LARGEST) == set(service_files.named)
