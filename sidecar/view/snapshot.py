"""The view for the command line: the whole topic read into a temporary file, then asked.

Bounded in memory whatever the topics hold. A broker that does not answer is one `BrokerError`, in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf

from confluent_kafka import KafkaException

from sidecar.errors import BrokerError, ContractError
from sidecar.kafka.errors import ANSWER_SECONDS, sentence_of
from sidecar.view.query import ViewQuery, questions
from sidecar.view.reader import ViewReader
from sidecar.view.store import ViewStore, open_store
from sidecar.view.tables import Item
from topics.names import Names

POLL = 0.1
CLIENT = "reconsume-retries"
Told = Callable[[int, int], None]
"""Told how many records were read, of how many."""


class ViewSnapshot:
    """The view as it is read. `turn` goes on reading."""

    def __init__(self, reading: ViewReader, store: ViewStore) -> None:
        self._reading, self._store = reading, store

    @property
    def as_of(self) -> int:
        """Epoch ms up to which it is complete."""
        return self._reading.facts.as_of or 0

    @property
    def bad(self) -> int:
        """Records that were passed over."""
        return sum(self._reading.bad.values())

    def read_all(self, told: Told) -> None:
        """Read to the end. ContractError where there is no view, BrokerError where Kafka does not go on."""
        heard = time.monotonic()
        while not self._reading.caught_up or self._reading.facts.as_of is None:
            before = self._reading.progress()
            self.turn(POLL)
            if self._reading.absent:
                raise ContractError(self._reading.problem)
            if self._reading.progress() != before:
                heard = time.monotonic()
                told(*self._reading.progress())
            elif time.monotonic() > heard + ANSWER_SECONDS:
                raise BrokerError(f"the view could not be read on for {ANSWER_SECONDS:.0f} s")

    def turn(self, wait: float) -> list[Item]:
        """Take in what comes within `wait` seconds. Raises BrokerError."""
        try:
            return self._reading.turn(wait)
        except KafkaException as failure:
            raise BrokerError(f"the view cannot be read: {sentence_of(failure)}") from failure

    @contextmanager
    def questions(self) -> Iterator[ViewQuery]:
        """What was read, to be asked."""
        with questions(self._store.path, inf) as query:
            yield query


@contextmanager
def looking(kafka: Mapping[str, str], names: Names) -> Iterator[ViewSnapshot]:
    """A look at the view, in a temporary file that goes with it. Raises ConfigError, BrokerError."""
    store = open_store(None, names.group)
    try:
        reading = ViewReader(kafka, names, store, CLIENT)
        try:
            yield ViewSnapshot(reading, store)
        finally:
            reading.close()
    finally:
        store.close()
