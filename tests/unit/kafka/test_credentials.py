"""How newer credentials reach clients: a password as it is, anything else by a new client, each in its turn."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reconsume.sidecar.kafka.clients import CredentialRegistry, Credentials
from reconsume.sidecar.kafka.committer import replaceable_producer
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from reconsume.sidecar.kafka.queues.queue_clients import QueueClients
from reconsume.sidecar.kafka.queues.queue_thread import QueueHelp, QueueThread
from reconsume.sidecar.observability.thread_watch import StopRequest
from tests.sim.ladder_rig import rules

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


def test_a_reader_of_queues_that_has_none_to_read_takes_new_keys_all_the_same() -> None:
    """Each client is waited for, in its turn: one that reads nothing would have all behind it wait in vain."""
    ring = CredentialRegistry(FIRST)
    config, lane = {"bootstrap.servers": "localhost:1", "group.id": "billing"}, cast("Any", None)
    thread = QueueThread(config, lane, ring, 1 << 20, QueueHelp(rules, lambda _wanted: frozenset()))
    (credentials,) = ring.clients
    for keys in (BY_LOGIN, BY_CERTIFICATE):
        ring.newest = keys
        credentials.offer(keys)
        thread._commands.put(None)  # else the turn waits for one
        thread._turn()
        assert credentials.applied is keys


def test_clients_of_a_reader_that_has_no_queue_any_more_end_with_their_keys() -> None:
    ring = CredentialRegistry(FIRST)
    credentials, closed = ring.register("queues"), list[str]()
    config: Any = {"bootstrap.servers": "localhost:1"}
    clients: Any = QueueClients(config, credentials, StopRequest())
    clients.following = SimpleNamespace(close=lambda: closed.append("following"))
    clients.reader = SimpleNamespace(close=lambda: closed.append("reader"))
    clients._has_both = True
    clients.keep_up()
    assert closed == [], "the keys are the same"
    ring.newest = BY_CERTIFICATE
    credentials.offer(BY_CERTIFICATE)
    clients.keep_up()
    assert closed == ["following", "reader"]
    assert credentials.applied is BY_CERTIFICATE


@pytest.mark.parametrize("keys", [BY_LOGIN, BY_CERTIFICATE], ids=["login", "certificate"])
def test_keys_that_come_while_a_producer_is_being_made_reach_it(
    monkeypatch: pytest.MonkeyPatch, keys: Credentials
) -> None:
    """An idle committer does nothing by which it would notice."""
    ring = CredentialRegistry(FIRST)
    credentials = ring.register("committer", lambda: supply.take_credentials() or pytest.fail("asked in time"))
    supply = ReplaceableProducer({"transactional.id": "a"}, threading.Event(), credentials)

    class Made(Spy):
        """A producer that is handed keys while it is being made ready, the first time."""

        def __init__(self, _config: object) -> None:
            super().__init__()
            self.ended = False

        def prepare(self) -> None:
            if ring.newest is not keys:
                ring.newest = keys
                credentials.offer(keys)

        def end(self) -> None:
            self.ended = True

    monkeypatch.setattr(replaceable_producer, "TransactionalProducer", Made)
    supply.replace()
    made: Any = supply.producer
    assert credentials.applied is keys
    assert made.told == ([("me", "two")] if keys is BY_LOGIN else [])
    assert not made.ended
    assert supply.made == (1 if keys is BY_LOGIN else 2)
