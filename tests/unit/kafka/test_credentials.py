"""How newer credentials reach clients: a password as it is, anything else by a new client, each in its turn."""

from __future__ import annotations

from sidecar.kafka.credentials.registry import Keyring, Keys

FIRST = Keys(0, 0, {"sasl.username": "me", "sasl.password": "one"})
BY_LOGIN = Keys(1, 0, {"sasl.username": "me", "sasl.password": "two"})
BY_CERTIFICATE = Keys(2, 2, {"sasl.username": "me", "sasl.password": "two"})


class Spy:
    """Stands where a Kafka client is; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def set_sasl_credentials(self, username: str, password: str) -> None:
        self.told.append((username, password))


def test_a_client_begins_with_the_newest_keys() -> None:
    wearing = Keyring(FIRST).wearing("main")
    assert wearing.put_on({"client.id": "x", "sasl.password": "old"}) == {"client.id": "x", **FIRST.properties}
    assert wearing.keep(Spy())


def test_a_new_password_is_given_to_every_client_once() -> None:
    wearing, spies = Keyring(FIRST).wearing("main"), (Spy(), Spy())
    wearing.offer(BY_LOGIN)
    assert wearing.keep(*spies)
    assert wearing.keep(*spies)
    assert [spy.told for spy in spies] == [[("me", "two")], [("me", "two")]]
    assert wearing.worn is BY_LOGIN


def test_a_new_certificate_takes_a_new_client() -> None:
    ring, spy = Keyring(FIRST), Spy()
    wearing = ring.wearing("main")
    ring.newest = BY_CERTIFICATE
    wearing.offer(BY_CERTIFICATE)
    assert not wearing.keep(spy)
    assert wearing.worn is FIRST
    wearing.put_on({})
    assert wearing.keep(spy)
    assert spy.told == []


def test_a_password_that_comes_after_a_certificate_that_was_missed_takes_a_new_client_too() -> None:
    wearing = Keyring(FIRST).wearing("main")
    wearing.offer(Keys(3, 2, {}))
    assert not wearing.keep(Spy())


def test_nobody_changes_before_it_is_their_turn() -> None:
    ring = Keyring(FIRST)
    wearing = ring.wearing("main")
    ring.newest = BY_CERTIFICATE
    assert wearing.keep(Spy())
    assert wearing.outdated
    assert wearing.newest({}) == BY_CERTIFICATE.properties


def test_keys_in_a_traceback_show_nothing() -> None:
    assert repr(BY_LOGIN) == "Keys(1)"
