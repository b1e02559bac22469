"""Choose which connections of a listener are let in and which are closed, so that idle ones keep no caller out.

Pure: it is informed of what each connection does, and decides which to close. To make room, the oldest connection
without a call under way is closed. Those that never sent a whole call go before those that have made calls. If every
connection has a call under way, a reserve remains for probes and `/drain` alone. The newest caller always gets one
in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one listener."""

    head_within: float = 2.0
    """Seconds to the end of the head, from the connection or from the first byte of a later request."""
    connections: int = 128
    """Connections at once. The API serves one pod."""
    reserve: int = 16
    """Connections beyond those, for probes and `/drain` alone."""
    per_peer: int | None = None
    """Connections at once from one address; None: no limit. On loopback all callers have one address."""
    taken_within: float = 30.0
    """Seconds in which a caller must take what was written to it."""
    waiting_path: str = ""
    """The path of calls that only wait. Their connections count in none of these limits; the call bounds them."""
    untaken: int = 16 * 1024 * 1024
    """Bytes of all answers together that their callers do not take. A larger answer is written alone."""


PROBE_LIMITS = Limits(per_peer=16)
"""For an address that the whole network reaches."""


class Admission(Enum):
    """The place that a new connection gets."""

    FULL = auto()
    RESERVE = auto()
    """For probes and `/drain` alone."""
    NONE = auto()
    """No place: its address has a call under way on every connection that it may have."""


C = TypeVar("C")


class Connections(Generic[C]):
    """Track the connections of one listener. `evict` closes a connection that is already forgotten here."""

    def __init__(self, limits: Limits, evict: Callable[[C], None]) -> None:
        self._limits, self._evict = limits, evict
        # In the order in which they are closed. Dictionaries keep the order of arrival.
        self._silent: dict[C, str] = {}
        """Connections that have not sent a whole call yet, with their addresses."""
        self._resting: dict[C, str] = {}
        """Connections between two calls, with their addresses."""
        self._calling: dict[C, str] = {}
        self._waiting: dict[C, str] = {}
        """Connections with a call that waits."""
        self._reserve: dict[C, bool] = {}
        """Whether each connection of the reserve has sent a whole call."""
        self._peers: Counter[str] = Counter()
        self._untaken: dict[C, int] = {}
        """Bytes that wait for callers that are slow to take them, the slowest first."""

    def enter(self, connection: C, peer: str) -> Admission:
        """Let a connection from an address in. If there is no room, close another one."""
        most = self._limits.per_peer
        if most is not None and self._peers[peer] >= most and not self._make_room(peer):
            return Admission.NONE
        full = len(self._silent) + len(self._resting) + len(self._calling) >= self._limits.connections
        if full and not self._make_room():
            return self._enter_reserve(connection)
        self._silent[connection] = peer
        self._peers[peer] += 1
        return Admission.FULL

    def called(self, connection: C, *, waits: bool = False) -> None:
        """Note that a whole call has come, which will be answered. `waits`: perhaps only after a long time."""
        if connection in self._reserve:
            self._reserve[connection] = True
        elif (peer := self._take_connection(connection)) is not None:
            (self._waiting if waits else self._calling)[connection] = peer

    def answered(self, connection: C) -> None:
        """Note that a call was answered and no other call has come."""
        if (peer := self._take_connection(connection)) is not None:
            self._resting[connection] = peer

    def stalled(self, connection: C, size: int) -> None:
        """Note that a caller does not take its answer. If there are too many bytes, close those that wait longest."""
        self._untaken[connection] = size
        while len(self._untaken) > 1 and sum(self._untaken.values()) > self._limits.untaken:
            self._close(next(iter(self._untaken)))

    def took(self, connection: C) -> None:
        """Note that a caller has taken its answer."""
        self._untaken.pop(connection, None)

    def forget_connection(self, connection: C) -> None:
        """Forget a connection, if it is known."""
        self._reserve.pop(connection, None)
        self._untaken.pop(connection, None)
        if (peer := self._take_connection(connection)) is not None:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    def _take_connection(self, connection: C) -> str | None:
        for group in (self._silent, self._resting, self._calling, self._waiting):
            if connection in group:
                return group.pop(connection)
        return None

    def _make_room(self, peer: str | None = None) -> bool:
        """Close the connection (of an address) that is worth least. Return False if all have a call under way."""
        for connection, other in chain(self._silent.items(), self._resting.items()):
            if peer in (None, other):
                self._close(connection)
                return True
        return False

    def _enter_reserve(self, connection: C) -> Admission:
        if len(self._reserve) >= self._limits.reserve:
            waiting = (other for other, whole in self._reserve.items() if not whole)
            self._close(next(waiting, None) or next(iter(self._reserve)))
        self._reserve[connection] = False
        return Admission.RESERVE

    def _close(self, connection: C) -> None:
        self.forget_connection(connection)
        self._evict(connection)
