"""`settle`: decide by hand about one record: dismiss a dead letter, or end the wait of one that waits in a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.dlq.commands import MOST_EVENTS
from reconsume.sidecar.cli.dlq.filters import (
    SCANNED,
    DryRun,
    Reasons,
    ScanMost,
    Topics,
    newest_letter,
    open_actions,
    open_dlq,
)
from reconsume.sidecar.cli.settle_parked import settle_parked, which
from reconsume.sidecar.cli.settle_waiting import COLUMNS, settle_waiting
from reconsume.sidecar.cli.terminal.arguments import author, optional_record_id
from reconsume.sidecar.cli.terminal.confirm import Yes, is_to_go_on
from reconsume.sidecar.cli.terminal.exit_codes import DONE, PARTLY
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.letters import Eligibility, Letter
from reconsume.sidecar.errors import LetterError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import printable
from reconsume.topics.attempt import attempt_of
from reconsume.topics.events import State
from reconsume.topics.policy_record import COMMIT, DEAD_LETTER, RETRY_NOW

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.settlements import Settlements
    from reconsume.sidecar.dlq.topics import DlqTopics
    from reconsume.topics.policy_record import SettlementRecord

OptionalIdent = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="A record's id, like orders:3:1024, or a DLQ position.", callback=optional_record_id
    ),
]
DISMISSED = "dismissed"
NO_DECISION = "say what to do with the record, by one of --dead-letter, --commit and --retry-now"
NOT_WAITING = (
    "{} waits in no queue of this group: --dead-letter and --retry-now are for records that wait by "
    "retry.ordered_ladder, and --commit for these and for dead letters"
)


def settle(
    options: Options,
    why: Annotated[str, typer.Option("--why", help="The reason, for whoever looks later.")],
    ident: OptionalIdent = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="It is done: a dead letter is dismissed, a waiting record never delivered.")
    ] = False,
    dead: Annotated[
        bool, typer.Option("--dead-letter", help="A record that waits in a queue goes to the DLQ.")
    ] = False,
    retry_now: Annotated[
        bool, typer.Option("--retry-now", help="A record that waits in a queue, parked or not, is delivered now.")
    ] = False,
    parked: Annotated[
        bool, typer.Option("--parked", help="Instead of one record: the first one of each key that is parked.")
    ] = False,
    topics: Topics = None,
    reasons: Reasons = None,
    who: Annotated[str | None, typer.Option("--who", help="Who decides it; user@host by default.")] = None,
    scan: ScanMost = SCANNED,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Decide by hand about one record, or all that is parked.

    It is a dead letter, or one that waits in a queue (`retry.ordered_ladder`).

    A record that waits, is parked, or is behind another of its key can go to the DLQ, count as done, or be delivered
    now; what follows of its key then goes on. The decision is a record in the group's policy topic. It is for the
    redrives and retries that the record has now, and acts once. The owner of its partition carries it out, with an
    event and the reason `by-operator`; if the record is with the service, its answer comes first. `--retry-now` spends
    no retry: a parked record that fails again is parked again. Ends with 3 if nothing was carried out within 10 s.

    With `--parked` the decision is about every key that is parked (`retry.ordered_exhausted: park`), however many they
    are, for example after the cause of their failures was repaired. `--topic` and `--reason` narrow it, and may be
    repeated. It ends with 3 if none was carried out for 10 s; what was not settled by then is said, and the same
    command goes on with it.

    With `--commit` a dead letter is dismissed for good. It leaves `dlq list` and every redrive; `dlq list --all` and
    `dlq show` still have it, and the DLQ keeps it as long as any other. The decision is a record in the group's policy
    topic, and an event DISMISSED in the record's journey, with who made it and why. What was dismissed once is not
    dismissed again, and keeps its first reason.
    It is about this death alone: if a redrive had the record in hand meanwhile and it dies again, it is listed again.

    Refused where 10 000 letters of the group are dismissed: `dlq purge` makes room. Ends with 3 if the decision is
    written and its event is not: the same command writes it.

    \b
    Examples:
      reconsume settle orders:3:1024 --commit --why "the order was cancelled"
      reconsume settle billing-DLQ:0:17 --commit --why "a test record" --yes
      reconsume settle orders:3:1025 --retry-now --why "the account is unlocked"
      reconsume settle --parked --reason http-503 --retry-now --why "the ledger is back"
    """
    how = the_decision({COMMIT: commit, DEAD_LETTER: dead, RETRY_NOW: retry_now})
    wanted = which(ident, parked=parked, topics=topics, reasons=reasons)
    from reconsume.sidecar.dlq.dismissal import fault_of_why  # the Kafka client is slow to import

    if fault := fault_of_why(why):
        raise typer.BadParameter(f"--why: {fault}")
    if ident is None:
        return settle_parked(options, wanted, how, why, who, yes=yes, dry_run=dry_run)
    code = settle_waiting(options, ident, how, why, who, yes=yes, dry_run=dry_run)
    if code is not None:
        return code
    if not commit:
        raise LetterError(NOT_WAITING.format(printable(ident)))
    return dismiss_letter(options, ident, why, who, scan, yes=yes, dry_run=dry_run)


def the_decision(wanted: Mapping[str, bool]) -> str:
    """Return the only decision that is wanted. Raises BadParameter if there is none, or another beside it."""
    decisions = [how for how, is_wanted in wanted.items() if is_wanted]
    if len(decisions) != 1:
        raise typer.BadParameter(NO_DECISION)
    return decisions[0]


def dismiss_letter(
    options: Options, ident: str, why: str, who: str | None, scan: int, *, yes: bool, dry_run: bool
) -> int:
    """Dismiss a dead letter, and return the exit code."""
    from reconsume.sidecar.dlq.dismissal import decision_of, expect_room  # the Kafka client is slow to import

    _, there, policy = open_dlq(options, who)
    letter, verdict = the_letter(there, policy, ident, scan)
    settlements = expect_room(there, more=verdict is not Eligibility.DISMISSED)
    kept = decision_of(letter, settlements)
    row = row_of(letter, verdict, why if kept is None else kept.why)
    question = f"Dismiss {printable(letter.id)} for good?"
    if not is_to_go_on(options.output, COLUMNS, row, question, dry_run=dry_run, yes=yes, nothing="nothing was written"):
        return DONE
    code = carry_out(there, letter, settlements, kept, why, author(who))
    options.output.rows_after([row], COLUMNS, [row])
    return code


def the_letter(there: DlqTopics, policy: Policy, ident: str, scan: int) -> tuple[Letter, Eligibility]:
    """Return the newest dead letter with this id. Raises LetterError if there is none that can be dismissed."""
    from reconsume.sidecar.dlq.dismissal import fault_of

    letter, verdict = newest_letter(there, policy, ident, scan)
    if fault := fault_of(letter, verdict):
        raise LetterError(fault)
    return letter, verdict


def carry_out(
    there: DlqTopics, letter: Letter, settlements: Settlements, kept: SettlementRecord | None, why: str, by: str
) -> int:
    """Write the decision unless one was `kept`, then its event if it is missing. Return 3 if only the decision is in
    Kafka."""
    from reconsume.sidecar.dlq.dismissal import dismiss

    if kept is not None and has_event(there, letter, kept):
        talk(before_text(letter.id, kept, why))
        return DONE
    with open_actions(there).noted("dismiss", by, letter.id, why) as tally:
        done = dismiss(there, [letter], settlements, why, by)
        tally.records = len(done.ids)
    if done.event_fault:
        talk(f"dismissed, but {done.event_fault}; the same command tries it again")
        return PARTLY
    if kept is None:
        talk(f"dismissed {letter.id}: it is in no list and no redrive any more; `{hint('dlq list --all')}` shows it")
    else:
        talk(f"{before_text(letter.id, kept, why)}; only its event was missing, and is written now")
    return DONE


def has_event(there: DlqTopics, letter: Letter, kept: SettlementRecord) -> bool:
    """Whether the record's journey has this dismissal, with whatever words."""
    from reconsume.sidecar.view.journey import read_journey

    events = read_journey(there.kafka, there.names, letter.id, kept.at, MOST_EVENTS, lambda _read, _of: None).events
    same = (State.DISMISSED, attempt_of(kept))
    return any((one.state, attempt_of(one)) == same for one in events)


def before_text(ident: str, kept: SettlementRecord, why: str) -> str:
    """Return who dismissed a letter before, and why, for people."""
    other = "" if kept.why == why else ": the new reason is not kept"
    return f"{ident} was dismissed before by {kept.who}, because {kept.why}{other}"


def row_of(letter: Letter, verdict: Eligibility, why: str) -> Row:
    """Return the change as a row."""
    return {
        "id": letter.id,
        "place": letter.position,
        "reason": letter.reason,
        "text": letter.text,
        "was": str(verdict),
        "is": DISMISSED,
        "why": why,
    }
