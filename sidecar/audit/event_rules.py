"""Rules for events: one for each change of a record's state, and it says what its copy says (contract 11.1).

Each rule is a function from a record's history to its findings. The service of a relay may write copies itself, without
events. What only that service knows is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from reconsume.sidecar.audit.facts import Breach, Fact, Finding, RecordHistory, Terms
from reconsume.sidecar.audit.retry_chains import retry_chains
from reconsume.sidecar.printable import plural
from reconsume.topics.durations import parse_duration
from reconsume.topics.events import State

Findings: TypeAlias = Iterator[Finding]
OPENS = (State.WAITING_RETRY, State.REDRIVEN)
"""States whose events come with a copy on a retry topic."""


def no_copy(history: RecordHistory, terms: Terms) -> Findings:
    """Check that the copy or the dead letter of each event exists."""
    numbers = {copy.times for copy in history.copies}
    for told in history.told:
        if told.later or not told.at < terms.known.until:
            continue
        if told.state in OPENS and told.times not in numbers:
            topic = topic_of(told, terms)
            if topic is None or told.at >= terms.known.from_([topic]):
                yield history.finding(
                    Breach.NO_COPY, told.times, f"{told.state} is told of, and there is no copy", told
                )
        elif told.state == State.DLQ and not history.dead and told.at >= terms.known.from_(terms.dlqs):
            yield history.finding(Breach.NO_COPY, told.times, "DLQ is told of, and it is not there", told)
        elif told.state == State.COMMIT and not numbers and not terms.foreign and told_alone(history, terms):
            yield history.finding(Breach.NO_COPY, told.times, "COMMIT is told of a record that never failed", told)


def told_alone(history: RecordHistory, terms: Terms) -> bool:
    """Whether a life without copies never had any: nothing is missing since it began, and no event reports a retry.

    What a person has called done may only have waited behind another of its key.
    """
    return history.never_had(*OPENS) and terms.complete_since() <= history.began()


def topic_of(told: Fact, terms: Terms) -> str | None:
    """Return the topic to which an event's copy was written; None if the group does not have the level."""
    main, level, state = told.id.rsplit(":", 2)[0], told.level, told.state
    if level is None:
        queue = terms.names.ordered(main)
        return queue if queue in terms.delays and state == State.WAITING_RETRY else terms.names.ready
    try:
        name = terms.names.level(parse_duration(level), main)
    except ValueError:
        return None
    return name if name in terms.delays else None


def no_event(history: RecordHistory, terms: Terms) -> Findings:
    """Check that each retry and each dead letter has its event."""
    told = {fact.times for fact in history.tells(*OPENS)}
    since, until = terms.told_since(), terms.known.until
    for times, copies in history.by_times().items():
        first = copies[0]
        if times not in told and not terms.relay and since <= first.at < until and not first.later:
            yield history.finding(Breach.NO_EVENT, times, "no event tells of this retry", first)
    for dead in history.dead:
        if not history.tells(State.DLQ) and since <= dead.at < until and not dead.later:
            yield history.finding(Breach.NO_EVENT, dead.times, "no event tells of this dead letter", dead)


def told_twice(history: RecordHistory, terms: Terms) -> Findings:
    """Check that each retry has one event. Not for a relay: its service may have posted a failure again."""
    by_times: dict[int, list[Fact]] = {}
    for fact in history.counted(*OPENS):
        by_times.setdefault(fact.times, []).append(fact)
    for times, facts in sorted(by_times.items()):
        if len(facts) > 1 and not terms.relay:
            yield history.finding(Breach.TWICE, times, f"{plural(len(facts), 'event')} count one attempt", *facts)


def ended_twice(history: RecordHistory, terms: Terms) -> Findings:
    """Check that a life ends once, and that nothing comes after its end.

    Not for a relay: its service may handle one record in two ways.
    """
    if terms.relay:
        return
    ends = history.tells(State.COMMIT, State.DLQ)
    if len(ends) > 1:
        yield history.finding(Breach.ENDED_TWICE, ends[0].times, f"{plural(len(ends), 'event')} tell of its end", *ends)
    for end in ends[:1]:
        after = [fact for fact in (*history.copies, *history.tells(*OPENS)) if fact.times > end.times]
        if after:
            text = f"{end.state} ended it after {plural(end.times, 'retry')}, and it goes on"
            yield history.finding(Breach.ENDED_TWICE, end.times, text, end, *after[:10])


def wrong_event(history: RecordHistory, terms: Terms) -> Findings:
    """Check that an event and its copy say the same, and that the event's wait is no shorter than its level's delay."""
    numbered = history.by_times()
    for told in history.counted(State.WAITING_RETRY):
        yield from event_too_early(history, terms, told)
        found = retry_chains(numbered.get(told.times, ()), terms)
        if len(found) == 1:
            yield from differing(history, told, found[0][0], topic_of(told, terms))
    for told in history.tells(State.DLQ):
        if len(history.dead) == 1:
            yield from differing(history, told, history.dead[0], history.dead[0].topic)


def event_too_early(history: RecordHistory, terms: Terms, told: Fact) -> Findings:
    """Report an event that is due before the delay of its level has passed."""
    topic = None if told.level is None else topic_of(told, terms)
    # The wait counts from the failure, which is when the event was made.
    if topic is not None and told.due + terms.slack < told.at + terms.delays[topic]:
        text = f"it failed at {told.at} and is due at {told.due}, which is less than {told.level}"
        yield history.finding(Breach.EARLY, told.times, text, told)


def differing(history: RecordHistory, told: Fact, copy: Fact, topic: str | None) -> Findings:
    """Report the fields in which an event differs from its copy."""
    says = {
        "topic": (topic, copy.topic),
        "times": (told.times, copy.times),
        "due": (told.due, copy.due),
        "reason": (told.reason, copy.reason),
        "first failure": (told.first_failed_at, copy.first_failed_at),
        "timestamp": (told.timestamp, copy.timestamp),
    }
    wrong = [f"{name} {event} and {header}" for name, (event, header) in says.items() if event != header]
    if wrong:
        text = f"event and copy do not agree: {', '.join(wrong)}"
        yield history.finding(Breach.MISTOLD, told.times, text, told, copy)
