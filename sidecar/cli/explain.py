"""`explain`: how the policy in force treats a record that keeps failing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from reconsume.sidecar.cli.explain_limits import notes_of_limits
from reconsume.sidecar.cli.explain_timeline import (
    POSTPONED,
    no_attempt,
    notes,
    notes_of_terms,
    parks_in,
    terms_of,
    timeline,
)
from reconsume.sidecar.cli.policy.commands import governed
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format, Row, talk
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings, load
from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.levels import LONGEST, SHORTEST_ASKED, hops
from reconsume.topics.retry_rules import FailureTerms

TIMELINE = ("attempt", "waits", "sum", "topic")
HOPS = ("hop", "waits", "sum", "topic")
MOST_ROWS = 100
"""Rows of a timeline in a table, at most; a million retries of 2 h each would add no information."""


def explain(
    options: Options,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="DURATION", help="Show the way of this delay instead.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="For records of this main topic; the first one by default.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="CLASS", help="For failures of this class, such as http-409 or timeout.")
    ] = "",
    live: Annotated[bool, typer.Option("--live", help="By the group's policy on Kafka, which may be another.")] = False,
) -> None:
    """Show the way of a failing record.

    Each attempt, what it waits, the sum of the waits and the topic, then the DLQ, as the mode of delivery has it.

    With --delay, show the level topics that make up a delay that the service asked for. With a --reason that is no
    attempt, such as http-429, say so.

    \b
    Examples:
      reconsume explain -o table
      reconsume explain --topic orders --reason http-409
      reconsume explain --delay 7s
    """
    settings = load(options.config, options.sets)
    if live:
        settings = governed(settings)
    main = main_topic(settings, topic)
    if delay is not None:
        options.output.rows(HOPS, way(settings, main, level_wait(delay)))
        return
    if (sentence := no_attempt(settings, reason)) is not None:
        talk(sentence)
        if reason != POSTPONED:  # of a record that was postponed for too long the ladder follows
            options.output.rows(TIMELINE, [])
            return
    terms = terms_of(settings, main, reason)
    rows = timeline(settings, main, terms)
    if options.output.format is Format.TABLE:
        rows = cut(rows, settings, terms)
    for note in (*notes(settings), *notes_of_terms(settings, terms, reason), *notes_of_limits(settings, main)):
        talk(note)
    options.output.rows(TIMELINE, rows)
    if live:
        talk("these are the values of the group's policy, and of the configuration where the policy sets none")
    else:
        talk(f"these are the configuration's values; `{hint('explain --live')}` uses the group's policy, if it has one")


def cut(rows: Iterator[Row], settings: Settings, terms: FailureTerms) -> Iterator[Row]:
    """Return the first rows of a timeline for a table, and print how many are left out."""
    in_place = settings.deliver.order != "none" and not settings.queued
    retries = settings.retry.ordered_max_times if in_place else terms.max_reconsume_times
    wait = settings.retry.ordered_interval if in_place else terms.ladder.delays[-1]
    ends = terms.dead_letter or terms.max_age is not None
    end = "a person decides" if parks_in(settings) else "the DLQ"
    if ends or (retries or 0) + 2 <= MOST_ROWS:  # the first delivery, the retries, the dead letter
        return rows
    more = plural((retries or 0) + 2 - MOST_ROWS, "more retry")
    talk(f"{more}, each after {render_duration(wait)}, then {end}")
    return islice(rows, MOST_ROWS - 1)


def main_topic(settings: Settings, asked_for: str | None) -> str:
    """Return the main topic whose records are explained. Raises BadParameter if the group has no such topic."""
    if asked_for is not None and asked_for not in settings.topic_names:
        raise typer.BadParameter(f"{asked_for} is not a main topic of the group: {', '.join(settings.topic_names)}")
    return asked_for or settings.topic_names[0]


def level_wait(text: str) -> int:
    """Parse a delay that a service may request, in ms. Raises BadParameter if it is invalid or out of range."""
    try:
        delay = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not SHORTEST_ASKED <= delay <= LONGEST:
        shortest, longest = render_duration(SHORTEST_ASKED), render_duration(LONGEST)
        raise typer.BadParameter(f"a delay is {shortest} to {longest}; for any other the ladder decides")
    return delay


def way(settings: Settings, main: str, delay: int) -> Iterator[Row]:
    """Yield a row for each level topic that makes up a delay; the rest of the delay is spent in memory."""
    total = 0
    for number, level in enumerate(hops(delay, settings.delays), start=1):
        total += level
        name = settings.names.level(level, main)
        yield {"hop": number, "waits": render_duration(level), "sum": render_duration(total), "topic": name}
    if total < delay:
        yield {"hop": None, "waits": render_duration(delay - total), "sum": render_duration(delay), "topic": "(memory)"}
