"""Redrive dead letters by a list of ids and values: the process behind `redrive_rows` of a Spark job.

Only one implementation may write the history of redrives, and a Spark job must not import the sidecar. So
`spark/consumer/redrive.py` starts this module as a process of its own. Its stdin is lines: a `Task` and a `Row` for
each id, all of JSON, and END. Without END, whoever wrote them has failed, and nothing is done. Its stdout is one line,
the `Result`.

Of each id the newest open letter counts. It is found by a first reading of the DLQ, and redriven as `dlq redrive` does:
with its transactional id, so that the later of two redrives wins, and with its history, so that a redrive that was
killed goes on when it is run again, and each letter is redriven once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from reconsume.sidecar.dlq.dead_letters import DeadLetters, LetterScan
from reconsume.sidecar.dlq.letters import Eligibility, Filter, RedriveRequest
from reconsume.sidecar.dlq.redrive_history import MOST_REDRIVES_EVER
from reconsume.sidecar.dlq.redriver import REFUSED, Edits, PlanCounts, Redriver, at_positions
from reconsume.sidecar.errors import ConfigError, ReconsumeError
from reconsume.sidecar.group_policy.operations import ActionStore
from reconsume.sidecar.kafka.client_check import expect_clients
from reconsume.sidecar.operation import no_report
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.load import Layers
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.events import BY_REDRIVE

END = b"end\n"
MOST_BYTES = 256 * 1024 * 1024
"""Bytes of ids and values in one call: they are all kept."""


class Task(msgspec.Struct, frozen=True):
    """What is asked for: a configuration as a tree or by its file, who asks, and whether nothing is to be written."""

    who: str
    config: dict[str, Any] = {}
    file: str = ""
    dry_run: bool = False


class Row(msgspec.Struct, frozen=True):
    """The id of a record, and the new value (Base64) of its dead letter; None keeps the value."""

    id: str
    value: bytes | None = None


class Result(msgspec.Struct, frozen=True):
    """What became of the ids: `spark/consumer/redrive.py` says what the counts mean."""

    redriven: int = 0
    copies: int = 0
    not_open: int = 0
    unknown: int = 0
    refused: int = 0
    error: str = ""


def read_rows(lines: Iterable[bytes]) -> dict[str, bytes | None]:
    """Return the values by id. Raises ConfigError if an id has two values, there are too many bytes, or no END."""
    values, weight = dict[str, bytes | None](), 0
    for line in lines:
        if line == END:
            return values
        row = msgspec.json.decode(line, type=Row)
        if values.setdefault(row.id, row.value) != row.value:
            raise ConfigError([f"the frame has {row.id} twice, with different values: which one counts is not known"])
        weight += len(row.id) + len(row.value or b"")
        if weight > MOST_BYTES:
            raise ConfigError([f"the frame has more than {MOST_BYTES} bytes: redrive a part of it at a time"])
    raise ConfigError(["the frame was not read to its end"])


def redrive_rows(letters: DeadLetters, values: Mapping[str, bytes | None], who: str, *, dry_run: bool) -> Result:
    """Redrive the newest open letter of each id. Raises BrokerError, ContractError and SupersededError."""
    newest, known, copies = dict[str, tuple[int, int, str]](), set[str](), 0
    request = RedriveRequest(Filter(), MOST_REDRIVES_EVER, forgotten=True, topics=letters.policy.topics)
    with LetterScan(letters, request, no_report) as scan:
        for letter, state in scan:
            if letter.id not in values:
                continue
            known.add(letter.id)
            copies += state is Eligibility.COPY
            if state is Eligibility.READY:
                age = (letter.record.timestamp, letter.record.offset, letter.position)
                newest[letter.id] = max(age, newest.get(letter.id, age))
    by_position = {position: values[ident] for ident, (_, _, position) in newest.items()}
    counts = PlanCounts()
    if by_position and not dry_run:
        edits = Edits({position: value for position, value in by_position.items() if value is not None}, who)
        with Redriver(letters, at_positions(by_position), threading.Event(), edits=edits, counts=counts) as redriver:
            redriver.run(None, None, no_report)
    redriven = len(by_position) if dry_run else counts.redriven
    refused = counts.of(REFUSED)
    return Result(redriven, copies, len(known) - redriven - refused, len(values) - len(known), refused)


def carry_out(lines: Iterable[bytes]) -> Result:
    """Do what the lines of stdin ask for. Raises ReconsumeError."""
    rest = iter(lines)
    task = msgspec.json.decode(next(rest), type=Task)
    settings: Settings = load(Path(task.file)) if task.file else Layers(task.config).checked()
    expect_clients(settings.kafka)
    values = read_rows(rest)
    letters = DeadLetters(settings.kafka, build_policy(settings, f"{BY_REDRIVE}{task.who}"))
    if task.dry_run:
        return redrive_rows(letters, values, task.who, dry_run=True)
    actions = ActionStore(settings.kafka, settings.names, lambda text: None)
    with actions.noted("redrive", task.who, f"{plural(len(values), 'id')} of a frame") as tally:
        result = redrive_rows(letters, values, task.who, dry_run=False)
        tally.records = result.redriven
    return result


def main() -> int:
    """Serve one caller: 0 with a result, 1 with a reason why there is none."""
    try:
        result = carry_out(sys.stdin.buffer)
    except ReconsumeError as error:
        result = Result(error=str(error))
    sys.stdout.write(f"{msgspec.json.encode(result).decode()}\n")
    return 1 if result.error else 0


if __name__ == "__main__":
    sys.exit(main())
