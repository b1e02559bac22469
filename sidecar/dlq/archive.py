"""Write dead letters as JSON lines, byte for byte, and put them back into the DLQ.

One line is one letter: `{"v": 1, "id", "reason", "place", "timestamp", "key_base64", "value_base64", "headers": [[name,
base64], …]}`. null is not the same as empty. The topic that a letter is imported to follows from its main topic, never
from the file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from sidecar.core.commit_batch import SettledRecord
from sidecar.core.copies import Copy
from sidecar.core.decide import DeadLetter
from sidecar.core.policy import Policy
from sidecar.core.record import Partition, Record
from sidecar.dlq.letters import Letter, read_letter
from sidecar.dlq.plan import Told
from sidecar.dlq.producer import DlqProducer
from sidecar.dlq.scan import Scan
from sidecar.dlq.topics import DlqTopics
from sidecar.errors import BrokerError
from sidecar.kafka.committer.transaction import Aborted, OutcomeUnknown

TOGETHER = 500


class Line(msgspec.Struct, frozen=True):
    """A dead letter in a file.

    `headers` is None if the client could not read them; such a line cannot be imported.
    """

    timestamp: int
    key_base64: str | None
    value_base64: str | None
    headers: list[tuple[str, str | None]] | None
    id: str = ""
    reason: str = ""
    place: str = ""
    v: Literal[1] = 1


class ImportedError(ValueError):
    """Raised if a line is not a dead letter of this group. The message is one sentence."""


_DECODER = msgspec.json.Decoder(Line)


def export_line(letter: Letter) -> dict[str, Any]:
    """Return the letter as the JSON object of one line."""
    record = letter.record
    headers = None if record.headers is None else [[name, _text(value)] for name, value in record.headers]
    return {
        "v": 1,
        "id": letter.id,
        "reason": letter.reason,
        "place": letter.place,
        "timestamp": record.timestamp,
        "key_base64": _text(record.key),
        "value_base64": _text(record.value),
        "headers": headers,
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def import_line(text: bytes, policy: Policy) -> Letter:
    """Return the letter in a line of JSON, to be written to its main topic's DLQ.

    Raises ImportedError, with one sentence, if the line is not a dead letter of this group.
    """
    try:
        line = _DECODER.decode(text)
        headers = [] if line.headers is None else [(name, _bytes(value)) for name, value in line.headers]
        key, value = _bytes(line.key_base64), _bytes(line.value_base64)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, binascii.Error, ValueError) as fault:
        raise ImportedError(f"not as `dlq export` writes it: {str(fault)[:200]}") from None
    if line.headers is None:
        raise ImportedError("its headers could not be read when it was exported")
    record = Record(Partition("", 0), 0, 0, line.timestamp, key, value, headers, None)
    letter = read_letter(record, policy)
    if letter.life is None:
        raise ImportedError(f"its headers are not as agreed: {letter.fault}")
    if policy.names.role(letter.life.topic, policy.topics) is None:
        raise ImportedError(letter.fault)  # the file is of another group, or for a configuration with that topic
    topic = policy.dlq_of(letter.life.topic)
    return Letter(msgspec.structs.replace(record, source=Partition(topic, 0)), letter.life, letter.fault)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


class Importer:
    """An import: it appends letters that the DLQ does not have.

    It first fences redrives and other imports. Only then does it look at what is in the DLQ.
    """

    def __init__(
        self, topics: DlqTopics, policy: Policy, letters: Sequence[Letter], told: Told, *, fence: bool = True
    ) -> None:
        """Look at what is in the DLQ. Without `fence` nothing can be written."""
        topics.layout()  # first: no other command is fenced if a topic does not exist
        self.missing: list[Letter] = []
        """Letters that the DLQ does not have. Of letters with the same id and redrive count only the first is kept."""
        self._producer = DlqProducer(topics.kafka, topics.names) if fence else None
        lives = {life_of(letter): letter for letter in reversed(letters)}
        with Scan(topics, topics.layout()) as scan:
            for record in scan:
                lives.pop(life_of(read_letter(record, policy)), None)
                told(scan, len(letters) - len(lives))
        self.missing = list(reversed(lives.values()))

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._producer is not None:
            self._producer.end()

    def write(self) -> int:
        """Write the missing letters, `TOGETHER` in each transaction, and return how many were written.

        Raises BrokerError if Kafka fails; the transactions that were committed before stay.
        """
        assert self._producer is not None
        done = 0
        for start in range(0, len(self.missing), TOGETHER):
            entries = [_entry(letter) for letter in self.missing[start : start + TOGETHER]]
            try:
                self._producer.write(entries, self._producer.counts)
            except (Aborted, OutcomeUnknown) as failure:
                raise BrokerError(
                    f"{done} letters were imported, then Kafka failed: {failure}; import the file again, what is there "
                    "is passed over"
                ) from failure
            done += len(entries)
        return done


def life_of(letter: Letter) -> tuple[str, int]:
    """Return the origin id and the number of redrives. The DLQ holds at most one letter for this pair."""
    return letter.id, letter.redrives


def _entry(letter: Letter) -> SettledRecord:
    assert letter.life is not None
    record = letter.record
    copy = Copy(record.source.topic, record.key, record.value, record.headers or [], record.source.number)
    return SettledRecord(record, DeadLetter(letter.life, letter.reason, 0), (copy,))
