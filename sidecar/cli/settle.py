"""`settle`: decide by hand about one record. `--commit` dismisses a dead letter: seen, and nobody will mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.dlq.filters import SCANNED, DryRun, ScanMost, Yes, open_dlq, progress_line
from sidecar.cli.terminal.arguments import author
from sidecar.cli.terminal.confirm import is_to_go_on
from sidecar.cli.terminal.exit_codes import DONE, PARTLY
from sidecar.cli.terminal.options import Options
from sidecar.cli.terminal.output import Row, talk
from sidecar.core.policy import Policy
from sidecar.dlq.letters import Eligibility, Letter
from sidecar.errors import ContractError
from sidecar.printable import printable

if TYPE_CHECKING:
    from sidecar.dlq.settlements import Settlements
    from sidecar.dlq.topics import DlqTopics

COLUMNS = ("id", "place", "reason", "was", "is", "why")
DISMISSED = "dismissed"


def settle(
    options: Options,
    ident: Annotated[
        str, typer.Argument(metavar="ID", help="A record's id, like orders:3:1024, or a place in the DLQ.")
    ],
    why: Annotated[str, typer.Option("--why", help="The reason, for whoever looks later.")],
    commit: Annotated[
        bool, typer.Option("--commit", help="Dismiss the dead letter: it was seen, and will not be mended.")
    ] = False,
    who: Annotated[str | None, typer.Option("--who", help="Who decides it; user@host by default.")] = None,
    scan: ScanMost = SCANNED,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Dismiss one dead letter for good.

    It leaves `dlq list` and every redrive; `dlq list --all` and `dlq show` still have it, and the DLQ keeps it as long
    as any other. The decision is a record in the group's policy topic, and an event DISMISSED in the record's journey.
    It is about this death alone: if the record is redriven by an older version and dies again, it is listed again.

    Refused while an instance lives that does not know the state, and where 10 000 letters of the group are dismissed:
    `dlq purge` makes room. Ends with 3 if the decision is written and its event is not: the same command writes it.

    \b
    Examples:
      reconsume settle orders:3:1024 --commit --why "the order was cancelled"
      reconsume settle billing-DLQ:0:17 --commit --why "a test record" --yes
    """
    if not commit:
        raise typer.BadParameter("say what to do with the record: --commit")
    from sidecar.dlq.dismissal import expect_room, fault_of_why  # the Kafka client is slow to import

    if fault := fault_of_why(why):
        raise typer.BadParameter(f"--why: {fault}")
    _, there, policy = open_dlq(options, who)
    letter, verdict = the_letter(there, policy, ident, scan)
    row = row_of(letter, verdict, why)
    settled = expect_room(there, more=verdict is not Eligibility.DISMISSED)
    asked = f"Dismiss {printable(letter.id)} for good?"
    if not is_to_go_on(options.output, COLUMNS, row, asked, dry_run=dry_run, yes=yes, nothing="nothing was written"):
        return DONE
    code = carry_out(there, policy, letter, settled, why, author(who))
    options.output.rows_after([row], COLUMNS, [row])
    return code


def the_letter(there: DlqTopics, policy: Policy, ident: str, scan: int) -> tuple[Letter, Eligibility]:
    """Return the newest dead letter with this id. Raises ContractError if there is none that can be dismissed."""
    from sidecar.dlq.dismissal import fault_of
    from sidecar.dlq.search import find_id

    found = find_id(there, policy, ident, scan, progress_line("found"))
    if not found.letters:
        more = "; --scan looks at more" if found.cut else ""
        raise ContractError(f"there is no dead letter {printable(ident)}{more}")
    letter, verdict = found.letters[0]
    if fault := fault_of(letter, verdict):
        raise ContractError(fault)
    return letter, verdict


def carry_out(there: DlqTopics, policy: Policy, letter: Letter, settled: Settlements, why: str, by: str) -> int:
    """Write the decision, then the event. Return 3 if only the decision is in Kafka."""
    from sidecar.dlq.dismissal import dismiss

    done = dismiss(there, policy, [letter], settled, why, by)
    if done.before:
        talk(f"{letter.id} was dismissed before: only its event is written again")
    if done.event_fault:
        talk(f"dismissed, but {done.event_fault}; the same command tries it again")
        return PARTLY
    talk(f"dismissed {letter.id}: it is in no list and no redrive any more; `dlq list --all` shows it")
    return DONE


def row_of(letter: Letter, verdict: Eligibility, why: str) -> Row:
    """Return the change as a row."""
    return {
        "id": letter.id,
        "place": letter.place,
        "reason": letter.reason,
        "text": letter.text,
        "was": str(verdict),
        "is": DISMISSED,
        "why": why,
    }
