"""What the broker reports of the writes of one transaction: the error of each entry, and where its copy lies."""

from __future__ import annotations

from typing import TypeAlias

from confluent_kafka import KafkaError, Message

from reconsume.sidecar.core.commit_batch import WrittenAt
from reconsume.sidecar.kafka.committer.write_errors import PRODUCER_ERRORS

Errors: TypeAlias = dict[int, tuple[KafkaError, str]]
"""By index of the entry: the first error of one of its writes, and the topic and partition of that write."""
Located: TypeAlias = dict[int, WrittenAt]
"""By index of the entry: where its copy lies in a queue topic."""


class EntryReports:
    """The receiver of the reports of one entry's writes; the client calls its methods.

    It knows no producer, which holds thousands of these: no producer that was replaced would be freed.
    """

    __slots__ = ("_errors", "_index", "_located")

    def __init__(self, index: int, errors: Errors, located: Located) -> None:
        self._index, self._errors, self._located = index, errors, located

    def written(self, error: KafkaError | None, message: Message) -> None:
        """Take in the report of one write."""
        if error is None:
            return
        known = self._errors.get(self._index)
        # One write of an entry is refused. The client drops the others, and may report those first.
        if known is None or known[0].code() in PRODUCER_ERRORS:
            self._errors[self._index] = error, f"{message.topic()}[{message.partition()}]"

    def copied(self, error: KafkaError | None, message: Message) -> None:
        """Take in the report of the copy for a queue. The broker names no offset of one that was sent twice."""
        if error is not None:
            self.written(error, message)
        elif (offset := message.offset()) is not None and offset >= 0:
            self._located[self._index] = offset, message.timestamp()[1]
