"""What the Kafka clients of this process prove themselves with, and how newer credentials reach each of them.

A changed password is given to a client as it is; for anything else (certificates, a client's secret) it must be made
anew, on the thread that owns it and at a moment of that thread's choice. Who reads the files, and when, is in
`watcher.py`; no file is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol

LOGIN = ("sasl.username", "sasl.password")


class Refresh(Enum):
    """Asks a thread that waits for work to look at its keys first."""

    KEYS = "keys"


class Client(Protocol):
    """A Kafka client, as far as passwords matter."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with these from the next connection on (SASL PLAIN and SCRAM)."""


class Keys(NamedTuple):
    """Credentials as they were read at one moment. `number` rises; clients made with `since` or later differ from
    these by the login alone. `properties`: those that come from files."""

    number: int
    since: int
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Keys({self.number})"  # it may stand in a traceback


NONE = Keys(0, 0, {})


class Keyring:
    """The newest keys, and everybody who wears some. Replaced by one thread, read by all."""

    def __init__(self, keys: Keys = NONE) -> None:
        self.newest = keys
        self.wearers: list[Wearing] = []

    def wearing(self, name: str, nudge: Callable[[], None] = lambda: None) -> Wearing:
        """Take part. `nudge` is called, from another thread, when other keys are offered."""
        wearing = Wearing(self, name, nudge)
        self.wearers.append(wearing)
        return wearing


class Wearing:
    """The keys of one client (or of several on one thread): those that it wears, and those that it is to wear."""

    def __init__(self, ring: Keyring, name: str, nudge: Callable[[], None]) -> None:
        self.name = name
        self._nudge = nudge
        self.worn = self.offered = ring.newest
        self._ring = ring

    def newest(self, config: Mapping[str, object]) -> dict[str, Any]:
        """A client's configuration with the newest keys."""
        return {**config, **self._ring.newest.properties}

    def put_on(self, config: Mapping[str, object]) -> dict[str, Any]:
        """As `newest`, for the client that is to wear them: it is made next."""
        self.worn = self.offered = self._ring.newest
        return {**config, **self.worn.properties}

    def offer(self, keys: Keys) -> None:
        """Have the client go on with these; from another thread than its own."""
        if self.offered is not keys:
            self.offered = keys
            self._nudge()

    @property
    def outdated(self) -> bool:
        """Whether there are newer keys, be they this client's turn or not."""
        return self.worn is not self._ring.newest

    @property
    def due(self) -> bool:
        """Whether other keys are offered: for whoever makes its clients anew for any change."""
        return self.offered is not self.worn

    def keep(self, *clients: Client) -> bool:
        """Go on with what is offered, on the thread that owns the clients; False: they must be made anew."""
        offered = self.offered
        if offered is self.worn:
            return True
        if offered.since > self.worn.number:
            return False
        for client in clients:
            client.set_sasl_credentials(*(offered.properties.get(name, "") for name in LOGIN))
        self.worn = offered
        return True


def unchanging() -> Wearing:
    """For a client whose credentials nobody looks after."""
    return Keyring().wearing("")
