"""Dead letters as JSON lines, byte for byte: exported, put back into the DLQ, and redriven where they were edited.

One line is one letter: `{"v": 1, "id", "reason", "place", "timestamp", "key_base64", "value_base64", "headers": [[name,
base64], …]}`, with `"copy": true` if another letter with its id and attempt counts. null is not the same as empty. The
topic that a letter is imported to follows from its main topic, never from the file.

An import (`ImportLetters`) reads the file in parts that fit into memory: once for its plan, which also sees that every
line is good, and once to carry it out. For each part it looks at the whole DLQ (`Importer`), writes what is missing,
and redrives the letters whose line has another value. One thread does one import. The letters may also come from a
topic of another system (`foreign_topic.py`): then each is written with its event, as if it had died here, unless the
DLQ has a letter with its id; nothing is redriven.

A file is anybody's: it is weighed before it is taken in. The file, its lines, the letters in it and the headers of each
have a bound, so that an import stays within 256 MiB whatever the file holds.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record, weight_of
from reconsume.sidecar.dlq.copies import rank_of
from reconsume.sidecar.dlq.dead_letters import DeadLetters, Layout, LetterScan, Scan
from reconsume.sidecar.dlq.letters import Eligibility, Letter, read_letter, target_of
from reconsume.sidecar.dlq.producer import MOST_LETTERS, DlqProducer, LetterWriter
from reconsume.sidecar.dlq.redriver import Edits, PlanCounts, Redriver, at_positions, plan_redrive
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import open_plain
from reconsume.sidecar.operation import Outcome, Plan, Report, Row, Status, no_report
from reconsume.sidecar.printable import plural, printable_json
from reconsume.topics.retry_headers import MOST_HEADERS
from reconsume.topics.transition_records import Copy, writes_of
from reconsume.topics.transitions import DeadLetter

PIECE = 32 * 1024 * 1024
"""Bytes (`Record.weight`) of letters that an import holds at a time. For each part it looks at the whole DLQ."""
LARGEST_FILE = 1024 * 1024 * 1024
"""Bytes."""
LONGEST_LINE = 32 * 1024 * 1024
"""Bytes: a value of 24 MiB. A line is in memory as text, as base64 and as bytes."""
MOST_LINES = 500_000
"""Letters of one file. What earlier parts would write is kept until the plan is made."""
MOST_PROBLEMS = 20
COLUMNS = ("action", "reason", "topic", "letters", "why")
IMPORTED, EDITED, THERE, BEFORE, REFUSED = "imported", "redriven", "there already", "redriven before", "refused"
PASSED_OVER = "left"
"""What becomes of a foreign record that is no dead letter of the group."""
PLANNED = {IMPORTED: "import", EDITED: "redrive"}
"""What a plan says of letters that will be imported and redriven."""


class Line(msgspec.Struct, frozen=True):
    """A dead letter in a file, of which only this is taken in.

    `headers`: JSON, as it is in the file; null if the client could not read them. Such a line cannot be imported.
    """

    timestamp: int
    key_base64: str | None
    value_base64: str | None
    headers: msgspec.Raw
    v: Literal[1] = 1


class ImportedError(ValueError):
    """Raised if a line is not a dead letter of this group. The message is one sentence."""


_DECODER = msgspec.json.Decoder(Line)
_HEADERS_DECODER = msgspec.json.Decoder(list[tuple[str, str | None]] | None)


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


def export_lines(scan: LetterScan) -> Iterator[tuple[Letter, str]]:
    """Yield the letters that a scan selects, each with its line of JSON, which has printable characters alone."""
    for letter, _ in scan:
        line = export_line(letter, is_copy=scan.is_copy(letter))
        yield letter, printable_json(json.dumps(line, ensure_ascii=False))


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def import_line(text: bytes, policy: Policy) -> Letter:
    """Return the letter in a line of JSON, to be written to its main topic's DLQ.

    Raises ImportedError, with one sentence, if the line is not a dead letter of this group.
    """
    try:
        line = _DECODER.decode(text)
        if bytes(line.headers).count(b"[") > MOST_HEADERS:
            raise ImportedError(f"it has more than {MOST_HEADERS} headers")
        read = _HEADERS_DECODER.decode(line.headers)
        headers = [(name, _bytes(value)) for name, value in read or ()]
        key, value = _bytes(line.key_base64), _bytes(line.value_base64)
    except ImportedError:
        raise
    except (msgspec.MsgspecError, UnicodeError, RecursionError, binascii.Error, ValueError) as fault:
        raise ImportedError(f"not as `dlq export` writes it: {str(fault)[:200]}") from None
    if read is None:
        raise ImportedError("its headers could not be read when it was exported")
    weight = weight_of(key, value, headers, None)
    record = Record(Partition("", 0), 0, 0, line.timestamp, key, value, headers, None, weight=weight)
    letter = read_letter(record, policy)
    if letter.retry_state is None:
        raise ImportedError(f"its headers are not as agreed: {letter.fault}")
    if policy.names.role(letter.topic, policy.topics) is None:
        raise ImportedError(letter.fault)  # the file is of another group, or for a configuration with that topic
    source = Partition(policy.dlq_of(letter.topic), 0)
    return Letter(msgspec.structs.replace(record, source=source), letter.retry_state, letter.fault)


class LetterSource(Protocol):
    """Where an import reads dead letters: a file, or a topic of another system.

    `what`: its name for users. `is_foreign`: they died in another system, so their headers are not ours yet.
    """

    what: str
    is_foreign: bool

    def read(self) -> Iterator[Letter]:
        """Yield the letters, from the beginning each time. One without a retry state is left, because of its fault."""
        ...


class LetterFile:
    """A file that `dlq export` has written."""

    is_foreign = False

    def __init__(self, file: Path, policy: Policy) -> None:
        self._file, self._policy = file, policy
        self.what = file.name

    def read(self) -> Iterator[Letter]:
        """Yield the letters of the file. Raises as `read_letters` does."""
        return read_letters(self._file, self._policy)


def read_letters(file: Path, policy: Policy) -> Iterator[Letter]:
    """Yield the letters of a file. Raises ConfigError if it is too large, or at its end, with the first lines that are
    not letters."""
    problems = list[str]()
    try:
        with open_plain(file) as lines:
            if os.fstat(lines.fileno()).st_size > LARGEST_FILE:
                raise ConfigError([f"{file}: has more than {LARGEST_FILE} bytes: split it"])
            for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    raise ConfigError([*problems, f"{file}, line {number}: has more than {LONGEST_LINE} bytes"])
                if number > MOST_LINES:
                    raise ConfigError([*problems, f"{file}: has more than {MOST_LINES} lines: split it"])
                if len(problems) == MOST_PROBLEMS:
                    break
                try:
                    if line.strip():
                        yield import_line(line, policy)
                except ImportedError as fault:
                    problems.append(f"{file}, line {number}: {fault}")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    if problems:
        raise ConfigError(problems)


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


class Importer(LetterWriter):
    """An import of one part: it appends the letters that the DLQ does not have. A context manager.

    Making one fences redrives and other imports, unless `fence` is False: then nothing can be written. `compare_with`
    then looks at what is in the DLQ. `missing`: the letters that it does not have. `edited`: the new values of dead
    letters whose line has another value than they have, by position in the DLQ. `refused`: the letters that Kafka
    refuses, and why. Letters are named by `Letter.series`, those of another system (`is_foreign`) by their id alone; of
    the lines of one name only the one that counts is kept. Foreign letters are never edits.
    """

    def __init__(self, letters: DeadLetters, *, is_foreign: bool = False, fence: bool = True) -> None:
        letters.layout(whole=True)  # first: no other command is fenced if a topic does not exist
        self.missing: dict[tuple[str, str], Letter] = {}
        self.refused: dict[tuple[str, str], str] = {}
        self.edited: dict[str, bytes | None] = {}
        self._report: Report = no_report
        self._is_foreign = is_foreign
        super().__init__(letters, letters.batch_limit(letters.topics), fence=fence)

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def name_of(self, letter: Letter) -> tuple[str, str]:
        """Return by what the letter is compared with those in the DLQ."""
        return (letter.id, "") if self._is_foreign else letter.series

    def compare_with(self, lines: Sequence[Letter], report: Report) -> None:
        """Find out which of these letters the DLQ has. Raises BrokerError and ContractError."""
        for letter in lines:
            other = self.missing.get(name := self.name_of(letter))
            if other is None or rank_of(letter) > rank_of(other):
                self.missing[name] = letter
        # A letter that cannot be seen now would be imported a second time.
        self._layout, self._report = self._letters.settled_layout(), report
        self._look(self._layout)

    def _look(self, layout: Layout) -> None:
        """Take note of the letters that are in this part of the DLQ.

        A line is edited if no letter of its name has its value; it is then an edit of the newest one.
        """
        newest, same = dict[tuple[str, str], Letter](), set[tuple[str, str]]()
        with Scan(self._letters, layout, self._report) as scan:
            for record in scan:
                letter = read_letter(record, self._letters.policy)
                if (line := self.missing.get(name := self.name_of(letter))) is not None:
                    newest[name] = max(newest.get(name, letter), letter, key=rank_of)
                    if self._is_foreign or line.record.value == record.value:
                        same.add(name)
        for series, letter in newest.items():
            line = self.missing.pop(series)
            if series not in same:
                self.edited[letter.position] = line.record.value

    def write_missing(self) -> None:
        """Write the missing letters, `MOST_LETTERS` in each transaction.

        Raises BrokerError if Kafka fails; the transactions that were committed before stay.
        """
        missing = list(self.missing.values())
        for start in range(0, len(missing), MOST_LETTERS):
            self.write_letters(missing[start : start + MOST_LETTERS])

    def _entries_of(self, batch: Sequence[Letter]) -> list[SettledRecord]:
        return [self._entry(letter) for letter in batch]

    def _send(self, producer: DlqProducer, entries: Sequence[SettledRecord]) -> None:
        producer.write(entries, producer.counts)

    def _note_refusals(self, refusals: Sequence[Refusal]) -> None:
        """Nothing: each letter is tried, whatever was refused before."""

    def _refuse(self, letter: Letter, refusal: Refusal) -> None:
        self.refused[self.name_of(letter)] = refusal.reason

    def _stopped_text(self, cause: str) -> str:
        return f"the import cannot go on: {cause}; run it again, what is there is passed over"

    def _has_happened(self, batch: Sequence[Letter], _sure_after_s: float) -> bool:
        """Return whether the batch has reached the DLQ: a transaction is there as a whole, or not at all."""
        before, self._layout = self._layout, self._letters.settled_layout()
        grown = {
            partition: span._replace(begin=before[partition].end)
            for partition, span in self._layout.items()
            if partition in before and before[partition].end < span.end
        }
        self._look(grown)
        return not any(self.name_of(letter) in self.missing for letter in batch)

    def _entry(self, letter: Letter) -> SettledRecord:
        assert letter.retry_state is not None
        record, state, policy = letter.record, letter.retry_state, self._letters.policy
        if self._is_foreign:
            died = DeadLetter(state, state.reason, state.times + 1)
            return SettledRecord(record, died, writes_of(record, died, policy, now().wall_ms))
        copy = Copy(record.source.topic, record.key, record.value, record.headers or [], record.source.number)
        return SettledRecord(record, DeadLetter(state, letter.reason, 0), (copy,))


class ImportLetters:
    """Put the dead letters of a file back into the DLQ, and redrive those that were edited, as an operation.

    Or take over those of another system. `who`: the author of the edits.
    """

    action, why = "import", ""

    def __init__(self, letters: DeadLetters, source: LetterSource, who: str) -> None:
        self._letters, self._source, self._who = letters, source, who
        self.what = source.what
        self._counts = PlanCounts()

    @property
    def changed(self) -> int:
        """How many letters were imported and redriven so far."""
        return self._counts.of(IMPORTED) + self._counts.of(EDITED)

    def plan(self, report: Report) -> Plan:
        """Compare every line with the DLQ. Raises ConfigError if a line is not a letter, BrokerError, ContractError."""
        counts, known = PlanCounts(), set[int]()
        for lines in parts_of(self._source.read()):
            self._take_part(lines, counts, known, None, report)
        new, edited = counts.of(IMPORTED), counts.of(EDITED)
        into = f"import {plural(new, 'dead letter')} into {', '.join(self._letters.topics)}"
        target = target_of(self._letters.policy, queued=self._letters.is_queued())
        redrives = f"redrive {plural(edited, 'edited one')} to {target}"
        steps = " and ".join(words for words, count in ((into, new), (redrives, edited)) if count)
        question = f"{steps[0].upper()}{steps[1:]}?" if steps else ""
        nothing = f"{new} would be imported, {edited} redriven" if steps else "there is nothing to import"
        status = Status.FAILED if counts.of(REFUSED) else Status.DONE
        return Plan(COLUMNS, _rows(counts, PLANNED), question, nothing, status=status)

    def run(self, report: Report, stop: threading.Event) -> None:
        """Import the letters, a part at a time. `stop` ends it after a part, and the redrive between two transactions.

        Raises BrokerError, ContractError and SupersededError.
        """
        for lines in parts_of(self._source.read()):
            self._take_part(lines, self._counts, None, stop, report)
            if stop.is_set():
                return

    def outcome(self) -> Outcome:
        """Return what became of the lines: PARTLY if some were refused, FAILED if all that were new were."""
        counts = {result: self._counts.of(result) for result in (IMPORTED, EDITED, THERE, BEFORE)}
        always = (IMPORTED, THERE)
        sentences = [", ".join(f"{count} {result}" for result, count in counts.items() if count or result in always)]
        if passed_over := self._counts.of(PASSED_OVER):
            sentences.append(f"left {plural(passed_over, 'record')} that no record of this group's topics was")
        status = Status.DONE
        if refused := self._counts.of(REFUSED):
            sentences.append(f"{refused} were refused; run the import again to try them again")
            status = Status.PARTLY if self.changed else Status.FAILED
        return Outcome(_rows(self._counts, {}), sentences, status)

    def _take_part(
        self,
        lines: Sequence[Letter],
        counts: PlanCounts,
        known: set[int] | None,
        stop: threading.Event | None,
        report: Report,
    ) -> None:
        """Import some letters, and count each by its result; or find out what would become of them. Some may be left.

        `known`: the letters that earlier parts of a plan would write; without it the letters are written.
        """
        results = dict[tuple[str, str], tuple[str, str]]()
        for letter in lines:
            if letter.retry_state is None:
                counts.count(letter, PASSED_OVER)
        lines = [letter for letter in lines if letter.retry_state is not None]
        with Importer(self._letters, is_foreign=self._source.is_foreign, fence=known is None) as importer:
            importer.compare_with(lines, report)
            missing = [series for series in importer.missing if known is None or hash(series) not in known]
            if known is None:
                importer.write_missing()
        if known is not None:
            known.update(map(hash, missing))
        results |= dict.fromkeys(missing, (IMPORTED, ""))
        results |= {series: (REFUSED, reason) for series, reason in importer.refused.items()}
        if importer.edited:
            redriven = self._redrive_edited(importer.edited, stop, report)
            results |= {one.series: _result_of(one.kind.verdict, one.kind.error) for one in redriven.results}
        for letter in lines:
            counts.count(letter, *results.get(importer.name_of(letter), (THERE, "")))

    def _redrive_edited(
        self, values: Mapping[str, bytes | None], stop: threading.Event | None, report: Report
    ) -> PlanCounts:
        """Redrive the letters at these positions with other values, and return the result of each.

        `stop`: ends the redrive between two transactions; None: nothing is written, and READY are those that would be
        redriven.
        """
        request = at_positions(values)
        if stop is None:
            return plan_redrive(self._letters, request, None, report)
        counts = PlanCounts(len(values))
        with Redriver(self._letters, request, stop, edits=Edits(values, self._who), counts=counts) as redriver:
            redriver.run(None, None, report)
        return counts


def _result_of(verdict: str, error: str) -> tuple[str, str]:
    """Return what became of an edited letter, and why it was refused."""
    match verdict:
        case Eligibility.READY:
            return EDITED, ""
        case Eligibility.REDRIVEN | Eligibility.COPY:  # the newest of its letters is a copy once one was redriven
            return BEFORE, ""
        case _:
            return REFUSED, error or verdict


def _rows(counts: PlanCounts, words: dict[str, str]) -> list[Row]:
    """Return a row for each kind of letter, those that change first. `words`: what a result is called."""
    kinds = sorted(counts.counts.items(), key=lambda item: (item[0].verdict not in PLANNED, -item[1], item[0]))
    return [
        {
            "action": words.get(kind.verdict, kind.verdict),
            "reason": kind.reason,
            "topic": kind.topic,
            "letters": count,
            "why": kind.error,
            "ids": counts.samples[kind],
        }
        for kind, count in kinds
    ]
