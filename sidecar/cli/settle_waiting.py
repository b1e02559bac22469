"""`settle` for a record that waits in a queue: the decision is written, and its owner's event is awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconsume.sidecar.cli.dlq.commands import MOST_EVENTS
from reconsume.sidecar.cli.dlq.filters import open_actions, open_dlq
from reconsume.sidecar.cli.terminal.arguments import author
from reconsume.sidecar.cli.terminal.confirm import is_to_go_on
from reconsume.sidecar.cli.terminal.exit_codes import DONE, PARTLY
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.printable import plural, printable
from reconsume.topics.policy_record import RETRY_NOW
from reconsume.topics.reasons import reason_class, text_of

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.queue_settler import QueueSettler, Settleable
    from reconsume.sidecar.dlq.topics import DlqTopics

COLUMNS = ("id", "place", "reason", "was", "is", "why")


def settle_waiting(
    options: Options, ident: str, how: str, why: str, who: str | None, *, yes: bool, dry_run: bool
) -> int | None:
    """Settle a record that waits in a queue, and return the exit code; None if it does not wait there.

    Raises LetterError if it cannot be settled so, or if its answer came first.
    """
    from reconsume.sidecar.dlq.queue_settler import ENDS, NotWaitingError  # the Kafka client is slow to import

    there, settler = open_settler(options, who)
    try:
        record = settler.find(ident, how)
    except NotWaitingError:
        return None
    row = row_of(record, why, ENDS[how])
    warn_of_holds(options, how)
    question = f"Settle {printable(ident)}, so that it is {ENDS[how]}?"
    if not is_to_go_on(options.output, COLUMNS, row, question, dry_run=dry_run, yes=yes, nothing="nothing was written"):
        return DONE
    with open_actions(there).noted("settle", author(who), f"{ident}: {ENDS[how]}", why) as tally:
        is_done = settler.decide(record, why, author(who)).as_decided
        tally.records = int(is_done)
    talk(outcome_text(ident, ENDS[how], is_done=is_done))
    options.output.rows_after([row], COLUMNS, [row])
    return DONE if is_done else PARTLY


def warn_of_holds(options: Options, how: str) -> None:
    """Warn if what is to be tried now may be held. Raises as `HoldStore.read`."""
    from reconsume.sidecar.cli.holds import open_holds

    live = open_holds(options)[1].read().live if how == RETRY_NOW else {}
    if live:
        held = ", ".join(sorted(record.what for record in live.values())[:3])
        talk(f"warning: {plural(len(live), 'hold')} in force ({held}): what is held is tried once it is released")


def open_settler(options: Options, who: str | None) -> tuple[DlqTopics, QueueSettler]:
    """Return the group's topics, and what settles its records."""
    from reconsume.sidecar.dlq.queue_settler import QueueSettler  # the Kafka client is slow to import
    from reconsume.sidecar.view.journey import events_since

    settings, there, policy = open_dlq(options, who)
    events = events_since(there.kafka, there.names, MOST_EVENTS)
    return there, QueueSettler(there, lambda: policy, settings.order_by, events)


def outcome_text(ident: str, end: str, *, is_done: bool) -> str:
    """Return what became of a decision, as one sentence."""
    name = printable(ident)
    if is_done:
        return f"settled {name}: it is {end}"
    return f"the decision about {name} is written and not carried out yet: its owner does it as soon as it can"


def row_of(record: Settleable, why: str, end: str) -> Row:
    """Return the change as a row."""
    waiting = record.waiting
    return {
        "id": waiting.state.id,
        "place": waiting.position,
        "reason": reason_class(waiting.state.reason),
        "text": text_of(waiting.state.reason),
        "was": waiting.was,
        "is": end,
        "why": why,
    }
