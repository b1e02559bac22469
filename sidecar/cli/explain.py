"""`explain`: how the policy in force treats a record that keeps failing.

Data are the rows of the record's path: each delivery with its wait, then the dead letter, in the mode of the
configuration. Messages are the notes: what the rows cannot show. Everything is made from the settings; with `--live`
the settings in force are read from Kafka first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import typer
from msgspec.structs import replace

from reconsume.sidecar.cli.terminal.kafka_settings import settings_of_one
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format, Row, talk
from reconsume.sidecar.core.forecast import Judge, forecast
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.hints import hint, not_ours
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.durations import render_duration
from reconsume.topics.retry_rules import LEASE_EXPIRED, RELEASED, FailureTerms, RetryRule

TIMELINE = ("attempt", "waits", "sum", "topic")
MOST_ROWS = 100
"""Rows of a timeline in a table, at most; a million retries of 2 h each would add no information."""
IN_PLACE_SHOWN = 3
"""Retries shown of a timeline that has no end."""
SHORT = 3_600_000
"""ms. A ladder that ends sooner dead-letters records in an outage that operators may not have noticed yet."""
MOST_SUMMED = 3_600
"""Retries that are summed, at most: each waits 1 s or more, so a longer ladder is never short."""


def explain(
    options: Options,
    topic: Annotated[
        str | None, typer.Option("--topic", help="For records of this main topic; the first one by default.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="CLASS", help="For failures of this class, such as http-409 or timeout.")
    ] = "",
    live: Annotated[bool, typer.Option("--live", help="By the settings in force in the group, on Kafka.")] = False,
) -> None:
    """Show the way of a failing record.

    Each attempt, what it waits, the sum of the waits and the topic, then the DLQ, as the mode of delivery has it.

    With a --reason that is no attempt, such as http-429, say so.

    \b
    Examples:
      reconsume explain -o table
      reconsume explain --topic orders --reason http-409
    """
    settings = settings_of_one(options)
    if live:
        from reconsume.sidecar.cli.policy import governed  # it knows the Kafka client, which is slow

        in_force = governed(settings)
        counts = Counter(in_force.origins(settings).values())
        origins = ", ".join(f"{plural(count, 'value')} from {origin}" for origin, count in counts.items())
        settings = in_force.settings
    mains = settings.topic_names
    main = mains[0] if topic is None else topic
    if main not in mains:
        raise typer.BadParameter(not_ours(main, mains))
    main = settings.drains.get(main, main)
    from reconsume.sidecar.cli import failure_classes as classes  # it knows the deliveries, which are slow to load

    policy = replace(build_policy(settings, ""), jitter=0)
    judge = classes.judge_of(settings, policy, reason)
    if sentence := classes.sentence_of(settings, policy, main, reason):
        talk(sentence)
        if reason != classes.POSTPONED:  # of a record that was postponed for too long the ladder follows
            options.output.rows(TIMELINE, [])
            return
        judge = classes.after_the_limit(settings, policy)
    notes = [*notes_of_mode(settings), *classes.notes_of_class(settings, reason)]
    if classes.is_by_rules(settings, reason):
        notes += notes_of_terms(settings, policy.terms_of(main, reason), reason)
    for note in notes:
        talk(note)
    show_timeline(options, timeline(policy, main, judge))
    if live:
        talk(f"these are the values in force in the group: {origins}; `{hint('policy show')}` has each")
    else:
        talk(f"these are the configuration's values; `{hint('explain --live')}` uses those in force in the group")


def show_timeline(options: Options, rows: Iterable[Row]) -> None:
    """Print the rows of a path, in a table at most MOST_ROWS of them."""
    if options.output.format is Format.TABLE:
        rows = list(islice(rows, MOST_ROWS + 1))
        if len(rows) > MOST_ROWS:
            talk(f"the table ends after {MOST_ROWS} rows; -o jsonl has all of them")
            del rows[MOST_ROWS:]
    options.output.rows(TIMELINE, rows)


def is_retried_in_place(settings: Settings) -> bool:
    """Return whether a failing record stays in its own topic, and holds back what follows it."""
    return settings.deliver.order != "none" and not settings.queued


def parks_in(settings: Settings) -> bool:
    """Return whether a record whose retries are used up waits in its queue for a person."""
    return settings.queued and settings.retry.ordered_exhausted == "park"


def timeline(policy: Policy, main: str, judge: Judge) -> Iterator[Row]:
    """Yield a row for each delivery that ends as `judge` says, and one for the record's end if it has one."""
    steps, total = forecast(judge, policy, main), 0
    if policy.in_place is not None and policy.in_place.max_times is None:
        steps = islice(steps, 1 + IN_PLACE_SHOWN)
    for attempt, wait, topics in steps:
        total += wait
        shown = ", ".join(name + (f" ×{count}" if count > 1 else "") for name, count in topics.items())
        yield row(attempt, wait, total, shown)


def row(attempt: int | None, wait: int, total: int, topic: str) -> Row:
    """Return one row; `wait` and `total` are in ms."""
    return {"attempt": attempt, "waits": render_duration(wait), "sum": render_duration(total), "topic": topic}


OF_MODE = {
    "relay": "relay: the service reads the main topics and the ready topic itself, and writes its failures",
    "spark": "spark: queries consume the group and write their failures; no sidecar runs",
}


def notes_of_mode(settings: Settings) -> Iterator[str]:
    """Yield what a reader of the timeline must know of the mode of delivery, a sentence each."""
    deliver, retry = settings.deliver, settings.retry
    what = "its key" if deliver.order == "key" else "its partition"
    if deliver.broadcast:
        yield "broadcast: a failure is counted and never retried; there is no DLQ"
    if settings.queued:
        yield f"ordered: later records of {what} wait behind a failing one in the same topic; others go on"
    if parks_in(settings):
        yield f"parked: when its retries are used up, it stays there with these; `{hint('settle')}` decides"
    if is_retried_in_place(settings):
        yield f"ordered: a failure is retried in place and holds back {what} until it is done"
        if retry.ordered_max_times is None:
            every = render_duration(retry.ordered_interval)
            yield f"without limit, every {every}; retry.ordered_max_times sets one, then the DLQ"
    if deliver.mode in OF_MODE:
        yield OF_MODE[deliver.mode]
    if deliver.mode == "pull":
        yield (
            f"pull: a lease that expires is a failure that waits nothing ({settings.names.ready}); a nacked record "
            f"comes back after {render_duration(retry.nack_redelivery_delay)}, which is no retry"
        )
    if deliver.batch.max_size > 1:
        yield "batch: a record that the answer does not name has failed, the others have not"
    if deliver.mode == "push" and deliver.order == "none" and not deliver.broadcast:
        yield from notes_of_a_short_ladder(settings)


def notes_of_a_short_ladder(settings: Settings) -> Iterator[str]:
    """Yield a sentence if a service that answers everything with a failure soon has all its records in the DLQ."""
    retries = min(settings.retry.max_reconsume_times, MOST_SUMMED)
    total = sum(map(settings.ladder.delay, range(1, retries + 1)))
    if total < SHORT:
        ends, every = render_duration(total), render_duration(settings.deliver.outage_interval)
        yield f"short: where the service fails everything, a record is in the DLQ after {ends}; one goes every {every}"


def notes_of_terms(settings: Settings, terms: FailureTerms, reason: str) -> Iterator[str]:
    """Yield which rule applies, and when a record is too old for another retry, a sentence each."""
    if isinstance(terms, RetryRule):
        yield f"the rule {terms.name} applies"
    elif settings.retry.rules:
        yield "no rule applies" if reason else "no rule applies, as no --reason is given"
    if reason in (LEASE_EXPIRED, RELEASED) and not terms.has_own_ladder:
        yield f"a lease that ends so waits for no ladder but that of a rule which names {reason}"
    if terms.max_age is not None:
        age = render_duration(terms.max_age)
        yield f"a record older than {age} is not retried: it is dead, as expired, when it fails"
    if settings.retry.jitter:
        yield f"each wait is up to {settings.retry.jitter} % longer (retry.jitter)"
