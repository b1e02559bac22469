"""Watch the mounted credentials, and say in plain words why Kafka cannot be reached.

New files are first tried with a client of our own. Only what Kafka accepts reaches the working clients. Until then, and
whenever a file cannot be read, they keep their credentials. Nothing here logs a value.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import read_plain
from reconsume.sidecar.kafka.clients import LOGIN, ClientCredentials, CredentialRegistry, Credentials
from reconsume.sidecar.kafka.credentials.reachability import Unreachable, answers
from reconsume.sidecar.observability.repeats import KAFKA
from reconsume.sidecar.observability.thread_watch import FOLLOWER_LIMIT, StopRequest, WatchedThread
from reconsume.sidecar.settings.kafka import BY_FOLDER, LARGEST_READ, Kafka

LOOK_EVERY = 2.0
"""Seconds between two looks at the files, a handful of reads each. Kubernetes itself takes a minute to replace them."""
ANEW_WITHIN = 15.0
"""Seconds that one client is waited for; then the next one follows. A consumer first gives its partitions up in order,
and a committer may be waiting for an unreachable Kafka."""
ASK_AFTER = 3.0
"""Seconds that Kafka may take before the log says why it does not answer."""
ASK_EVERY = 10.0
"""Seconds between two tries to find out why."""
TROUBLE = re.compile(r"SSL|SASL|OAUTHBEARER|OIDC|uthentication")
"""Lines of the Kafka client that may be about credentials. A client of our own finds the exact cause."""

_LOG = logging.getLogger("reconsume.credentials")


class Digest(NamedTuple):
    """Two hashes that differ between versions of the credentials; kept instead of the credentials."""

    login: bytes
    rest: bytes


class AuthErrorHandler(logging.Handler):
    """A log handler that notes when the Kafka clients complain about a connection's security."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if TROUBLE.search(record.getMessage()):
            self.heard.set()


class CredentialWatcher(ContextThread):
    """The thread that follows the files until stopped.

    `waiting`: whether a part of the sidecar still waits for Kafka's first answer.
    """

    def __init__(self, kafka: Kafka, registry: CredentialRegistry, waiting: Callable[[], bool]) -> None:
        super().__init__("credentials")
        self.problem = ""
        """Why Kafka cannot be reached, and the remedy; empty while it answers."""
        self._kafka, self._registry, self._waiting = kafka, registry, waiting
        self._worn = digest_of(kafka)
        self._stopping = StopRequest()
        self._said: dict[str, str] = {}
        self._ask_at = 0.0
        self._hint = AuthErrorHandler()

    def stop(self) -> None:
        """End soon; returns at once."""
        self._stopping.set()

    def watched(self) -> list[WatchedThread]:
        return [WatchedThread("credentials", self, lambda: self._stopping.turned_at, FOLLOWER_LIMIT)]

    def do_work(self) -> None:
        """Look at the files and at Kafka until stopped, whatever happens."""
        logging.getLogger(KAFKA).addHandler(self._hint)
        self._ask_at = time.monotonic() + ASK_AFTER
        while not self._stopping.wait(LOOK_EVERY):
            try:
                self._look_at_files()
                if time.monotonic() >= self._ask_at and (self._waiting() or self.problem or self._hint.heard.is_set()):
                    self._ask_kafka()
            except Exception:  # noqa: BLE001 - even a fault of ours here must never stop the records
                _LOG.exception("watching the credentials failed; it is tried again", extra={"event": "fault"})
        logging.getLogger(KAFKA).removeHandler(self._hint)

    # --- the files ---------------------------------------------------------------------------------------------------

    def _look_at_files(self) -> None:
        fresh = self._kafka.fresh()
        try:
            digest = digest_of(fresh)
        except ConfigError as fault:
            why = "; ".join(fault.problems)
            if self._is_news("files", why):
                text = "the mounted credentials cannot be read; the clients keep the previous ones: %s"
                _LOG.error(text, why, extra={"event": "credentials-unreadable"})
            return
        if digest == self._worn:
            return
        answer = answers(fresh)
        if isinstance(answer, Unreachable):
            if self._is_news("files", answer.finding):
                text = "the new credentials do not work; the clients keep the previous ones: %s; %s"
                _LOG.error(text, answer.finding, answer.mend, extra={"event": "credentials-refused"})
            return
        self._hand_out(fresh, by_login=digest.rest == self._worn.rest)
        self._worn, self._kafka, self._said = digest, fresh, {}
        self._ask_at = 0.0  # a problem may be over

    # A separate client has tried them first. A login goes to all clients at once: a committer that waits in a call
    # would delay it for the consumers until their session ended (491 duplicates). `init_transactions` under way does
    # not recover by a new password (2.16): its producer is replaced.
    def _hand_out(self, fresh: Kafka, *, by_login: bool) -> None:
        """Give the new credentials to all clients, and wait until each has applied them.

        A new name or password goes to all clients at once. With any other change, each client gets the credentials when
        the one before it has applied them.
        """
        old = self._registry.newest
        number = old.number + 1
        keys = Credentials(number, old.since if by_login else number, secrets_of(fresh))
        self._registry.newest = keys
        if by_login:  # no client pauses for it, and a client with the old password may be shut out
            for credentials in self._registry.clients:
                credentials.offer(keys)
        late = [credentials.name for credentials in self._registry.clients if not self._reaches(credentials, keys)]
        how = "the password" if by_login else "certificates or keys; each client was replaced, one after the other"
        text = "new credentials are in use: %s"
        _LOG.info(text, how, extra={"event": "credentials-reloaded", "clients": len(self._registry.clients)})
        if late:
            text = "clients that have not applied the new credentials yet: %s"
            _LOG.warning(text, ", ".join(late), extra={"event": "credentials-late"})

    def _reaches(self, credentials: ClientCredentials, keys: Credentials) -> bool:
        """Offer the credentials to a client; return whether it has applied them in time."""
        credentials.offer(keys)
        deadline = time.monotonic() + ANEW_WITHIN
        while credentials.applied is not keys and time.monotonic() < deadline and not self._stopping.is_set():
            time.sleep(0.02)
        return credentials.applied is keys

    # --- why Kafka does not answer -----------------------------------------------------------------------------------

    def _ask_kafka(self) -> None:
        """Ask Kafka with a client of our own; keep and log what it finds."""
        self._hint.heard.clear()
        answer = answers(self._kafka)
        self._ask_at = time.monotonic() + ASK_EVERY
        if isinstance(answer, Unreachable):
            self.problem = f"{answer.finding}; {answer.mend}"
            if self._is_news("kafka", self.problem):
                text = "Kafka cannot be reached; the sidecar keeps trying: %s"
                _LOG.error(text, self.problem, extra={"event": "kafka-unreachable"})
        elif self.problem:
            self.problem = ""
            self._said.pop("kafka", None)
            _LOG.info("Kafka answers again", extra={"event": "kafka-answers"})

    def _is_news(self, of: str, text: str) -> bool:
        """Return whether the text differs from the last one about the same, and remember it."""
        news = text != self._said.get(of)
        self._said[of] = text
        return news


def registry_of(kafka: Kafka) -> CredentialRegistry:
    """Return the registry with the credentials that clients begin with."""
    return CredentialRegistry(Credentials(0, 0, secrets_of(kafka)))


def secrets_of(kafka: Kafka) -> Mapping[str, str]:
    """Return the properties that come from files. Raises ConfigError."""
    names = (*kafka.by_file, *(BY_FOLDER if kafka.folder is not None else ()))
    return {name: kafka[name] for name in names if name in kafka}


def digest_of(kafka: Kafka) -> Digest:
    """Return the digest of the present credentials. Raises ConfigError."""
    login, rest = hashlib.sha256(), hashlib.sha256()
    for name, value in sorted(secrets_of(kafka).items()):
        (login if name in LOGIN else rest).update(f"{name}={len(value)}:{value}".encode())
    for path in kafka.read_by_client():
        rest.update(content_of(path))
    return Digest(login.digest(), rest.digest())


def content_of(path: Path) -> bytes:
    """Return the hash of a file's content, or of a folder's files; empty if a file has just gone."""
    digest = hashlib.sha256()
    try:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(hashlib.sha256(read_plain(file, LARGEST_READ)).digest())
    except OSError:  # replaced while we read; the next look sees the new files
        return b""
    return digest.digest()
