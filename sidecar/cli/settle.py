"""`settle`: decide by hand about one record, or about all that is parked.

The three kinds of target (a dead letter, a record that waits in a queue, every parked key) are operations of
`sidecar/dlq/operations.py`; here it is found out which one is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.dlq.commands import MOST_EVENTS
from reconsume.sidecar.cli.dlq.filters import (
    SCANNED,
    DryRun,
    OpenGroup,
    Reasons,
    ScanMost,
    Topics,
    expect_letters,
    open_dlq,
)
from reconsume.sidecar.cli.retries.blocked import key_fields, remarks
from reconsume.sidecar.cli.terminal.arguments import optional_record_id
from reconsume.sidecar.cli.terminal.confirm import Yes
from reconsume.sidecar.cli.terminal.operation import carry_out
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.dlq.letters import Eligibility
from reconsume.sidecar.dlq.settle_request import NotWaitingError, SettleRequest, fault_of_why
from reconsume.sidecar.errors import ConfigError, LetterError
from reconsume.sidecar.hints import hint, not_ours
from reconsume.sidecar.operation import Operation, Report
from reconsume.sidecar.printable import plural, printable
from reconsume.topics.decision_record import COMMIT, DEAD_LETTER, RETRY_NOW

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.dead_letters import SearchResult

OptionalIdent = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="A record's id, like orders:3:1024, or a DLQ position.", callback=optional_record_id
    ),
]
NO_DECISION = "say what to do with the record, by one of --dead-letter, --commit and --retry-now"
NOT_WAITING = (
    "{} waits in no queue of this group: --dead-letter and --retry-now are for records that wait by "
    "retry.ordered_ladder, and --commit for these and for dead letters; a record that is retried in place ends by "
    "retry.ordered_max_times or retry.ordered_ladder, which `{}` sets"
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
    decisions = [how for how, is_wanted in ((COMMIT, commit), (DEAD_LETTER, dead), (RETRY_NOW, retry_now)) if is_wanted]
    if len(decisions) != 1:
        raise typer.BadParameter(NO_DECISION)
    if parked == (ident is not None):
        raise typer.BadParameter("give the ID of a record, or --parked")
    if not parked and (topics or reasons):
        raise typer.BadParameter("--topic and --reason go with --parked")
    if fault := fault_of_why(why):
        raise typer.BadParameter(f"--why: {fault}")
    group = open_dlq(options, who)
    request = SettleRequest(ident or "", decisions[0], why, group.who)
    operation = (
        parked_keys(group, request, topics or (), reasons or ()) if ident is None else one_record(group, request, scan)
    )
    if request.how == RETRY_NOW:
        warn_of_holds(options)
    return carry_out(options, operation, group.who, group.actions, yes=yes, dry_run=dry_run)


def parked_keys(group: OpenGroup, request: SettleRequest, topics: Sequence[str], reasons: Sequence[str]) -> Operation:
    """Return the operation on every parked key. Raises BadParameter if a main topic is not the group's, ConfigError."""
    from reconsume.sidecar.dlq.operations import SettleParked  # the Kafka client is slow to import
    from reconsume.sidecar.dlq.settle import Settler

    settings = group.settings
    if settings.order_by is None:
        raise ConfigError("deliver.order is none: only what waits in order is ever parked")
    if strange := [topic for topic in topics if topic not in settings.topic_names]:
        raise typer.BadParameter(not_ours(strange[0], settings.topic_names))
    settler, chosen = Settler(group.letters, settings.order_by), sorted(set(topics)) or settings.topic_names
    return SettleParked(settler, chosen, sorted(set(reasons)), request, key_fields, remarks)


def one_record(group: OpenGroup, request: SettleRequest, scan: int) -> Operation:
    """Return the operation on a record that waits, or else on a dead letter. Raises LetterError if there is neither."""
    from reconsume.sidecar.dlq.operations import Dismissal, SettleWaiting  # the Kafka client is slow to import
    from reconsume.sidecar.dlq.settle import Settler
    from reconsume.sidecar.view.journey import events_since

    letters = group.letters
    events = events_since(letters.kafka, letters.names, MOST_EVENTS)
    settler = Settler(letters, group.settings.order_by, events)
    try:
        return SettleWaiting(settler, settler.find(request.id, request.how), request)
    except NotWaitingError:
        if request.how != COMMIT:
            raise LetterError(NOT_WAITING.format(printable(request.id), hint("policy set"))) from None
    return Dismissal(letters, lambda report: newest_letter(group, request.id, scan, report), request, events)


def newest_letter(group: OpenGroup, ident: str, scan: int, report: Report) -> SearchResult:
    """Return the newest dead letter with this id that counts; a copy if `ident` is the position of one. Raises
    LetterError if there is none."""
    from reconsume.sidecar.dlq.dead_letters import find_letters  # the Kafka client is slow to import

    result = find_letters(group.letters, ident, scan, report)
    expect_letters(result, ident)
    originals = [pair for pair in result.letters if pair[1] is not Eligibility.COPY]
    return result._replace(letters=(originals or result.letters)[:1])


def warn_of_holds(options: Options) -> None:
    """Warn if what is to be tried now may be held. Raises as `HoldStore.read`."""
    from reconsume.sidecar.cli.holds import open_holds

    if live := open_holds(options)[1].read().live:
        held = ", ".join(sorted(record.what for record in live.values())[:3])
        talk(f"warning: {plural(len(live), 'hold')} in force ({held}): what is held is tried once it is released")
