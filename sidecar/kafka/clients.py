"""Make Kafka clients in the sidecar and in commands, and hand newer credentials to each client of the process.

*Making.* The client library refuses properties and files by KafkaException. What it refuses before or below that (a
file that is replaced while it is read, a text that is no text) is a ValueError or an OSError of Python or of OpenSSL.
Threads that make clients again and again expect KafkaException alone: a renewed certificate that cannot be used must
end none of them (contract 14.2). At run time such a thread tries without end (`new_client`).

*One operation.* A command, a call of the API or a form of the dashboard reads and writes Kafka a dozen times, and each
client has five threads, a dozen descriptors and a login of its own. So within `one_operation`, a context of one thread,
a client that is returned is kept for the next request for one of the same class and properties; the end of the
operation closes them all. Code that needs a client for a short time calls `take_client` and `return_client`, whether or
not an operation is in progress. Clients are not kept for longer: what a client knows of a topic is out of date once the
topic is recreated.

*Newer credentials.* A running client takes a changed password. Any other change (certificates, a client's secret) needs
a new client, made by the thread that owns it when it suits that thread. `credentials/watcher.py` reads the files and
offers what is new through the registry; this module reads none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from reconsume.sidecar.kafka.errors import Lists, sentence_of
from reconsume.topics.client_rules import UnsafePropertyError, checked_client

C = TypeVar("C")


def make_client(client_class: Callable[[dict[str, Any]], C], config: Mapping[str, object]) -> C:
    """Return a consumer, producer or admin client with these properties of librdkafka.

    Raises KafkaException if it cannot be made, and UnsafePropertyError for a property that brings code along.
    """
    try:
        return checked_client(client_class, config)
    except UnsafePropertyError:
        raise
    except (ValueError, OSError) as fault:
        why = f"a file of its credentials cannot be used: {type(fault).__name__}"  # its text could quote the file
    raise KafkaException(KafkaError(KafkaError._SSL, why))


# --- one operation ---------------------------------------------------------------------------------------------------


class _Operation(threading.local):
    """The operation of a thread. `idle`: clients that were returned, by class and properties; None: none is under
    way."""

    idle: dict[object, Any] | None = None


_OPERATION = _Operation()


@contextmanager
def one_operation() -> Iterator[None]:
    """Keep the clients that this thread returns for its next ones, and close them at the end. Within another
    operation it changes nothing."""
    if _OPERATION.idle is not None:
        yield
        return
    idle = _OPERATION.idle = {}
    try:
        yield
    finally:
        _OPERATION.idle = None
        for client in idle.values():
            client.close()


def take_client(client_class: Callable[[dict[str, Any]], C], config: Mapping[str, object]) -> C:
    """Return a consumer or producer that this operation has returned, or a new one. Raises as `make_client` does."""
    idle = _OPERATION.idle or {}
    client: C | None = idle.pop(_kind_of(client_class, config), None)
    return make_client(client_class, config) if client is None else client


def return_client(client: Consumer | Producer, config: Mapping[str, object], *, is_usable: bool = True) -> None:
    """Keep a client that was taken with these properties for this operation. Otherwise, or unless it is usable, close
    it."""
    idle, kind = _OPERATION.idle, _kind_of(type(client), config)
    if idle is None or kind in idle or not is_usable:
        client.close()
    else:
        idle[kind] = client


def _kind_of(client_class: object, config: Mapping[str, object]) -> object:
    return client_class, frozenset(config.items())


# --- newer credentials -----------------------------------------------------------------------------------------------

NO_TOPIC = "reconsume-no-topic"
"""A topic that is asked for to learn whether the cluster answers. It need not exist, and is not created."""
ANSWER_WITHIN = 1.0
"""Seconds in which a reachable cluster answers that, behind a fetch within `fetch.wait.max.ms` (500 ms)."""


def answers(client: Lists) -> bool:
    """Return whether the cluster answers this client, and names a broker. Blocks for a second at most."""
    try:
        return bool(client.list_topics(NO_TOPIC, timeout=ANSWER_WITHIN).brokers)
    except KafkaException:
        return False


LOGIN = ("sasl.username", "sasl.password")


class Refresh(Enum):
    """A request to a thread that waits for work: it must apply its credentials first."""

    KEYS = "keys"


class Client(Protocol):
    """A Kafka client, as far as passwords matter."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with these from the next connection on (SASL PLAIN and SCRAM)."""


class Credentials(NamedTuple):
    """Credentials as they were read at one moment.

    `number` rises with each reading. Clients made with `since` or later differ from these by the login alone.
    `properties`: the client properties that come from files.
    """

    number: int
    since: int
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Credentials({self.number})"  # a traceback may show it: never the secret itself


NONE = Credentials(0, 0, {})


class RefusedClient(NamedTuple):
    """Why the client library makes no client, and since when (monotonic seconds). `why`: for people."""

    since: float
    why: str


class CredentialRegistry:
    """Hold the newest credentials and the clients that use them. Written by one thread, read by all."""

    def __init__(self, first: Credentials = NONE) -> None:
        self.newest = first
        self.clients: list[ClientCredentials] = []

    def with_newest(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Return a client's configuration with the newest credentials."""
        return {**config, **self.newest.properties}

    def refused_for(self, seconds: float) -> str:
        """Return why a client could not be made for so long, as a text for people; empty if there is none."""
        refused = [client.refused for client in self.clients if client.refused is not None]
        before = time.monotonic() - seconds
        return next((one.why for one in sorted(refused) if one.since <= before), "")

    def register(self, name: str, on_change: Callable[[], None] = lambda: None) -> ClientCredentials:
        """Add a client. `on_change` is called from another thread when the client should apply other credentials."""
        client = ClientCredentials(self, name, on_change)
        self.clients.append(client)
        return client


class ClientCredentials:
    """The credentials of one Kafka client, or of several on one thread: `applied` are in use, `pending` come next."""

    def __init__(self, registry: CredentialRegistry, name: str, on_change: Callable[[], None]) -> None:
        self.name = name
        self.refused: RefusedClient | None = None
        """Why no client can be made of these; None if one was."""
        self._on_change = on_change
        self.applied = self.pending = registry.newest
        self._registry = registry

    def newest(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Return a client's configuration with the newest credentials."""
        return self._registry.with_newest(config)

    def adopt(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Return the same as `newest`, for a client that is made next.

        From now on the newest credentials count as applied.
        """
        self.applied = self.pending = self._registry.newest
        return {**config, **self.applied.properties}

    def offer(self, credentials: Credentials) -> None:
        """Make the client apply these on its own thread; called from another one."""
        if self.pending is not credentials:
            self.pending = credentials
            self._on_change()

    @property
    def outdated(self) -> bool:
        """Whether newer credentials exist, offered to this client or not."""
        return self.applied is not self._registry.newest

    @property
    def due(self) -> bool:
        """Whether other credentials are offered, for threads that make new clients at any change."""
        return self.pending is not self.applied

    def apply_to(self, *clients: Client) -> bool:
        """Apply pending credentials, on the thread that owns the clients. False: new clients must be made."""
        pending = self.pending
        if pending is self.applied:
            return True
        if pending.since > self.applied.number:  # more than the login has changed since these clients were made
            return False
        for client in clients:
            client.set_sasl_credentials(*(pending.properties.get(name, "") for name in LOGIN))
        self.applied = pending
        return True


def unchanging() -> ClientCredentials:
    """Return credentials that never change."""
    return CredentialRegistry().register("")


AGAIN = 1.0
"""Seconds before the next try. Credentials are mounted as several files: for a moment two of them may not match."""

_LOG = logging.getLogger("reconsume.kafka")


class Stopping(Protocol):
    """A request to stop."""

    def wait(self, timeout: float) -> bool:
        """Wait; return whether the stop was requested."""


def new_client(
    make: Callable[[dict[str, Any]], C],
    config: Mapping[str, object],
    credentials: ClientCredentials,
    stopping: Stopping,
    each: Callable[[], None] = lambda: None,
) -> C | None:
    """Return a client that `make` makes with the newest credentials; None if a stop was requested first.

    Tries without end: `credentials.refused` tells the rest of the process. `each` is called at each try.
    """
    while True:
        each()
        try:
            client = make_client(make, credentials.adopt(config))
        except KafkaException as failure:
            refuse(credentials, failure)
            if stopping.wait(AGAIN):
                return None
        else:
            credentials.refused = None
            return client


def refuse(credentials: ClientCredentials, failure: KafkaException) -> None:
    """Note and log that no client could be made. The log sums it up once a minute."""
    why = sentence_of(failure)
    since = time.monotonic() if credentials.refused is None else credentials.refused.since
    credentials.refused = RefusedClient(since, f"{credentials.name}: no Kafka client can be made: {why}")
    text = "%s: no Kafka client can be made from the properties, trying again: %s"
    _LOG.error(text, credentials.name, why, extra={"event": "no-client", "about": [credentials.name]})
