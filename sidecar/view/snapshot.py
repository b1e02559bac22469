"""Read the view for the command line: copy it into a temporary file, from rows or from events, then query it.

Memory is bounded, whatever the topics hold. If a broker does not answer, BrokerError is raised within seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf

from confluent_kafka import KafkaException

from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, sentence_of
from reconsume.sidecar.view.forms import form_of
from reconsume.sidecar.view.query import ViewQuery, questions
from reconsume.sidecar.view.reader import ViewReader
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store_file import open_store
from reconsume.sidecar.view.tables import Item
from reconsume.topics.names import Names

POLL = 0.1
CLIENT = "reconsume-retries"
Progress = Callable[[int, int], None]
"""Called with the number of records that were read, and their total."""


class ViewSnapshot(ViewReader):
    """The view while it is read once. `turn` continues the reading."""

    def read_all(self, report: Progress) -> None:
        """Read to the end. Raises ContractError if there is no view, BrokerError if Kafka sends no more."""
        answered_at = time.monotonic()
        while not self.caught_up or self.facts.as_of is None:
            before = self.progress()
            self.turn(POLL)
            if self.absent:
                raise ContractError(self.problem)
            if self.progress() != before:
                answered_at = time.monotonic()
                report(*self.progress())
            elif time.monotonic() > answered_at + ANSWER_SECONDS:
                raise BrokerError(f"the view could not be read on for {ANSWER_SECONDS:.0f} s")

    def turn(self, wait: float) -> list[Item]:
        """Take in the records that arrive within `wait` seconds. Raises BrokerError."""
        try:
            return super().turn(wait)
        except KafkaException as failure:
            raise BrokerError(f"the view cannot be read: {sentence_of(failure)}") from failure

    @contextmanager
    def questions(self) -> Iterator[ViewQuery]:
        """Open the copy for queries."""
        with questions(self.path, inf) as query:
            yield query


@contextmanager
def looking(kafka: Mapping[str, str], names: Names, source: Source, most: int | None = None) -> Iterator[ViewSnapshot]:
    """Open the view in a temporary file, which is removed at the end. Raises ConfigError, BrokerError.

    `most`: the events to read at most, the newest, where it is made from events.
    """
    store = open_store(None, names.group, source)
    try:
        look = ViewSnapshot(kafka, names, store, form_of(source, kafka, names, CLIENT), CLIENT, most=most)
        try:
            yield look
        finally:
            look.close()
    finally:
        store.close()
