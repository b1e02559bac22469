"""`dlq redrive`: bring dead letters back to the service."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.dlq.filters import (
    Contains,
    DryRun,
    FilterOptions,
    Headers,
    Ids,
    Keys,
    Reasons,
    Since,
    Topics,
    Until,
    Who,
    filter_of,
    in_words,
    open_actions,
    open_dlq,
    progress_line,
)
from reconsume.sidecar.cli.dlq.rows import PLAN, plan_rows
from reconsume.sidecar.cli.terminal.arguments import author
from reconsume.sidecar.cli.terminal.confirm import Yes, ask, stop_signal
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED, PARTLY
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.dlq.letters import MOST_REDRIVES, Eligibility, RedriveRequest
from reconsume.sidecar.dlq.redrive_target import planned_target
from reconsume.sidecar.printable import plural

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.plan import PlanCounts
    from reconsume.sidecar.dlq.redriver import Redriver


Most = Annotated[int | None, typer.Option("--max", min=1, help="At most so many in this run.")]
Rate = Annotated[
    float | None, typer.Option("--rate", min=0.01, help="At most so many a second; as fast as it goes by default.")
]
MostRedrives = Annotated[
    int, typer.Option("--max-redrives", min=1, help="Leave what came back so often: it is quarantined.")
]
Forgotten = Annotated[
    bool, typer.Option("--forgotten", help="Also those so old that Kafka no longer knows whether they were redriven.")
]


def redrive(
    options: Options,
    ids: Ids = None,
    reasons: Reasons = None,
    topics: Topics = None,
    headers: Headers = None,
    keys: Keys = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    most: Most = None,
    rate: Rate = None,
    most_redrives: MostRedrives = MOST_REDRIVES,
    forgotten: Forgotten = False,
    who: Who = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Bring dead letters back.

    Each goes to the ready topic, where it is due at once, with RECONSUMETIMES 0 and one more in RETRY_REDRIVES: its
    retries begin anew. Copy, event and progress are one transaction, so that a redrive that was killed goes on when it
    is run again, and each dead letter is redriven once, whatever filters it is met by. A plan is shown first.

    One at a time: a second redrive of the group ends the first, between two transactions. What dies meanwhile waits
    for the next run. Ends with 3 when Kafka refused some.

    \b
    Examples:
      reconsume dlq redrive --reason http-503 --since 6h --dry-run
      reconsume dlq redrive --topic orders --rate 50 --yes
      reconsume dlq redrive --id orders:3:1024
      reconsume dlq redrive --contains '"sku": "A-99"'
    """
    letter_filter = filter_of(FilterOptions(ids, reasons, topics, headers, since, until, keys, contains))
    request = RedriveRequest(letter_filter, most_redrives, forgotten)
    return plan_and_redrive(options, request, most, rate, who, yes=yes, dry_run=dry_run)


def plan_and_redrive(
    options: Options,
    request: RedriveRequest,
    most: int | None,
    rate: float | None,
    who: str | None,
    *,
    yes: bool,
    dry_run: bool,
) -> int:
    """Show the plan, ask the user to agree, and carry it out."""
    _, there, policy = open_dlq(options, who)
    from reconsume.sidecar.dlq.plan import plan_redrive
    from reconsume.sidecar.dlq.redriver import Redriver  # the Kafka client is slow to import, and --help needs none

    plan = plan_redrive(there, policy, request, most, progress_line("ready"))
    count, ready = plan.of(Eligibility.READY), planned_target(policy)
    rows = plan_rows(plan, ready, request.most_redrives, done=False)
    if dry_run or count == 0:
        options.output.rows(PLAN, rows)
        met = sum(plan.counts.values())
        talk(f"{count} of {plural(met, 'dead letter')} would be redriven" if count else "there is nothing to redrive")
        return DONE
    options.output.talk_rows(PLAN, rows)
    if not yes:
        ask(f"Redrive {plural(count, 'dead letter')} to {ready}?")
    noted = open_actions(there).noted("redrive", author(who), in_words(request.filter))
    with noted as tally, stop_signal() as stop, Redriver(there, policy, request, stop) as redriver:
        try:
            return carry_out(options, redriver, request, most, rate, stop)
        finally:
            tally.records = redriver.redriven


def carry_out(
    options: Options,
    redriver: Redriver,
    request: RedriveRequest,
    most: int | None,
    rate: float | None,
    stop: threading.Event,
) -> int:
    """Redrive, and print the result, also after an early end. Raises KeyboardInterrupt if a signal stopped it."""
    try:
        redriver.run(most, rate, progress_line("redriven"))
    finally:
        options.output.rows(PLAN, plan_rows(redriver.counts, redriver.target, request.most_redrives, done=True))
        talk(f"{redriver.redriven} redriven to {redriver.target}")
    if stop.is_set():
        raise KeyboardInterrupt
    return code_of(redriver.counts)


def code_of(counts: PlanCounts) -> int:
    """Return the exit code: 3 if Kafka refused some letters, 1 if it refused all."""
    from reconsume.sidecar.dlq.plan import REFUSED

    if not counts.of(REFUSED):
        return DONE
    talk(f"{counts.of(REFUSED)} were refused by Kafka and stay in the DLQ; the next run tries them again")
    return PARTLY if counts.of(Eligibility.READY) else FAILED
