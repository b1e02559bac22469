"""Hold the credentials for the service, and read them again when their files change.

A change takes effect with the next request (token, secrets) or the next connection (certificates). Connections that
were made before it finish their request, and carry no other. What cannot be used is logged, and the former stays.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.clock import wall
from reconsume.sidecar.delivery.push.credentials import Credentials, digest_of_files, files_of, read_credentials
from reconsume.sidecar.delivery.push.signature import SIGNED_ROOM, authenticated
from reconsume.sidecar.delivery.push.target import Target
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.deliver import AUTHORIZATION, SIGNATURE, Deliver

LOOK_EVERY = 10.0
"""Seconds between two looks at the files, of the 30 s that are promised. Kubernetes takes a minute to replace them."""
TOKEN_SLACK = 256
"""Characters by which a renewed token may be longer than the first one, until a request's head may pass 8 KiB."""

_LOG = logging.getLogger("reconsume.service-credentials")


class ServiceCredentials:
    """The credentials in force. Made anywhere; `follow` runs on the event loop. Raises ConfigError if a file is bad."""

    def __init__(self, files: Mapping[str, Path], *, secure: bool) -> None:
        self._files, self._secure = files, secure
        self.current = read_credentials(files, secure=secure)
        self.renewals: list[Callable[[], None]] = []
        """Called when connections must be made anew."""
        self.problem = ""
        """Why the files cannot be used as they are now; empty if they can."""

    async def follow(self, every: float = LOOK_EVERY) -> None:
        """Read the files again and again until cancelled. Returns at once if there is none."""
        while self._files:
            await asyncio.sleep(every)
            try:
                newer = await on_own_thread("service-credentials", self._newer)
            except ConfigError as fault:
                self.problem = "; ".join(fault.problems)
                text = "credentials for the service cannot be used; the former stay in use: %s"
                _LOG.error(text, self.problem, extra={"event": "service-credentials-unusable"})
                continue
            except Exception:  # noqa: BLE001 - a file must never end this loop: renewed ones would not be taken up
                self.problem = "a fault of the sidecar, which the log names"
                _LOG.exception("reading the credentials for the service failed", extra={"event": "fault"})
                continue
            self.problem = ""
            if newer is not None:
                self._use_newer(newer)

    def _newer(self) -> Credentials | None:
        """Return other credentials than the current ones, on another thread; None if nothing changed."""
        if digest_of_files(self._files) == self.current.digest:
            return None
        return read_credentials(self._files, secure=self._secure)

    def _use_newer(self, newer: Credentials) -> None:
        former, self.current = self.current, newer
        if newer.tls_digest != former.tls_digest:
            for renew in self.renewals:
                renew()
        text = "new credentials for the service are in use"
        _LOG.info(text, extra={"event": "service-credentials-reloaded"})


class Access:
    """How one client calls the service: by which context of TLS, and with which lines in each request.

    `signs`: whether requests carry a record. `known`: whether they go to the host and port of `deliver.url`, which
    alone gets the token.
    """

    def __init__(self, credentials: ServiceCredentials, *, signs: bool = True, known: bool = True) -> None:
        self._credentials, self._signs, self._known = credentials, signs, known

    @property
    def adds_lines(self) -> bool:
        """Whether requests get lines. It never changes: a file that was named stays so."""
        current = self._credentials.current
        return bool((current.token and self._known) or (current.secrets and self._signs))

    @property
    def reserved(self) -> int:
        """Characters of a head to keep free for the lines."""
        current = self._credentials.current
        return (len(current.token) + TOKEN_SLACK if current.token else 0) + (SIGNED_ROOM if current.secrets else 0)

    @property
    def written(self) -> frozenset[str]:
        """The names of the headers that are added, in lower case. They never change: a file that was named stays so."""
        current = self._credentials.current
        signature = SIGNATURE if current.secrets and self._signs else frozenset()
        return signature | ({AUTHORIZATION} if current.token and self._known else frozenset())

    def context(self) -> ssl.SSLContext | None:
        """Return the context of connections that are made now."""
        return self._credentials.current.context

    def lines_added(self, request: bytes) -> bytes:
        """Return a rendered request with the lines of its sender."""
        current = self._credentials.current
        token = current.token if self._known else ""
        return authenticated(request, token, current.secrets if self._signs else (), wall() // 1000)

    def at_renewal(self, renew: Callable[[], None]) -> None:
        """Have `renew` called whenever connections must be made anew."""
        self._credentials.renewals.append(renew)


def build_credentials(deliver: Deliver) -> ServiceCredentials:
    """Return the credentials that the settings name. Raises ConfigError if a file is bad."""
    return ServiceCredentials(files_of(deliver), secure=deliver.by_tls)


def health_access(credentials: ServiceCredentials, deliver: Target, health: Target) -> Access:
    """Return how the health URL is called: with the token only if it is the very server that gets the records."""
    of_deliver, of_health = ((one.hosts, one.port, one.socket_path, one.tls_name) for one in (deliver, health))
    return Access(credentials, signs=False, known=of_deliver == of_health)
