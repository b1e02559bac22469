"""`settle --parked`: one decision about every key that is parked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer

from reconsume.sidecar.cli.dlq.filters import open_actions, open_dlq, unique
from reconsume.sidecar.cli.retries.blocked import key_fields, remarks
from reconsume.sidecar.cli.settle_waiting import warn_of_holds
from reconsume.sidecar.cli.terminal.arguments import author
from reconsume.sidecar.cli.terminal.confirm import ask, stop_signal
from reconsume.sidecar.cli.terminal.exit_codes import DONE, PARTLY
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Output, Row, each_second, talk
from reconsume.sidecar.cli.terminal.progress import progress_bar
from reconsume.sidecar.core.waiting_keys import WaitingKey
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.printable import plural, printable
from reconsume.sidecar.settings import Settings
from reconsume.topics.policy_record import RETRY_NOW

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.parked_settler import Decision, ParkedSettler, SettledAll

COLUMNS = ("id", "key", "behind", "reason", "was", "is", "why")
SHOWN = 20
"""Keys that a plan shows on the terminal; of more the number is told. `--dry-run` prints all of them."""


class Which(NamedTuple):
    """Which parked keys: of these main topics, and for these reasons; empty: of all."""

    topics: Sequence[str] = ()
    reasons: Sequence[str] = ()


def which(ident: str | None, *, parked: bool, topics: Sequence[str] | None, reasons: Sequence[str] | None) -> Which:
    """Return which parked keys are meant. Raises BadParameter unless it is one record or what is parked."""
    if parked == (ident is not None):
        raise typer.BadParameter("give the ID of a record, or --parked")
    if not parked and (topics or reasons):
        raise typer.BadParameter("--topic and --reason go with --parked")
    return Which(unique(topics), unique(reasons))


def settle_parked(
    options: Options, wanted: Which, how: str, why: str, who: str | None, *, yes: bool, dry_run: bool
) -> int:
    """Settle the keys that are parked, and return the exit code."""
    from reconsume.sidecar.dlq.parked_settler import (  # the Kafka client is slow to import
        Decision,
        ParkedSettler,
        parked_among,
    )
    from reconsume.sidecar.dlq.queue_settler import ENDS

    settings, there, policy = open_dlq(options, who)
    if settings.order_by is None:
        raise ConfigError("deliver.order is none: only what waits in order is ever parked")
    topics = topics_of(settings, wanted)
    settler = ParkedSettler(there, policy, settings.order_by)
    with progress_bar("records of the queues") as progress:
        scan = settler.read(topics, progress)
    for line in remarks(scan):
        talk(f"warning: {line}")
    parked = parked_among(scan.keys.by_due())
    keys = [key for key in parked if not wanted.reasons or key.first.reason in wanted.reasons]
    if not keys:
        talk(none_text(parked, wanted.reasons))
    rows = [row_of(key, ENDS[how], why) for key in keys]
    if not is_agreed(options, settler, rows, how, dry_run=dry_run, yes=yes):
        return DONE
    with open_actions(there).noted(
        "settle", author(who), f"{plural(len(keys), 'parked record')}: {ENDS[how]}", why
    ) as tally:
        settled = carry_out(settler, keys, Decision(how, why, author(who)))
        tally.records = len(settled.done)
    show_ends(options.output, [{**row, "is": state_of(str(row["id"]), settled, ENDS[how])} for row in rows], ENDS[how])
    talk(outcome_text(settled, len(keys), ENDS[how]))
    if how == RETRY_NOW and settled.done and (failing := settler.parked_anew(settled)):
        talk(f"{failing} of these failed again, and {'is' if failing == 1 else 'are'} parked as before")
    return DONE if len(settled.done) == len(keys) else PARTLY


def topics_of(settings: Settings, wanted: Which) -> Sequence[str]:
    """Return the main topics whose queues are read. Raises BadParameter if one is not the group's."""
    if strange := [topic for topic in wanted.topics if topic not in settings.topic_names]:
        raise typer.BadParameter(f"{printable(strange[0])!r} is none of the group's topics")
    return wanted.topics or settings.topic_names


def is_agreed(
    options: Options, settler: ParkedSettler, rows: Sequence[Row], how: str, *, dry_run: bool, yes: bool
) -> bool:
    """Show what is parked; return whether to settle it. Raises as `ask`, and ContractError if nothing may be settled
    now."""
    from reconsume.sidecar.dlq.queue_settler import ENDS

    if not rows or dry_run:
        options.output.rows(COLUMNS, rows)
        talk("nothing was written")
        return False
    settler.expect_decidable()
    warn_of_holds(options, how)
    options.output.talk_rows(COLUMNS, rows[:SHOWN])
    if len(rows) > SHOWN:
        talk(f"and {len(rows) - SHOWN} more; --dry-run prints all of them")
    if not yes:
        ask(f"Settle {plural(len(rows), 'parked record')}, so that each is {ENDS[how]}?")
    return True


def none_text(parked: Sequence[WaitingKey], reasons: Sequence[str]) -> str:
    """Return why there is nothing to settle, and of what else keys are parked."""
    if not parked:
        return "no key is parked"
    others = sorted({key.first.reason for key in parked})
    return f"no key is parked for {', '.join(reasons)}; {plural(len(parked), 'key')} for {', '.join(others[:5])}"


def carry_out(settler: ParkedSettler, keys: Sequence[WaitingKey], decision: Decision) -> SettledAll:
    """Settle the first records of keys; a first Ctrl-C ends it."""
    progress = each_second(lambda done: f"settled {done} of {plural(len(keys), 'parked record')}")
    with stop_signal() as stop:
        return settler.settle([key.first for key in keys], decision, progress, stop)


def show_ends(output: Output, rows: Sequence[Row], end: str) -> None:
    """Print what became of each; where the plan is on the same terminal, some of those that are not settled."""
    if not output.is_read_with_plan:
        output.rows(COLUMNS, rows)
        return
    unsettled = [row for row in rows if row["is"] != end]
    output.rows(COLUMNS, unsettled[:SHOWN])
    if len(unsettled) > SHOWN:
        talk(f"and {len(unsettled) - SHOWN} more")


def outcome_text(settled: SettledAll, of: int, end: str) -> str:
    """Return what became of the decisions, as one sentence."""
    text = f"settled {plural(len(settled.done), 'parked record')}: {end}"
    if settled.open:
        text += f"; of {len(settled.open)} the decision is written and not carried out yet: their owners will do it"
    if settled.others:
        text += f"; about {len(settled.others)} somebody else has decided meanwhile, and that counts"
    if undecided := of - len(settled.done) - len(settled.open) - len(settled.others):
        text += f"; {undecided} are as they were, and the same command settles them"
    return text


def state_of(ident: str, settled: SettledAll, end: str) -> str:
    """Return what a record is now, in words."""
    if ident in settled.done:
        return end
    if ident in settled.others:
        return "decided by another"
    return "decided" if ident in settled.open else "parked"


def row_of(key: WaitingKey, end: str, why: str) -> Row:
    """Return a key that is parked as a row, as it is to be."""
    record = key.first
    return {
        "id": record.id,
        **key_fields(key),
        "behind": key.waiting - 1,
        "reason": record.reason,
        "topic": key.topic,
        "partition": key.partition,
        "was": "parked",
        "is": end,
        "why": why,
    }
