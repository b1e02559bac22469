"""An admin client, and how its answers are awaited: deadlines, repeated requests, errors as sentences."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.errors import BrokerError, ConfigError
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import (
    ANSWER_SECONDS,
    COORDINATOR,
    LEADER,
    NEW_TOPIC,
    OPEN_TRANSACTION,
    code_of,
    passing,
    retry_transient,
    sentence_of,
)

POLL_SECONDS = 0.1
"""Seconds until the client's callbacks run again while a request is out. Ctrl-C waits no longer."""
DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
SILENT = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})
busy = passing(COORDINATOR, LEADER, NEW_TOPIC)
"""Whether an error passes by itself: the cluster's first group, a new topic, a broker that has just started."""
settling = passing(COORDINATOR, LEADER, NEW_TOPIC, OPEN_TRANSACTION)
"""The same for committed offsets, which an open transaction may still change."""

K = TypeVar("K")


class DeniedError(BrokerError):
    """This user may not make this request."""


class SilentError(BrokerError):
    """No broker has answered: whatever is asked next would wait as long."""


class Connection:
    """An admin client, for many threads. Keep it until its futures have answered: they end with it."""

    def __init__(self, kafka: Mapping[str, str], client_id: str = "reconsume-admin") -> None:
        """Take the user's properties. Raises ConfigError if librdkafka refuses one of them."""
        self.kafka, self.client_id = dict(kafka), client_id
        self._reason = ""
        # Weak: a client that held its owner would live, with its threads, until a collection of cycles, and a sidecar
        # makes next to none.
        note = weakref.WeakMethod(self._note)
        config: dict[str, Any] = {
            "client.id": client_id,
            "log_level": 0,  # errors come back from the calls; librdkafka's own lines would mix with ours
            **kafka,
            "error_cb": lambda error: None if (alive := note()) is None else alive(error),
        }
        try:
            self.client = make_client(AdminClient, config)
        except KafkaException as error:
            raise ConfigError([f"kafka: {sentence_of(error)}"]) from error

    def _note(self, error: KafkaError) -> None:
        # "All brokers are down" says less than the refused connection before it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._reason = error.str()

    def answer(self, future: Future[Any], within: float = ANSWER_SECONDS) -> Any:
        """Return the result in bounded time, whatever the client does. Raises KafkaException."""
        deadline = time.monotonic() + within + 1  # librdkafka itself gives up earlier
        while True:
            try:
                failure = future.exception(POLL_SECONDS)
                break
            except FutureTimeoutError:
                self.client.poll(0)  # runs `_note`, which learns why a broker cannot be reached
                if time.monotonic() >= deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
        if failure is None:
            return future.result()
        # A copy: the future's own error, once raised, would hold the future and these frames in a cycle.
        raise KafkaException(*failure.args) if isinstance(failure, KafkaException) else RuntimeError(repr(failure))

    def fault(self, what: str, error: KafkaException) -> BrokerError:
        """Return the exception to raise for a request that failed."""
        if code_of(error) in DENIED:
            return DeniedError(f"this user may not see {what} ({sentence_of(error)})")
        if code_of(error) in SILENT:
            return SilentError(self.silence())
        return BrokerError(f"cannot ask for {what}: {sentence_of(error)} ({error.args[0].name()})")

    def silence(self) -> str:
        """Return the sentence to say when no broker has answered."""
        reason = f" ({self._reason})" if self._reason else ""
        return f"no broker of {self.kafka['bootstrap.servers']} answered within {ANSWER_SECONDS:.0f} s{reason}"

    def answers(
        self,
        what: Callable[[K], str],
        keys: Collection[K],
        send: Callable[[Collection[K]], Mapping[K, Future[Any]]],
        accepted: frozenset[int] = frozenset(),
        within: float = ANSWER_SECONDS,
    ) -> tuple[dict[K, Any], dict[K, int]]:
        """Return the answer for each key, and the error codes of those that were refused with an `accepted` code.

        One request is sent for all keys, and another for a key whose error passes by itself. Raises BrokerError.
        """
        results: dict[K, Any] = {}
        refused: dict[K, int] = {}

        def ask(key: K, sent: list[Future[Any]]) -> Any:
            return self.answer(sent.pop() if sent else send([key])[key], within)

        for key, future in (send(keys) if keys else {}).items():
            try:
                results[key] = retry_transient(partial(ask, key, [future]), within, busy)
            except KafkaException as error:
                if code_of(error) not in accepted:
                    raise self.fault(what(key), error) from error
                refused[key] = code_of(error)
        return results, refused
