"""`settle`: decide by hand about one record. `--commit` dismisses a dead letter: seen, and nobody will mend it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.dlq.filters import SCANNED, DryRun, ScanMost, Yes, open_dlq, progress_line
from sidecar.cli.terminal.arguments import author
from sidecar.cli.terminal.confirm import is_to_go_on
from sidecar.cli.terminal.exit_codes import DONE, PARTLY
from sidecar.cli.terminal.options import Options
from sidecar.cli.terminal.output import Row, talk
from sidecar.clock import wall
from sidecar.core.policy import Policy
from sidecar.dlq.letters import Eligibility, Letter
from sidecar.errors import BrokerError, ContractError
from sidecar.printable import printable
from topics.events import State, event_of
from topics.policy_record import LONGEST_WHY, SettlementRecord

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
    if not why.strip() or len(why) > LONGEST_WHY or not why.isprintable():
        raise typer.BadParameter(f"--why must be 1 to {LONGEST_WHY} printable characters")
    _, there, policy = open_dlq(options, who)
    letter, verdict = the_letter(there, policy, ident, scan)
    row = row_of(letter, verdict, why)
    settled = expect_room(there, verdict)
    asked = f"Dismiss {printable(letter.id)} for good?"
    if not is_to_go_on(options.output, COLUMNS, row, asked, dry_run=dry_run, yes=yes, nothing="nothing was written"):
        return DONE
    code = carry_out(there, policy, letter, settled, why, author(who))
    options.output.rows_after([row], COLUMNS, [row])
    return code


def the_letter(there: DlqTopics, policy: Policy, ident: str, scan: int) -> tuple[Letter, Eligibility]:
    """Return the newest dead letter with this id. Raises ContractError if there is none that can be dismissed."""
    from sidecar.dlq.search import find_id

    found = find_id(there, policy, ident, scan, progress_line("found"))
    if not found.letters:
        more = "; --scan looks at more" if found.cut else ""
        raise ContractError(f"there is no dead letter {printable(ident)}{more}")
    letter, verdict = found.letters[0]
    if verdict is Eligibility.REDRIVEN:
        raise ContractError(f"{letter.place} was redriven: it is no dead letter any more")
    if letter.life is None:
        raise ContractError(f"{letter.place} has no readable headers, so that nothing names it: `dlq purge` deletes it")
    return letter, verdict


def expect_room(there: DlqTopics, verdict: Eligibility) -> Settlements:
    """Return the group's settlements. Raises ContractError if none may be added."""
    from sidecar.dlq.settlements import MOST

    needed = {there.names.policy, there.names.events}
    if missing := sorted(needed - there.cluster.find(needed).keys()):
        raise ContractError(f"{' and '.join(missing)} does not exist; `reconsume topics apply` creates it")
    settled = there.settlements()
    if settled.unaware:
        raise ContractError(
            f"instances of an older version do not know dismissed letters: {', '.join(settled.unaware[:10])}; "
            "finish the roll-out first"
        )
    if verdict is not Eligibility.DISMISSED and len(settled.commits) - len(gone(there, settled)) >= MOST:
        raise ContractError(f"{MOST} letters of the group are dismissed already: make room by `reconsume dlq purge`")
    return settled


def gone(there: DlqTopics, settled: Settlements) -> list[str]:
    """Return the ids of the settlements whose letters Kafka has deleted."""
    from sidecar.dlq.settlements import gone_of

    return gone_of(settled, there.layout())


def carry_out(there: DlqTopics, policy: Policy, letter: Letter, settled: Settlements, why: str, by: str) -> int:
    """Write the decision, then the event. Return 3 if only the decision is in Kafka."""
    from sidecar.dlq.settlements import Life, SettlementWriter

    assert letter.life is not None
    life, at, writer = letter.life, wall(), SettlementWriter(there.kafka, there.names)
    if Life(life.id, life.redrives, life.times) in settled.commits:
        talk(f"{life.id} was dismissed before: only its event is written again")
    else:
        record = SettlementRecord(life.redrives, life.times, "commit", why, by, at, secrets.token_hex(8), letter.place)
        writer.write(life.id, record)
    event = event_of(life, State.DISMISSED, None, group=there.names.group, instance=policy.instance, at=at)
    try:
        writer.tell(event)
        writer.forget(one for one in gone(there, settled) if one != life.id)
    except BrokerError as fault:
        talk(f"dismissed, but {fault}; the same command tries it again")
        return PARTLY
    talk(f"dismissed {life.id}: it is in no list and no redrive any more; `dlq list --all` shows it")
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
