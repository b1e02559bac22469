"""The path of a failing record under a configuration, for each mode: rows for `explain`, and notes on what they
cannot show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, islice

from reconsume.sidecar.cli.terminal.output import Row
from reconsume.sidecar.hints import hint
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.durations import render_duration
from reconsume.topics.levels import hops
from reconsume.topics.retry_rules import FailureTerms, RetryRule

IN_PLACE_SHOWN = 3
"""Rows shown of a timeline that has no end."""
POSTPONED = "postponed"
NOT_SENT = frozenset(
    {"connection-refused", "no-such-socket", "no-such-host", "connect-timeout", "forbidden-address", "not-sent"}
)
"""Reasons of deliveries of which no request was sent, beside those of TLS; a test compares them with the client's."""
SHORT = 3_600_000
"""ms. A ladder that ends sooner dead-letters records in an outage that operators may not have noticed yet."""
MOST_SUMMED = 3_600
"""Retries that are summed, at most: each waits 1 s or more, so a longer ladder is never short."""


def timeline(settings: Settings, main: str, terms: FailureTerms) -> Iterator[Row]:
    """Yield a row for each delivery, and one for the dead letter if there is one. `terms`: those of each failure."""
    if settings.deliver.broadcast:
        return iter((first(main),))
    if terms.dead_letter:
        return iter((first(main), row(None, 0, 0, settings.names.dlq(main))))
    if settings.deliver.order != "none" and not settings.queued:
        return in_place(settings, main)
    return through_levels(settings, main, terms)


def terms_of(settings: Settings, main: str, reason: str) -> FailureTerms:
    """Return what applies to failures of the class `reason` at records of a main topic."""
    return build_policy(settings, "").terms_of(main, reason)


def no_attempt(settings: Settings, reason: str) -> str | None:
    """Return in one sentence what follows from a reason that is not an attempt; None if it is one."""
    deliver = settings.deliver
    status = reason.removeprefix("http-")
    if reason == POSTPONED:
        limit = render_duration(settings.retry.postpone_limit)
        return (
            "postponed is not an attempt: the record comes again when the service asked for it, and no retry is used "
            f"up; after {limit} of that (retry.postpone_limit) it is a failure, as shown"
        )
    if status.isdecimal() and int(status) in deliver.throttle_statuses:
        return f"{reason} is not an attempt: the record is delivered later, deliveries slow down, no retry is used up"
    if reason in NOT_SENT or reason.startswith("tls-"):
        return f"{reason} is not an attempt: no request was sent; an outage begins, and no retry is used up"
    if reason in ("cancelled", "withdrawn", "outage"):
        return f"{reason} is not an attempt: the delivery was withdrawn before it ended, and no retry is used up"
    return None


def notes_of_terms(settings: Settings, terms: FailureTerms, reason: str) -> list[str]:
    """Return which rule applies, and when a record is too old for another retry, a sentence each."""
    sentences = [f"the rule {terms.name} applies"] if isinstance(terms, RetryRule) else []
    if settings.retry.rules and not sentences:
        sentences.append("no rule applies" + ("" if reason else ", as no --reason is given"))
    if terms.max_age is not None:
        age = render_duration(terms.max_age)
        sentences.append(f"a record older than {age} is not retried: it is dead, as expired, when it fails")
    if settings.retry.jitter:
        sentences.append(f"each wait is up to {settings.retry.jitter} % longer (retry.jitter)")
    return sentences


def notes(settings: Settings) -> list[str]:
    """Return the notes that a reader of the timeline needs, a sentence each."""
    deliver, retry = settings.deliver, settings.retry
    sentences = []
    if deliver.broadcast:
        sentences.append("broadcast: a failure is counted and never retried; there is no DLQ")
    if settings.queued:
        what = "its key" if deliver.order == "key" else "its partition"
        sentences.append(f"ordered: later records of {what} wait behind a failing one in the same topic; others go on")
        if parks_in(settings):
            sentences.append(
                f"parked: when its retries are used up, it stays there with these; `{hint('settle')}` decides"
            )
    elif deliver.order != "none":
        what = "its key" if deliver.order == "key" else "its partition"
        sentences.append(f"ordered: a failure is retried in place and holds back {what} until it is done")
        if retry.ordered_max_times is None:
            every = render_duration(retry.ordered_interval)
            sentences.append(f"without limit, every {every}; retry.ordered_max_times sets one, then the DLQ")
    if deliver.mode == "relay":
        sentences.append("relay: the service reads the main topics and the ready topic itself, and writes its failures")
    if deliver.mode == "pull":
        sentences.append(
            f"pull: a lease that expires is a failure that waits nothing ({settings.names.ready}); a nacked record "
            f"comes back after {render_duration(retry.nack_redelivery_delay)}, counted in memory"
        )
    if deliver.batch.max_size > 1:
        sentences.append("batch: a record that the answer does not name has failed, the others have not")
    if deliver.mode == "push" and deliver.order == "none" and not deliver.broadcast:
        sentences += of_a_short_ladder(settings)
    return sentences


def of_a_short_ladder(settings: Settings) -> list[str]:
    """Return a warning if the ladder is short. If the service answers every delivery with a failure, each failure
    counts."""
    retries = min(settings.retry.max_reconsume_times, MOST_SUMMED)
    total = sum(settings.ladder.delay(retry) for retry in range(1, retries + 1))
    if total >= SHORT:
        return []
    ends, every = render_duration(total), render_duration(settings.deliver.outage_interval)
    return [f"short: where the service fails everything, a record is in the DLQ after {ends}; one goes every {every}"]


def through_levels(settings: Settings, main: str, terms: FailureTerms) -> Iterator[Row]:
    """Yield the rows of the ladder: each delay in the level topics that make it up."""
    yield first(main)
    total, relay = 0, settings.deliver.mode == "relay"
    for retry in range(1, terms.max_reconsume_times + 1):
        wait = terms.ladder.delay(retry)
        if terms.max_age is not None and total + wait > terms.max_age:
            yield row(None, 0, total, settings.names.dlq(main))  # expired
            return
        total += wait
        name = way_of(settings, main, wait)
        yield row(retry + 1, wait, total, f"{name}, {settings.names.ready}" if relay else name)
    parks = parks_in(settings)
    yield row(None, 0, total, f"{settings.names.ordered(main)} (parked)" if parks else settings.names.dlq(main))


def parks_in(settings: Settings) -> bool:
    """Return whether a record whose retries are used up waits in its queue for a person."""
    return settings.queued and settings.retry.ordered_exhausted == "park"


def way_of(settings: Settings, main: str, wait: int) -> str:
    """Return the level topics that a wait passes, in words; what is left of it is spent in memory.

    With a ladder for ordered records it is the queue topic.
    """
    if settings.queued:
        return settings.names.ordered(main)
    way = hops(wait, settings.delays)
    counts = Counter(way)
    steps = [settings.names.level(level, main) + (f" ×{count}" if count > 1 else "") for level, count in counts.items()]
    return ", ".join(steps + ["(memory)"] * (sum(way) < wait))


def in_place(settings: Settings, main: str) -> Iterator[Row]:
    """Yield the rows of ordered mode: the record stays in its own topic until the DLQ."""
    yield first(main)
    wait, most = settings.retry.ordered_interval, settings.retry.ordered_max_times
    for retry in islice(count(1), IN_PLACE_SHOWN if most is None else most):
        yield row(retry + 1, wait, retry * wait, main)
    if most is not None:
        yield row(None, 0, most * wait, settings.names.dlq(main))


def first(main: str) -> Row:
    """Return the row of the first delivery."""
    return row(1, 0, 0, main)


def row(attempt: int | None, wait: int, total: int, topic: str) -> Row:
    """Return one row; `wait` and `total` are in ms."""
    return {"attempt": attempt, "waits": render_duration(wait), "sum": render_duration(total), "topic": topic}
