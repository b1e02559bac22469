"""Say what an instance waits for whose service is not there: in log lines, in `/status` and in its heartbeat.

A record that nobody takes is seen as lag alone. So the address, the cause and the length of the wait are named wherever
an operator looks.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from reconsume.sidecar.settings.deliver import Deliver
from reconsume.topics.masking import url_without_secrets

WARN_AFTER = 5.0
"""Seconds of waiting until it is logged. Sooner, each start beside a service that needs a moment would warn."""
WARN_EVERY = 60.0
"""Seconds between two such lines, as between two sums of the log (`repeats.WINDOW`)."""

_LOG = logging.getLogger("reconsume.run")


class Absence(NamedTuple):
    """A service that cannot work: since when (epoch ms), and why, as a part of a sentence."""

    since: int
    reason: str


class ServiceWait:
    """What one instance waits for. Made and called on the event loop, but for `reason`."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._cause = ""
        self._next = WARN_AFTER
        """Seconds of the present wait at which the next line is due."""

    def note_cause(self, cause: str) -> None:
        """Note why the service cannot work, as a word; empty if it can, or if that is not known."""
        self._cause = cause

    def reason(self) -> str:
        """Return what is missing, with the address. For any thread: it only reads."""
        cause = f" ({self._cause})" if self._cause else ""
        if self._deliver.mode == "pull":
            return "no call of receive"
        if self._deliver.health_url is not None:
            return f"{url_without_secrets(self._deliver.health_url)} is not well{cause}"
        return f"no connection to {url_without_secrets(self._deliver.url or '')}{cause}"

    def log_wait(self, waited: float) -> None:
        """Log the wait if it is time. `waited`: its seconds so far; 0 if the instance does not wait."""
        known = self._deliver.mode == "pull" or bool(self._cause)  # else the first answer comes in a moment
        if waited < self._next or not known:
            self._next = WARN_AFTER if waited < WARN_AFTER else self._next
            return
        self._next = waited + WARN_EVERY
        text = "%s: this instance takes no records until %s"
        _LOG.warning(text, self.reason(), self._until(), extra={"event": "waiting-for-service"})

    def _until(self) -> str:
        if self._deliver.mode == "pull":
            return "its service calls POST /v1/receive; start the service, or correct the address that it calls"
        if self._deliver.health_url is not None:
            return "its service is well; start it, or correct deliver.health_url"
        return "its service listens; start it, or correct deliver.url"
