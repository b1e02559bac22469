"""`settle`: decide by hand about records that wait, one or many, or about a dead letter.

Which one is meant is found out here. The operations are `SettleWaiting` (`sidecar/dlq/settle_waiting.py`), and the
dismissal of a dead letter (`sidecar/dlq/operations.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.dlq.filters import SCANNED, DryRun, OpenGroup, ScanMost, expect_letters, open_dlq
from reconsume.sidecar.cli.terminal.arguments import author, optional_record_id
from reconsume.sidecar.cli.terminal.confirm import Yes
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.operation import carry_out
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.dlq.letters import Eligibility
from reconsume.sidecar.dlq.settle_request import NotWaitingError, SettleRequest, fault_of_why, waiting_request
from reconsume.sidecar.errors import LetterError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.operation import EpochMs, Report, Status
from reconsume.sidecar.printable import printable
from reconsume.topics.decision_record import COMMIT, DEAD_LETTER, RETRY_NOW

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.dead_letters import SearchResult
    from reconsume.sidecar.group_policy.decisions import DecisionStore

OptionalIdent = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="A record's id, like orders:3:1024, or a DLQ position.", callback=optional_record_id
    ),
]
NO_DECISION = "say what to do with the record, by one of --dead-letter, --commit and --retry-now"
NO_TARGET = "give the ID of a record, or --waiting; or a decision, by --status or --end"
NOT_WAITING = (
    "{} does not wait in this group: --dead-letter and --retry-now are for records that wait, and --commit for these "
    "and for dead letters; `{}` finds a record that is retried in place, or not delivered yet"
)


def settle(
    options: Options,
    ident: OptionalIdent = None,
    why: Annotated[str, typer.Option("--why", help="The reason, for whoever looks later; needed to decide.")] = "",
    commit: Annotated[
        bool, typer.Option("--commit", help="It is done: a dead letter is dismissed, a waiting record never delivered.")
    ] = False,
    dead: Annotated[bool, typer.Option("--dead-letter", help="A waiting record goes to the DLQ.")] = False,
    retry_now: Annotated[
        bool, typer.Option("--retry-now", help="A waiting record, parked or not, is delivered now.")
    ] = False,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Instead of one record: all that wait and fit the conditions.")
    ] = False,
    topic: Annotated[str | None, typer.Option("--topic", help="With --waiting: of this main topic.")] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="With --waiting: that failed last for this reason, like http-503.")
    ] = None,
    level: Annotated[
        str | None,
        typer.Option("--level", help="With --waiting: that wait in this level: ready, ordered, parked, or like 10m."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="With --waiting: with this key, as text.")] = None,
    key_base64: Annotated[str | None, typer.Option("--key-base64", help="The same, of a key that is no text.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="With --waiting: how many the group settles at most, like 50/s.")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="DECISION", help="Show how far a decision is.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--end", metavar="DECISION", help="End a decision: what is left of it stays.")
    ] = None,
    who: Annotated[str | None, typer.Option("--who", help="Who decides it; user@host by default.")] = None,
    scan: ScanMost = SCANNED,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Decide by hand about records that wait, or about a dead letter.

    A record that waits can go to the DLQ, count as done, or be delivered now, wherever it waits: in a level, in the
    queue of its key (`retry.ordered_ladder`), or parked there. With --waiting the decision is about all records that
    wait when it is written and fit the conditions; without any, about everything that waits. The plan counts them by
    topic, level and reason, and --dry-run ends with it.

    The first line after your confirmation begins with the id of the decision. From then on the owners of the partitions
    carry it out, and nobody delivers these records otherwise. The command follows them. Ctrl-C ends the following, not
    the decision: `--status` shows how far it is, and `--end` ends it. It is over after 24 h at the latest.

    A decision is for the redrives and retries that the record has now, and acts once, with an event and the reason
    `by-operator`. If the record is in flight, its response comes first. `--retry-now` uses up no retry: a parked record
    that fails again is parked again. Of a key, only the first record can be tried now; the other two decisions apply to
    each in order. The last decision about a record applies until one is carried out.

    Exit codes: 0 if all is done, or nothing fits; 3 if the decision or the following was ended while some is left; 1 if
    nothing was decided, or of one record if its response came first.

    With `--commit` a dead letter is dismissed for good. It leaves `dlq list` and every redrive; `dlq list --all` and
    `dlq show` still have it, and the DLQ keeps it as long as any other. The decision is a record in the group's policy
    topic, and an event DISMISSED in the record's journey, with who made it and why. What was dismissed once
    keeps its first reason: the same command only writes the event again.
    It is about this death alone: if a redrive had the record in hand meanwhile and it dies again, it is listed again.
    Refused where 10 000 letters of the group are dismissed: `dlq purge` makes room. Ends with 3 if the decision is
    written and its event is not.

    \b
    Examples:
      reconsume settle orders:3:1024 --commit --why "the order was cancelled"
      reconsume settle orders:3:1025 --retry-now --why "the account is unlocked"
      reconsume settle --waiting --reason http-503 --retry-now --rate 50/s --why "the ledger is back"
      reconsume settle --waiting --level parked --dead-letter --why "agreed with the shop" --dry-run
      reconsume settle --status 3f9c1ab2
    """
    conditions = {"topic": topic, "reason": reason, "level": level, "key": key, "key_base64": key_base64}
    if sum([ident is not None, waiting, status is not None, end is not None]) != 1:
        raise typer.BadParameter(NO_TARGET)
    if not waiting and any(one is not None for one in (*conditions.values(), rate)):
        raise typer.BadParameter("--topic, --reason, --level, --key and --rate go with --waiting")
    if status is not None:
        return print_status(options, status)
    if end is not None:
        return end_decision(options, end, who)
    decisions = [how for how, is_wanted in ((COMMIT, commit), (DEAD_LETTER, dead), (RETRY_NOW, retry_now)) if is_wanted]
    if len(decisions) != 1:
        raise typer.BadParameter(NO_DECISION)
    if fault := fault_of_why(why):
        raise typer.BadParameter(f"--why: {fault}")
    group = open_dlq(options, who)
    if group.settings.deliver.broadcast:
        raise typer.BadParameter("deliver.broadcast: nothing of a broadcast waits")
    try:
        request = waiting_request(conditions, decisions[0], why, group.who, rate, group.settings.topic_names)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None
    return decide(options, group, request._replace(id=ident or ""), scan, yes=yes, dry_run=dry_run)


def decide(options: Options, group: OpenGroup, request: SettleRequest, scan: int, *, yes: bool, dry_run: bool) -> int:
    """Settle what waits, or else dismiss a dead letter. Raises LetterError if there is neither."""
    from reconsume.sidecar.dlq.operations import Dismissal  # the Kafka client is slow to import
    from reconsume.sidecar.dlq.settle_waiting import SettleWaiting

    letters, who, actions = group.letters, group.who, group.actions
    operation = SettleWaiting(letters, group.settings, request, talk)
    try:
        return carry_out(options, operation, who, actions, yes=yes, dry_run=dry_run)
    except NotWaitingError:
        if request.how != COMMIT:
            raise LetterError(NOT_WAITING.format(printable(request.id), hint(f"find --id {request.id}"))) from None
    except KeyboardInterrupt:
        if not operation.decision:
            raise
        return operation.outcome().status
    dismissal = Dismissal(
        letters, lambda report: newest_letter(group, request.id, scan, report), request, is_of_one=True
    )
    return carry_out(options, dismissal, who, actions, yes=yes, dry_run=dry_run)


def print_status(options: Options, ident: str) -> int:
    """Print how far a decision is. Raises RecordError if it is not known."""
    from reconsume.sidecar.group_policy.decisions import STATUS_COLUMNS, DecisionState

    status = open_decisions(options).status(ident)
    row = {**status.row, "at": None if status.record is None else EpochMs(status.record.at)}
    options.output.rows(STATUS_COLUMNS, [row])
    return Status.DONE if status.state is DecisionState.FINISHED else Status.PARTLY


def end_decision(options: Options, ident: str, who: str | None) -> int:
    """End a decision, and say what it has done. Raises RecordError if it is not open."""
    open_decisions(options).end(ident, author(who), talk)
    talk(f"decision {ident} is ended; what it has not settled stays as it is")
    return Status.DONE


def open_decisions(options: Options) -> DecisionStore:
    """Load the configuration and open the control log. Raises BadParameter for a broadcast, which has none."""
    from reconsume.sidecar.group_policy.decisions import DecisionStore  # the Kafka client is slow to import
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    settings = settings_for_kafka(options)
    if settings.deliver.broadcast:
        raise typer.BadParameter("deliver.broadcast: nothing of a broadcast waits")
    return DecisionStore(Cluster(settings.kafka), settings.names)


def newest_letter(group: OpenGroup, ident: str, scan: int, report: Report) -> SearchResult:
    """Return the newest dead letter with this id that counts; a copy if `ident` is the position of one. Raises
    LetterError if there is none."""
    from reconsume.sidecar.dlq.dead_letters import find_letters  # the Kafka client is slow to import

    result = find_letters(group.letters, ident, scan, report)
    expect_letters(result, ident)
    originals = [pair for pair in result.letters if pair[1] is not Eligibility.COPY]
    return result._replace(letters=(originals or result.letters)[:1])
