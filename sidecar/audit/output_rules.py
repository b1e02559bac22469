"""Rules for outputs, the records that a service asks for with its verdict (contract 1.12).

Each is there once, and only if its record is done. An output that is missing cannot be told, as no topic says what a
service asked for. Where an attempt may soundly have been made again, or what would show it is deleted, a rule reports
nothing. The timestamp of an output is the service's to choose, so no rule compares it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from reconsume.sidecar.audit.facts import Breach, Fact, Finding, Known, RecordHistory, Terms, histories_of
from reconsume.sidecar.audit.retry_chains import last_below, retry_chains
from reconsume.topics.attempt import attempt_of
from reconsume.topics.events import State

SHOWN = 10
"""Records that a finding names."""


def judge_outputs(outputs: Iterable[Fact], facts: Iterable[Fact], terms: Terms) -> Iterator[Finding]:
    """Yield all findings about the outputs of one record. `facts` are all other facts with its id."""
    histories = {(history.cycle, history.redrives): history for history in histories_of(facts)}
    for (cycle, redrives, times), group in groupby(sorted(outputs, key=attempt_of), key=attempt_of):
        its = tuple(group)
        history = histories.get((cycle, redrives))
        if history is None:
            history = RecordHistory(its[0].id, cycle, redrives, (), (), (), (), None)
        if times < decided_from(history) and not any(map(terms.read_by_service, history.copies)):
            yield from output_torn(history, terms, times, its)
            yield from output_twice(history, terms, times, its)


def decided_from(history: RecordHistory) -> int:
    """Return the retry count from which on a person may have had the record tried again: that counts no attempt."""
    counts = [fact.times for fact in (*history.copies, *history.tells(*State)) if fact.by_hand]
    return min(counts, default=2**63)


def output_torn(history: RecordHistory, terms: Terms, times: int, outputs: Sequence[Fact]) -> Iterator[Finding]:
    """Check that the record is done, or the copy whose attempt asked for the outputs: both are one transaction."""
    source = last_below(history.by_times(), times + 1)
    if source is not None:
        if may_park(terms) and incomplete(terms):
            return  # the parked copy that it follows may be deleted
        covered = terms.covered(source.topic, source.partition, source.offset, after=True)
    elif history.redrives:
        return  # the copy of its redrive is deleted
    else:
        topic, number, offset = history.id.rsplit(":", 2)
        covered = terms.covered(topic, int(number), int(offset), after=True)
    if covered is False:
        shown = (*(() if source is None else (source,)), *outputs)[:SHOWN]
        text = "an output is there, and its record is not done by the progress"
        yield history.finding(Breach.OUTPUT_TORN, times, text, *shown)


def output_twice(history: RecordHistory, terms: Terms, times: int, outputs: Sequence[Fact]) -> Iterator[Finding]:
    """Check that no output of an attempt is twice in a topic.

    In two topics it may have been copied by another program, with all its headers.
    """
    if not made_once(history, terms, times):
        return
    for (topic, number), group in groupby(sorted(outputs, key=mark_of), key=mark_of):
        same = tuple(group)
        if len(same) > 1:
            text = f"output {number} of one attempt is {len(same)} times in {topic}"
            yield history.finding(Breach.OUTPUT_TWICE, times, text, *same[:SHOWN])


def mark_of(output: Fact) -> tuple[str, str]:
    """Return the topic of an output and its number in the answer."""
    return output.topic, output.level or ""


def made_once(history: RecordHistory, terms: Terms, times: int) -> bool:
    """Whether an attempt can only have been committed once.

    What is parked is tried again with the same count, which only the parked copy shows. A dead letter may have been
    redriven twice with one count, by hand; `counted-twice` reports that.
    """
    if (history.redrives or may_park(terms)) and incomplete(terms):
        return False
    return not history.redrives or len(retry_chains(history.by_times().get(0, ()), terms)) == 1


def may_park(terms: Terms) -> bool:
    """Whether the group has queues, in which records may be parked."""
    return any(terms.names.ordered(topic) in terms.delays for topic in terms.mains)


def incomplete(terms: Terms) -> bool:
    """Whether copies or events of the group are deleted, left out, or held back."""
    return terms.complete_since() > 0 or terms.known.until < Known().until
