"""Write dead letters as JSON lines, byte for byte, put them back into the DLQ, and redrive those that were edited.

One line is one letter: `{"v": 1, "id", "reason", "place", "timestamp", "key_base64", "value_base64", "headers": [[name,
base64], …]}`, with `"copy": true` if another letter with its id and attempt counts. null is not the same as empty. The
topic that a letter is imported to follows from its main topic, never from the file.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import msgspec

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record, weight_of
from reconsume.sidecar.dlq.copies import rank_of
from reconsume.sidecar.dlq.letters import Filter, Letter, RedriveRequest, edited, read_letter
from reconsume.sidecar.dlq.plan import PlanCounts, Progress, plan_redrive
from reconsume.sidecar.dlq.producer import DlqProducer
from reconsume.sidecar.dlq.redrive_history import MOST_REDRIVES_EVER
from reconsume.sidecar.dlq.redriver import MOST_LETTERS, RETRY_AFTER_S, TRY_FOR, UNNAMED, Redriver
from reconsume.sidecar.dlq.scan import Scan
from reconsume.sidecar.dlq.topics import DlqTopics, Layout
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown
from reconsume.sidecar.kafka.committer.write_apart import ApartWriter, Refusals, by_number, copy_sizes
from reconsume.sidecar.printable import plural, printable_json
from reconsume.topics.attempt import attempt_of
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import DeadLetter


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
    position: str = msgspec.field(name="place", default="")
    v: Literal[1] = 1


PIECE = 32 * 1024 * 1024
"""Bytes (`Record.weight`) of letters that an import holds at a time. For each part it looks at the whole DLQ."""


class ImportedError(ValueError):
    """Raised if a line is not a dead letter of this group. The message is one sentence."""


_DECODER = msgspec.json.Decoder(Line)


def export_line(letter: Letter, *, is_copy: bool = False) -> dict[str, Any]:
    """Return the letter as the JSON object of one line. `is_copy`: another letter with its id and attempt counts."""
    record = letter.record
    headers = None if record.headers is None else [[name, _text(value)] for name, value in record.headers]
    return {
        "v": 1,
        "id": letter.id,
        "reason": letter.reason,
        "place": letter.position,
        "timestamp": record.timestamp,
        "key_base64": _text(record.key),
        "value_base64": _text(record.value),
        "headers": headers,
        **({"copy": True} if is_copy else {}),
    }


def line_of(letter: Letter, *, is_copy: bool = False) -> str:
    """Return the letter as one line of JSON, without characters that are not printable."""
    return printable_json(json.dumps(export_line(letter, is_copy=is_copy), ensure_ascii=False))


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
    weight = weight_of(key, value, headers, None)
    record = Record(Partition("", 0), 0, 0, line.timestamp, key, value, headers, None, weight=weight)
    letter = read_letter(record, policy)
    if letter.retry_state is None:
        raise ImportedError(f"its headers are not as agreed: {letter.fault}")
    if policy.names.role(letter.retry_state.topic, policy.topics) is None:
        raise ImportedError(letter.fault)  # the file is of another group, or for a configuration with that topic
    topic = policy.dlq_of(letter.retry_state.topic)
    return Letter(msgspec.structs.replace(record, source=Partition(topic, 0)), letter.retry_state, letter.fault)


def parts_of(letters: Iterable[Letter]) -> Iterator[list[Letter]]:
    """Yield the letters in parts that fit into memory."""
    piece, weight = list[Letter](), 0
    for letter in letters:
        piece.append(letter)
        weight += letter.record.weight
        if weight >= PIECE:
            yield piece
            piece, weight = [], 0
    if piece:
        yield piece


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


class Importer:
    """An import: it appends letters that the DLQ does not have. A context manager.

    It first fences redrives and other imports. Only then does it look at what is in the DLQ.
    """

    def __init__(
        self, topics: DlqTopics, policy: Policy, letters: Sequence[Letter], progress: Progress, *, fence: bool = True
    ) -> None:
        """Look at what is in the DLQ. Without `fence` nothing can be written."""
        self._topics, self._policy = topics, policy
        # A letter that cannot be seen now would be imported a second time.
        self._layout: Layout = topics.layout(whole=True)  # first: no other command is fenced if a topic does not exist
        self._limit = topics.batch_limit(topics.topics)
        self._known: dict[tuple[str, str], Letter] = {}
        for letter in reversed(letters):
            other = self._known.get(life_of(letter))
            if other is None or rank_of(letter) >= rank_of(other):
                self._known[life_of(letter)] = letter
        self.refused: dict[tuple[str, str], str] = {}
        """The letters that Kafka refuses, and why."""
        self.edited: dict[str, bytes | None] = {}
        """The new values of dead letters whose line has another value than they have, by position in the DLQ."""
        with ExitStack() as made:
            self._producer = DlqProducer(topics.kafka, topics.names, self._limit) if fence else None
            if self._producer is not None:
                made.callback(self._producer.end)
            self._layout = topics.settled_layout()
            self._look(self._layout, lambda scan: progress(scan, len(letters) - len(self._known)))
            made.pop_all()
        self.missing: list[Letter] = list(reversed(self._known.values()))
        """Letters that the DLQ does not have. Of the lines of one life only the one that counts is kept."""

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_producer()

    def _end_producer(self) -> None:
        if self._producer is not None:
            self._producer.end()
            self._producer = None

    def _look(self, layout: Layout, progress: Callable[[Scan], None]) -> None:
        """Forget the letters that are in this part of the DLQ.

        A line is edited if no letter of its life has its value; it is then an edit of the newest one.
        """
        newest, same = dict[tuple[str, str], Letter](), set[tuple[str, str]]()
        with Scan(self._topics, layout) as scan:
            for record in scan:
                letter = read_letter(record, self._policy)
                name = life_of(letter)
                if (line := self._known.get(name)) is not None:
                    newest[name] = max(newest.get(name, letter), letter, key=rank_of)
                    if line.record.value == record.value:
                        same.add(name)
                progress(scan)
        for name, letter in newest.items():
            line = self._known.pop(name)
            if name not in same:
                self.edited[letter.position] = line.record.value

    def write(self) -> int:
        """Write the missing letters, `MOST_LETTERS` in each transaction, and return how many are there now.

        Those that Kafka refuses are in `refused`. Raises BrokerError if Kafka fails; the transactions that were
        committed before stay.
        """
        writer = ApartWriter[Letter](lambda letter: copy_sizes(_entry(letter).writes), self._limit)
        for start in range(0, len(self.missing), MOST_LETTERS):
            writer.write(self.missing[start : start + MOST_LETTERS], self._settle, self._refuse)
        return len(self.missing) - len(self.refused)

    def _refuse(self, letter: Letter, refusal: Refusal) -> None:
        self.refused[life_of(letter)] = refusal.reason

    def _settle(self, batch: list[Letter], _left: list[Letter]) -> Refusals | None:
        """Write these letters. Return those that Kafka refuses. Raises BrokerError if it fails for TRY_FOR."""
        deadline, unnamed = time.monotonic() + TRY_FOR, 0
        while True:
            entries = {number: _entry(letter) for number, letter in enumerate(batch) if life_of(letter) in self._known}
            why = self._try(list(entries.values())) if entries else None
            if why is None:
                for letter in batch:
                    self._known.pop(life_of(letter), None)
                return None
            if not isinstance(why, str):
                numbers = list(entries)
                return {numbers[position]: refusal for position, refusal in why.items()}
            unnamed += 1
            if unnamed >= UNNAMED and len(batch) > 1:
                return {}
            if time.monotonic() > deadline:
                done = len(self.missing) - len(self._known)
                raise BrokerError(
                    f"{plural(done, 'dead letter')} imported, then Kafka failed: {why}; import the file again, what is "
                    "there is passed over"
                )
            time.sleep(RETRY_AFTER_S)

    def _try(self, entries: Sequence[SettledRecord]) -> Refusals | str | None:
        """Try the transaction once. Return the entries that Kafka refuses, or why it failed; None if it was committed.

        After an unknown end, or with a producer that is unusable, `_known` knows what was committed.
        """
        producer = self._producer or self._renewed()
        try:
            producer.write(entries, producer.counts)
        except Aborted as aborted:
            refusals, why, unusable = aborted.refusals, str(aborted), aborted.producer_unusable
        except OutcomeUnknown as unsure:
            refusals, why, unusable = (), str(unsure), True
        else:
            return None
        if unusable:
            self._renewed()
        return by_number(entries, refusals) if refusals else why

    def _renewed(self) -> DlqProducer:
        """Replace the producer, which ends a hanging transaction; look at what has reached the DLQ since."""
        self._end_producer()
        self._producer = DlqProducer(self._topics.kafka, self._topics.names, self._limit)
        before, self._layout = self._layout, self._topics.settled_layout()
        grown = {
            partition: span._replace(begin=before[partition].end)
            for partition, span in self._layout.items()
            if partition in before
        }
        self._look({partition: span for partition, span in grown.items() if span.begin < span.end}, lambda scan: None)
        return self._producer


class EditCounts(PlanCounts):
    """The outcomes of edited letters, each also by the letter's id, cycle and redrives."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[tuple[str, str], tuple[str, str]] = {}
        """The outcome (Eligibility, or REFUSED), and why a letter is not redriven."""

    def count(self, letter: Letter, verdict: str, error: str = "") -> None:
        """Count one letter, and keep its outcome."""
        super().count(letter, verdict, error)
        self.outcomes[life_of(letter)] = verdict, error or letter.fault


def redrive_edited(
    topics: DlqTopics,
    policy: Policy,
    values: Mapping[str, bytes | None],
    who: str,
    stop: threading.Event | None,
    progress: Progress,
) -> EditCounts:
    """Redrive dead letters with other values, each with the header RETRY_EDITED, and return the outcome of each.

    `values`: the new values by position in the DLQ. `who`: the author that the header names. `stop`: ends the redrive
    between two transactions; None: nothing is written, and READY are those that would be redriven. Raises as
    `Redriver.run` does.
    """
    request, counts = RedriveRequest(Filter(ids=tuple(values)), MOST_REDRIVES_EVER, forgotten=True), EditCounts()
    if stop is None:
        plan_redrive(topics, policy, request, None, progress, counts)
        return counts

    def edit(letter: Letter) -> Letter:
        return edited(letter, values[letter.position], who, now().wall_ms)

    with Redriver(topics, policy, request, stop, edit=edit, counts=counts) as redriver:
        redriver.run(None, None, progress)
    return counts


def life_of(letter: Letter) -> tuple[str, str]:
    """Return the origin id, and its cycle and redrives. Of the DLQ's letters with one pair all but one are copies."""
    return letter.id, "" if letter.retry_state is None else attempt_of(letter.retry_state).series


def _entry(letter: Letter) -> SettledRecord:
    assert letter.retry_state is not None
    record = letter.record
    copy = Copy(record.source.topic, record.key, record.value, record.headers or [], record.source.number)
    return SettledRecord(record, DeadLetter(letter.retry_state, letter.reason, 0), (copy,))
