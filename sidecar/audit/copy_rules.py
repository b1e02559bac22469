"""Rules for a record's copies (contract 1.1, 2.3, 3.4): none is lost, each attempt is counted once, none comes early.

Each rule is a function from a record's history to its findings; `judge` applies all rules. The rules for events are in
`event_rules.py`. If the topics do not show enough, a rule reports nothing. `docs/audit.md` says for each rule what
cannot be seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.audit.event_rules import ended_twice, no_copy, no_event, told_twice, wrong_event
from reconsume.sidecar.audit.facts import Breach, Fact, Finding, RecordHistory, Terms, histories_of
from reconsume.sidecar.audit.retry_chains import last_below, retry_chains
from reconsume.sidecar.printable import plural
from reconsume.topics.events import State

Findings: TypeAlias = Iterator[Finding]
Rule: TypeAlias = Callable[[RecordHistory, Terms], Findings]


def lost(history: RecordHistory, terms: Terms) -> Findings:
    """Check that each copy that is done has a successor: the next copy, a dead letter, or an event."""
    known = terms.complete_since()
    for times, copies in history.by_times().items():
        for way in retry_chains(copies, terms):
            last = way[-1]
            seen = known <= last.at < terms.known.until and not last.later
            done = terms.covered(last.topic, last.partition, last.offset) and not terms.read_by_service(last)
            if seen and done and not goes_on(history, times):
                yield history.finding(
                    Breach.LOST, times, "it is done by the committed progress, and nothing follows", last
                )


def goes_on(history: RecordHistory, times: int) -> bool:
    """Whether anything follows the copies with this count: a later retry or an end."""
    ends = any(fact.times >= times for fact in (*history.dead, *history.tells(State.COMMIT, State.DLQ)))
    return ends or any(fact.times > times for fact in (*history.copies, *history.tells(State.WAITING_RETRY)))


def condemned(history: RecordHistory, terms: Terms) -> Findings:
    """Report records and events that break their form.

    Once such a record is done, it must be in the DLQ under its own position.
    """
    for bad in history.bad:
        if bad.topic == terms.names.events:
            yield history.finding(Breach.BAD_EVENT, 0, bad.reason, bad)
            continue
        yield history.finding(Breach.BAD_HEADER, 0, bad.reason, bad)
        seen = terms.known.from_(terms.dlqs) <= bad.at < terms.known.until and not bad.later
        if seen and terms.covered(bad.topic, bad.partition, bad.offset) and not (history.dead or history.told):
            yield history.finding(Breach.LOST, 0, "its headers are broken, it is done, and not in the DLQ", bad)


def counted_twice(history: RecordHistory, terms: Terms) -> Findings:
    """Check that one copy counts each attempt. Further copies of the same retry must follow it."""
    for times, copies in history.by_times().items():
        found = retry_chains(copies, terms)
        told = len([fact for fact in history.tells(State.WAITING_RETRY) if fact.times == times])
        if len(found) <= 1:
            continue
        if not terms.relay or 0 < told < len(found):
            yield history.finding(Breach.TWICE, times, f"{plural(len(found), 'copy')} count one attempt", *copies)
        else:
            yield history.finding(Breach.REPEATED, times, f"a service posted one failure {len(found)} times", *copies)


def gap(history: RecordHistory, terms: Terms) -> Findings:
    """Check that counts rise by one from the first, and that the DLQ has the greatest."""
    told = history.tells(State.WAITING_RETRY, State.REDRIVEN)
    numbers = {fact.times: fact for fact in (*told, *history.copies)}
    zero = [copy for copy in history.copies if copy.times == 0 and not history.redrives and not copy.by_hand]
    if zero:
        yield history.finding(Breach.GAP, 0, "it waits for a retry and counts none", *zero)
    if not terms.complete_since() <= history.began() or any(fact.later for fact in numbers.values()):
        return
    first = min(numbers, default=1) if terms.foreign else int(history.redrives == 0)
    missing = sorted(set(range(first, max(numbers, default=0))) - set(numbers))
    if missing and not terms.in_memory:
        text = f"there is no retry {', '.join(map(str, missing[:10]))}, and there is a retry {max(numbers)}"
        yield history.finding(Breach.GAP, max(numbers), text, *(numbers[number] for number in sorted(numbers)[:10]))
    yield from dead_gap(history, terms, max(numbers, default=0))


def dead_gap(history: RecordHistory, terms: Terms, made: int) -> Findings:
    """Check that the DLQ has the number of retries that were made. Only the DLQ knows of retries in memory."""
    for dead in history.dead:
        if dead.times < made or (dead.times > made and not (terms.in_memory or terms.foreign)):
            text = f"the DLQ says {plural(dead.times, 'retry')}, and {made} were made"
            yield history.finding(
                Breach.GAP, dead.times, text, dead, *(copy for copy in history.copies if copy.times == made)
            )


def dead_twice(history: RecordHistory, terms: Terms) -> Findings:
    """Check that a life is in the DLQ once."""
    if len(history.dead) > 1:
        kind = Breach.REPEATED if terms.relay else Breach.DEAD_TWICE
        yield history.finding(kind, history.dead[0].times, f"it is {len(history.dead)} times in the DLQ", *history.dead)


def half_committed(history: RecordHistory, terms: Terms) -> Findings:
    """Check that a record's successors exist only if the progress says that the record is done."""
    numbered = history.by_times()
    for times, copies in numbered.items():
        found = retry_chains(copies, terms)
        for before, after in (pair for way in found for pair in pairwise(way)):
            yield from torn_off(history, terms, before, after)
        yield from torn_off(history, terms, last_below(numbered, times), found[0][0])
    for end in (*history.dead, *history.tells(State.COMMIT)):
        yield from torn_off(history, terms, last_below(numbered, end.times + 1), end)


def torn_off(history: RecordHistory, terms: Terms, source: Fact | None, after: Fact) -> Findings:
    """Report `after` if the record that it follows from is not done. `source` None stands for the main-topic record."""
    if source is not None:
        covered = terms.covered(source.topic, source.partition, source.offset, after=True)
    elif history.redrives or terms.relay:
        return  # a redrive's source is the DLQ; a relay's service keeps its own progress
    else:
        topic, number, offset = history.id.rsplit(":", 2)
        covered = terms.covered(topic, int(number), int(offset), after=True)
    if covered is False:
        shown = (after,) if source is None else (source, after)
        yield history.finding(
            Breach.TORN, after.times, "it is there, and its source is not done by the progress", *shown
        )


def early(history: RecordHistory, terms: Terms) -> Findings:
    """Check that a copy's successor is not older than its due time, nor than the end of its level."""
    numbered = history.by_times()
    for times, copies in numbered.items():
        found = retry_chains(copies, terms)
        for way in found:
            for before, after in pairwise(way):
                due = max(terms.release(before), before.due if after.topic == terms.names.ready else 0)
                yield from _early(history, terms, due, before, after)
        after_all = successor(history, times)
        if len(found) == 1 and after_all is not None and not after_all.by_hand:
            last = found[0][-1]
            yield from _early(history, terms, max(last.due, terms.release(last)), last, after_all)


def successor(history: RecordHistory, times: int) -> Fact | None:
    """Return the first result of the attempt after retry `times`: an end, or the next retry. None if there is none."""
    ends = [fact for fact in (*history.dead, *history.tells(State.COMMIT, State.DLQ)) if fact.times >= times]
    nexts = [fact for fact in (*history.copies, *history.tells(State.WAITING_RETRY)) if fact.times > times]
    return min((*ends, *nexts), key=lambda fact: fact.at, default=None)


def _early(history: RecordHistory, terms: Terms, due: int, before: Fact, after: Fact) -> Findings:
    if after.at + terms.slack < due:
        text = f"what follows is {due - after.at} ms older than its due time"
        yield history.finding(Breach.EARLY, before.times, text, before, after)


def altered(history: RecordHistory, terms: Terms) -> Findings:
    """Check that key, value, own headers and first timestamp are the same in every copy as in the record itself."""
    written = (*history.copies, *history.dead)
    first = original(history, written)
    if first is None:
        return
    for fact in written:
        if fact.digest != first.digest:
            text = "key, value or headers of its own are not the same"
            yield history.finding(Breach.ALTERED, fact.times, text, first, fact)
        elif fact.timestamp != first.timestamp and not (terms.relay or terms.foreign):
            text = f"RETRY_REAL_TIMESTAMP is {fact.timestamp}, and the record's is {first.timestamp}"
            yield history.finding(Breach.ALTERED, fact.times, text, first, fact)


def original(history: RecordHistory, written: tuple[Fact, ...]) -> Fact | None:
    """Return the fact that the copies are compared with; None if it cannot be read."""
    edited = next((fact for fact in written if fact.state), None)
    if edited is not None or history.main is None:  # an operator changed it on a redrive: that is the record now
        return edited or next(iter(written), None)
    return history.main if history.main.digest else None


def no_record(history: RecordHistory, terms: Terms) -> Findings:
    """Check that the main topic has the record that is retried."""
    topic, number, offset = history.id.rsplit(":", 2)
    begin = terms.begins.get((topic, int(number)))
    if not terms.compare or history.main is not None or topic in terms.delays or topic in terms.dlqs or history.bad:
        return
    if terms.mains and topic not in terms.mains:
        return
    if begin is not None and (int(offset) < begin or topic in terms.compacted):
        return
    shown = (*history.copies, *history.dead, *history.told)[:10]
    if shown:
        yield history.finding(Breach.NO_RECORD, shown[0].times, "no main topic has such a record", *shown)


def elsewhere(history: RecordHistory, terms: Terms) -> Findings:
    """Report a record of a topic that this configuration does not have.

    Its copies are judged, but compared with nothing.
    """
    topic = history.id.rsplit(":", 2)[0]
    if terms.mains and topic not in (*terms.mains, *terms.delays, *terms.dlqs) and not history.bad:
        shown = (*history.copies, *history.dead, *history.told)[:10]
        text = f"its topic {topic} is not among the topics of this configuration"
        yield history.finding(Breach.UNKNOWN_TOPIC, 0, text, *shown)


RULES: tuple[Rule, ...] = (
    lost,
    condemned,
    counted_twice,
    gap,
    dead_twice,
    half_committed,
    early,
    altered,
    no_record,
    elsewhere,
    no_copy,
    no_event,
    told_twice,
    ended_twice,
    wrong_event,
)


def judge(facts: Iterable[Fact], terms: Terms) -> Findings:
    """Yield all findings about one record. `facts` are all facts with its id."""
    for history in histories_of(facts):
        # What began under a relay has a relay's traces: posts that came twice, copies without events, no COMMIT.
        relayed = any(map(terms.read_by_service, history.copies))
        its = replace(terms, relay=True) if relayed else terms
        for rule in RULES:
            yield from rule(history, its)


def judge_each(facts: Iterable[Fact], terms: Terms) -> Findings:
    """Yield all findings about several records, whose facts come in any order. For groups that fit into memory."""
    by_id: defaultdict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_id[fact.id].append(fact)
    for of_record in by_id.values():
        yield from judge(of_record, terms)
