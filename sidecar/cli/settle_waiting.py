"""`settle` for a record that waits in a queue: the decision is written, and its owner's event is awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.cli.dlq.commands import MOST_EVENTS
from sidecar.cli.dlq.filters import open_dlq
from sidecar.cli.terminal.arguments import author
from sidecar.cli.terminal.confirm import is_to_go_on
from sidecar.cli.terminal.exit_codes import DONE, PARTLY
from sidecar.cli.terminal.options import Options
from sidecar.cli.terminal.output import Row, talk
from sidecar.errors import LetterError
from sidecar.printable import printable
from topics.policy_record import COMMIT, DEAD_LETTER, RETRY_NOW
from topics.reasons import reason_class, text_of

if TYPE_CHECKING:
    from sidecar.dlq.decisions import Decided, Look
    from sidecar.dlq.topics import DlqTopics
    from sidecar.dlq.waiting import WaitingRecord

COLUMNS = ("id", "place", "reason", "was", "is", "why")
ENDS = {COMMIT: "done", DEAD_LETTER: "dead letter", RETRY_NOW: "tried now"}
WAIT = 10.0
"""Seconds for the owner of the record to carry a decision out."""


def settle_waiting(
    options: Options, ident: str, how: str, why: str, who: str | None, *, yes: bool, dry_run: bool
) -> int | None:
    """Settle a record that waits in a queue, and return the exit code; None if it does not wait there.

    Raises LetterError if it cannot be settled so.
    """
    from sidecar.dlq.decisions import decide, decision_about, expect_decidable, fault_of_decision
    from sidecar.dlq.waiting import find_waiting

    settings, there, policy = open_dlq(options, who)
    order = settings.deliver.order
    waiting = None if order == "none" else find_waiting(there, policy, order, ident)
    if waiting is None:
        return None
    if fault := fault_of_decision(waiting, how):
        raise LetterError(f"{printable(ident)} cannot be settled so: {fault}")
    settled = expect_decidable(there, policy, ident)
    row = row_of(waiting, how, why)
    if settled.queueless:
        talk(f"these instances are of an older version and carry out nothing: {', '.join(settled.queueless[:10])}")
    question = f"Settle {printable(ident)}, so that it is {ENDS[how]}?"
    if not is_to_go_on(options.output, COLUMNS, row, question, dry_run=dry_run, yes=yes, nothing="nothing was written"):
        return DONE
    decision = decision_about(waiting, how, why, author(who))
    code = say_outcome(ident, decide(there, waiting, decision, events_since(there, ident, decision.at), WAIT), how)
    options.output.rows_after([row], COLUMNS, [row])
    return code


def events_since(there: DlqTopics, ident: str, at: int) -> Look:
    """Return a function that reads the events of a record from some time before `at` (epoch ms)."""
    from sidecar.view.journey import read_journey  # the Kafka client is slow to import

    return lambda: read_journey(there.kafka, there.names, ident, at, MOST_EVENTS, lambda _read, _of: None).events


def say_outcome(ident: str, decided: Decided, how: str) -> int:
    """Say what became of a decision, and return the exit code. Raises LetterError if the record's answer came first."""
    name, event = printable(ident), decided.event
    if event is None:
        talk(f"the decision about {name} is written and not carried out yet: its owner does it as soon as it can")
        return PARTLY
    if not decided.as_decided:
        raise LetterError(
            f"nothing was settled: the answer to {name} came first, and it is {event.state} after {event.times} "
            "retries now; settle it anew if it still waits"
        )
    talk(f"settled {name}: it is {ENDS[how]}")
    return DONE


def row_of(waiting: WaitingRecord, how: str, why: str) -> Row:
    """Return the change as a row."""
    return {
        "id": waiting.state.id,
        "place": waiting.position,
        "reason": reason_class(waiting.state.reason),
        "text": text_of(waiting.state.reason),
        "was": waiting.was,
        "is": ENDS[how],
        "why": why,
    }
