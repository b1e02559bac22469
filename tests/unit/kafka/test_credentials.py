"""How newer credentials reach clients: a password as it is, anything else by a new client, each in its turn."""

from __future__ import annotations

from sidecar.kafka.credentials.registry import CredentialRegistry, Credentials

FIRST = Credentials(0, 0, {"sasl.username": "me", "sasl.password": "one"})
BY_LOGIN = Credentials(1, 0, {"sasl.username": "me", "sasl.password": "two"})
BY_CERTIFICATE = Credentials(2, 2, {"sasl.username": "me", "sasl.password": "two"})


class Spy:
    """Stands where a Kafka client is; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def set_sasl_credentials(self, username: str, password: str) -> None:
        self.told.append((username, password))


def test_a_client_begins_with_the_newest_keys() -> None:
    credentials = CredentialRegistry(FIRST).register("main")
    assert credentials.adopt({"client.id": "x", "sasl.password": "old"}) == {"client.id": "x", **FIRST.properties}
    assert credentials.apply_to(Spy())


def test_a_new_password_is_given_to_every_client_once() -> None:
    credentials, spies = CredentialRegistry(FIRST).register("main"), (Spy(), Spy())
    credentials.offer(BY_LOGIN)
    assert credentials.apply_to(*spies)
    assert credentials.apply_to(*spies)
    assert [spy.told for spy in spies] == [[("me", "two")], [("me", "two")]]
    assert credentials.applied is BY_LOGIN


def test_a_new_certificate_takes_a_new_client() -> None:
    ring, spy = CredentialRegistry(FIRST), Spy()
    credentials = ring.register("main")
    ring.newest = BY_CERTIFICATE
    credentials.offer(BY_CERTIFICATE)
    assert not credentials.apply_to(spy)
    assert credentials.applied is FIRST
    credentials.adopt({})
    assert credentials.apply_to(spy)
    assert spy.told == []


def test_a_password_that_comes_after_a_certificate_that_was_missed_takes_a_new_client_too() -> None:
    credentials = CredentialRegistry(FIRST).register("main")
    credentials.offer(Credentials(3, 2, {}))
    assert not credentials.apply_to(Spy())


def test_nobody_changes_before_it_is_their_turn() -> None:
    ring = CredentialRegistry(FIRST)
    credentials = ring.register("main")
    ring.newest = BY_CERTIFICATE
    assert credentials.apply_to(Spy())
    assert credentials.outdated
    assert credentials.newest({}) == BY_CERTIFICATE.properties


def test_keys_in_a_traceback_show_nothing() -> None:
    assert repr(BY_LOGIN) == "Credentials(1)"
