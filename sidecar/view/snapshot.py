"""Read the view for the command line: copy the whole topic into a temporary file, then query it.

Memory is bounded, whatever the topics hold. If a broker does not answer, BrokerError is raised within seconds.
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
from sidecar.view.store import ViewStore
from sidecar.view.store_file import open_store
from sidecar.view.tables import Item
from topics.names import Names

POLL = 0.1
CLIENT = "reconsume-retries"
Told = Callable[[int, int], None]
"""Called with the number of records that were read, and their total."""


class ViewSnapshot:
    """The view while it is read. `turn` continues the reading."""

    def __init__(self, reading: ViewReader, store: ViewStore) -> None:
        self._reading, self._store = reading, store

    @property
    def as_of(self) -> int:
        """Epoch ms up to which the copy is complete."""
        return self._reading.facts.as_of or 0

    @property
    def bad(self) -> int:
        """The number of records that were skipped."""
        return sum(self._reading.bad.values())

    def read_all(self, told: Told) -> None:
        """Read to the end. Raises ContractError if there is no view, BrokerError if Kafka sends no more."""
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
        """Take in the records that arrive within `wait` seconds. Raises BrokerError."""
        try:
            return self._reading.turn(wait)
        except KafkaException as failure:
            raise BrokerError(f"the view cannot be read: {sentence_of(failure)}") from failure

    @contextmanager
    def questions(self) -> Iterator[ViewQuery]:
        """Open the copy for queries."""
        with questions(self._store.path, inf) as query:
            yield query


@contextmanager
def looking(kafka: Mapping[str, str], names: Names) -> Iterator[ViewSnapshot]:
    """Open the view in a temporary file, which is removed at the end. Raises ConfigError, BrokerError."""
    store = open_store(None, names.group)
    try:
        reading = ViewReader(kafka, names, store, CLIENT)
        try:
            yield ViewSnapshot(reading, store)
        finally:
            reading.close()
    finally:
        store.close()
