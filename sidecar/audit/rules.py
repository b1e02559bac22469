"""Judge the facts of one record: none is lost, each attempt is counted once, none comes early, and events say the same.

Each rule is a function from one life of a record (`facts.RecordHistory`) to its findings. `judge` applies the rules for
copies and events (contract 1.1, 2.3, 3.4, 11.1), `judge_outputs` those for the records that a service asks for with its
verdict (contract 1.12). If the topics do not show enough, a rule reports nothing; `docs/audit.md` says for each rule
what cannot be seen. The service of a relay may write copies itself, without events, and post a failure again: what only
that service knows is not checked.

A retry is followed through the topics as a chain: its first copy, then the copies made by hops and forwards, each of
which follows the one before. Two chains with one count mean that one attempt was counted twice.

Pure. `audit.py` calls it for what a cluster holds, the demo and the tests for what they have read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.audit.facts import Breach, Fact, Finding, Known, RecordHistory, Terms, histories_of
from reconsume.sidecar.printable import plural
from reconsume.topics.attempt import attempt_of
from reconsume.topics.durations import parse_duration
from reconsume.topics.events import State
from reconsume.topics.levels import shortest_wait
from reconsume.topics.partition import Partition

Findings: TypeAlias = Iterator[Finding]
Rule: TypeAlias = Callable[[RecordHistory, Terms], Findings]
RetryChain: TypeAlias = list[Fact]
"""Copies with the same retry count. Each follows the one before it."""
OPENS = (State.WAITING_RETRY, State.REDRIVEN)
"""States whose events come with a copy on a retry topic."""
ENDS = (State.COMMIT, State.DLQ)
SHOWN = 10
"""Records that a finding names at most."""


# --- chains of copies ------------------------------------------------------------------------------------------------


def retry_chains(copies: Sequence[Fact], terms: Terms) -> list[RetryChain]:
    """Return copies of one count, in the order of their times, as chains.

    There is one chain for each time that the attempt was counted.
    """
    found: list[RetryChain] = []
    for copy in copies:
        chain = next((chain for chain in found if follows(copy, chain[-1], terms)), None)
        if chain is None:
            found.append([copy])
        else:
            chain.append(copy)
    return found


def follows(copy: Fact, before: Fact, terms: Terms) -> bool:
    """Whether a copy may be a later step of the same retry as `before`.

    Both must have the same due time, unless the service postponed the attempt: then the later copy is due later. The
    copy must be in another topic, or come after the wait. Two copies in one topic at nearly the same time are one
    attempt that was counted twice. From the ready topic a copy goes only to a level, when its reader does not consume
    its main topic. What is parked, and what an operator has tried now, waits again.
    """
    if copy.by_hand:
        return copy.at + terms.slack >= before.at
    is_postponed = copy.postponed and copy.due > before.due
    if (copy.due != before.due and not is_postponed) or before.topic == copy.topic == terms.names.ready:
        return False
    return copy.topic != before.topic or copy.at + terms.slack >= terms.release(before)


def last_below(numbered: dict[int, list[Fact]], times: int) -> Fact | None:
    """Return the last copy with the greatest count below `times`; None if there is none."""
    below = [number for number in numbered if number < times]
    return numbered[max(below)][-1] if below else None


def is_source_done(history: RecordHistory, terms: Terms, source: Fact | None) -> bool | None:
    """Whether the progress says that a copy is done; `source` None stands for the record itself. None: not known."""
    topic, number, offset = history.origin if source is None else (source.topic, source.partition, source.offset)
    return terms.covered(topic, number, offset, after=True)


# --- copies ----------------------------------------------------------------------------------------------------------


def lost(history: RecordHistory, terms: Terms) -> Findings:
    """Check that each copy that is done has a successor: the next copy, a dead letter, or an event."""
    since = terms.complete_since()
    for times, copies in history.by_times().items():
        ends = any(fact.times >= times for fact in (*history.dead, *history.tells(*ENDS)))
        nexts = any(fact.times > times for fact in (*history.copies, *history.tells(State.WAITING_RETRY)))
        for chain in retry_chains(copies, terms):
            last = chain[-1]
            if last.topic == terms.names.ordered(history.origin[0]) and terms.reset_of(history) is not None:
                continue  # it has ended with the move of its main partition
            done = terms.covered(last.topic, last.partition, last.offset) and not terms.read_by_service(last)
            if terms.sees(last, since) and done and not (ends or nexts):
                text = "it is done by the committed progress, and nothing follows"
                yield history.finding(Breach.LOST, times, text, last)


def condemned(history: RecordHistory, terms: Terms) -> Findings:
    """Report records and events that break their form.

    Once such a record is done, it must be in the DLQ under its own position.
    """
    for bad in history.bad:
        if bad.topic == terms.names.events:
            yield history.finding(Breach.BAD_EVENT, 0, bad.reason, bad)
            continue
        yield history.finding(Breach.BAD_HEADER, 0, bad.reason, bad)
        done = terms.covered(bad.topic, bad.partition, bad.offset)
        if terms.sees(bad, terms.known.from_(terms.dlqs)) and done and not (history.dead or history.told):
            yield history.finding(Breach.LOST, 0, "its headers are broken, it is done, and not in the DLQ", bad)


def counted_twice(history: RecordHistory, terms: Terms) -> Findings:
    """Check that one copy counts each attempt. Further copies of the same retry must follow it."""
    for times, copies in history.by_times().items():
        found = len(retry_chains(copies, terms))
        told = len([fact for fact in history.tells(State.WAITING_RETRY) if fact.times == times])
        if found <= 1:
            continue
        if not terms.relay or 0 < told < found:
            yield history.finding(Breach.TWICE, times, f"{plural(found, 'copy')} count one attempt", *copies)
        else:
            yield history.finding(Breach.REPEATED, times, f"a service posted one failure {found} times", *copies)


def gap(history: RecordHistory, terms: Terms) -> Findings:
    """Check that counts rise by one from the first, and that the DLQ has the greatest."""
    told = history.tells(State.WAITING_RETRY, State.REDRIVEN)
    numbers = {fact.times: fact for fact in (*told, *history.copies)}
    zero = [copy for copy in history.copies if copy.times == 0 and not history.redrives and not copy.by_hand]
    if zero:
        yield history.finding(Breach.GAP, 0, "it waits for a retry and counts none", *zero)
    if not terms.complete_since() <= history.began() or any(fact.later for fact in numbers.values()):
        return
    made = max(numbers, default=0)
    first = min(numbers, default=1) if terms.foreign else int(history.redrives == 0)
    missing = sorted(set(range(first, made)) - set(numbers))
    if missing and not terms.in_memory:
        text = f"there is no retry {', '.join(map(str, missing[:10]))}, and there is a retry {made}"
        yield history.finding(Breach.GAP, made, text, *(numbers[number] for number in sorted(numbers)[:SHOWN]))
    for dead in history.dead:  # only the DLQ knows of retries in memory
        if dead.times < made or (dead.times > made and not (terms.in_memory or terms.foreign)):
            text = f"the DLQ says {plural(dead.times, 'retry')}, and {made} were made"
            last = (copy for copy in history.copies if copy.times == made)
            yield history.finding(Breach.GAP, dead.times, text, dead, *last)


def dead_twice(history: RecordHistory, terms: Terms) -> Findings:
    """Check that a life is in the DLQ once."""
    if len(history.dead) > 1:
        text = f"it is {len(history.dead)} times in the DLQ"
        yield history.finding(Breach.DEAD_TWICE, history.dead[0].times, text, *history.dead)


def half_committed(history: RecordHistory, terms: Terms) -> Findings:
    """Check that a record's successors exist only if the progress says that the record is done."""
    numbered = history.by_times()
    pairs: list[tuple[Fact | None, Fact]] = []
    for times, copies in numbered.items():
        found = retry_chains(copies, terms)
        pairs += [pair for chain in found for pair in pairwise(chain)]
        pairs.append((last_below(numbered, times), found[0][0]))
    pairs += [(last_below(numbered, end.times + 1), end) for end in (*history.dead, *history.tells(State.COMMIT))]
    for source, after in pairs:
        if source is None and (history.redrives or terms.relay or terms.reset_of(history) is not None):
            continue  # a redrive's source is the DLQ; a relay's service keeps its own progress; a reset undoes it
        if is_source_done(history, terms, source) is False:
            shown = (after,) if source is None else (source, after)
            text = "it is there, and its source is not done by the progress"
            yield history.finding(Breach.TORN, after.times, text, *shown)


def early(history: RecordHistory, terms: Terms) -> Findings:
    """Check that a copy's successor is not older than its due time, nor than the end of its level, unless an operator
    has had it tried now (contract 2.3)."""
    steps: list[tuple[int, Fact, Fact]] = []
    for times, copies in history.by_times().items():
        found = retry_chains(copies, terms)
        for before, after in (pair for chain in found for pair in pairwise(chain) if not pair[1].by_hand):
            due = before.due if after.topic == terms.names.ready else 0
            steps.append((max(terms.release(before), due), before, after))
        successor = first_result(history, times)
        if len(found) == 1 and successor is not None and not successor.by_hand and not successor.by_reset:
            last = found[0][-1]
            steps.append((max(last.due, terms.release(last)), last, successor))
    for due, before, after in steps:
        if after.at + terms.slack < due:
            text = f"what follows is {due - after.at} ms older than its due time"
            yield history.finding(Breach.EARLY, before.times, text, before, after)


def first_result(history: RecordHistory, times: int) -> Fact | None:
    """Return the first result of the attempt after retry `times`: an end, or the next retry. None if there is none."""
    ends = [fact for fact in (*history.dead, *history.tells(*ENDS)) if fact.times >= times]
    nexts = [fact for fact in (*history.copies, *history.tells(State.WAITING_RETRY)) if fact.times > times]
    return min((*ends, *nexts), key=lambda fact: fact.at, default=None)


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
    topic, number, offset = history.origin
    begin = terms.begins.get((topic, number))
    if not terms.compare or history.main is not None or topic in terms.delays or topic in terms.dlqs or history.bad:
        return
    if terms.mains and topic not in terms.mains:
        return
    if begin is not None and (offset < begin or topic in terms.compacted):
        return
    shown = (*history.copies, *history.dead, *history.told)[:SHOWN]
    if shown:
        yield history.finding(Breach.NO_RECORD, shown[0].times, "no main topic has such a record", *shown)


def elsewhere(history: RecordHistory, terms: Terms) -> Findings:
    """Report a record of a topic that this configuration does not have.

    Its copies are judged, but compared with nothing.
    """
    topic = history.origin[0]
    if terms.mains and topic not in (*terms.mains, *terms.delays, *terms.dlqs) and not history.bad:
        shown = (*history.copies, *history.dead, *history.told)[:SHOWN]
        text = f"its topic {topic} is not among the topics of this configuration"
        yield history.finding(Breach.UNKNOWN_TOPIC, 0, text, *shown)


# --- events ----------------------------------------------------------------------------------------------------------


def no_copy(history: RecordHistory, terms: Terms) -> Findings:
    """Check that the copy or the dead letter of each event exists."""
    numbers = {copy.times for copy in history.copies}
    # Without copies a life never had any if nothing is missing since it began, and no event reports a retry. What an
    # operator has called done may only have waited behind another of its key.
    is_alone = not numbers and history.never_had(*OPENS) and terms.complete_since() <= history.began()
    for told in history.told:
        text = ""
        if told.state in OPENS and told.times not in numbers:
            topic = topic_of(told, terms)
            if terms.sees(told, 0 if topic is None else terms.known.from_([topic])):
                text = f"{told.state} is told of, and there is no copy"
        elif told.state == State.DLQ and not history.dead and terms.sees(told, terms.known.from_(terms.dlqs)):
            text = "DLQ is told of, and it is not there"
        elif told.state == State.COMMIT and is_alone and not terms.foreign and terms.sees(told, 0):
            text = "COMMIT is told of a record that never failed"
        if text:
            yield history.finding(Breach.NO_COPY, told.times, text, told)


def topic_of(told: Fact, terms: Terms) -> str | None:
    """Return the topic to which an event's copy was written; None if the group does not have the level."""
    source, level, state = told.id.rsplit(":", 2)[0], told.level, told.state
    main = terms.drains.get(source, source)
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
    told, since = {fact.times for fact in history.tells(*OPENS)}, terms.known.from_([terms.names.events])
    for times, copies in history.by_times().items():
        if times not in told and not terms.relay and terms.sees(copies[0], since):
            yield history.finding(Breach.NO_EVENT, times, "no event tells of this retry", copies[0])
    for dead in history.dead:
        if not history.tells(State.DLQ) and terms.sees(dead, since):
            yield history.finding(Breach.NO_EVENT, dead.times, "no event tells of this dead letter", dead)


def told_twice(history: RecordHistory, terms: Terms) -> Findings:
    """Check that each retry has one event. Not for a relay: its service may have posted a failure again."""
    counted = sorted(history.counted(*OPENS), key=lambda fact: fact.times)
    for times, group in groupby(counted if not terms.relay else (), key=lambda fact: fact.times):
        facts = tuple(group)
        if len(facts) > 1:
            yield history.finding(Breach.TWICE, times, f"{plural(len(facts), 'event')} count one attempt", *facts)


def ended_twice(history: RecordHistory, terms: Terms) -> Findings:
    """Check that a life ends once, and that nothing comes after its end.

    Not for a relay: its service may handle one record in two ways.
    """
    ends = history.tells(*ENDS)
    if terms.relay or not ends:
        return
    end = ends[0]
    if len(ends) > 1:
        yield history.finding(Breach.ENDED_TWICE, end.times, f"{plural(len(ends), 'event')} tell of its end", *ends)
    after = [fact for fact in (*history.copies, *history.tells(*OPENS)) if fact.times > end.times]
    if after:
        text = f"{end.state} ended it after {plural(end.times, 'retry')}, and it goes on"
        yield history.finding(Breach.ENDED_TWICE, end.times, text, end, *after[:SHOWN])


def wrong_event(history: RecordHistory, terms: Terms) -> Findings:
    """Check that an event and its copy say the same, and that the event's wait is not too short for its level."""
    numbered = history.by_times()
    for told in history.counted(State.WAITING_RETRY):
        topic = topic_of(told, terms)
        # The wait counts from the failure, which is when the event was made.
        if (
            told.level is not None
            and topic is not None
            and told.due + terms.slack < told.at + shortest_wait(terms.delays[topic])
        ):
            text = f"it failed at {told.at} and is due at {told.due}, which is less than {told.level}"
            yield history.finding(Breach.EARLY, told.times, text, told)
        found = retry_chains(numbered.get(told.times, ()), terms)
        if len(found) == 1:
            yield from differing(history, told, found[0][0], topic)
    for told in history.tells(State.DLQ):
        if len(history.dead) == 1:
            yield from differing(history, told, history.dead[0], history.dead[0].topic)


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


# --- resets ----------------------------------------------------------------------------------------------------------


def unknown_cycle(history: RecordHistory, terms: Terms) -> Findings:
    """Check that no life is in a cycle that the resets of its partition have not begun."""
    topic, number, _ = history.origin
    progress, known = terms.after.get((topic, number)), terms.resets.get(Partition(topic, number))
    if progress is None or not progress.ours:
        return
    last = max(progress.cycle, 0 if known is None else known.cycle)
    if history.cycle > last:
        text = f"it is in cycle {history.cycle}, and its partition was reset {plural(last, 'time')}"
        shown = (*history.copies, *history.dead, *history.told)[:SHOWN]
        yield history.finding(Breach.UNKNOWN_CYCLE, shown[0].times if shown else 0, text, *shown)


def superseded(history: RecordHistory, terms: Terms) -> Findings:
    """Check that no delivery is made in a cycle that a reset has ended.

    What was in flight ends in its cycle, and how long that takes no topic shows: until `Terms.in_flight` nothing is
    said. A redrive that was under way may write a copy later, but that ends without a delivery.
    """
    reset = terms.reset_of(history)
    if reset is None:
        return
    until = reset.at + terms.in_flight + terms.slack
    late = [fact for fact in history.counted(State.WAITING_RETRY, *ENDS) if fact.at > until and not fact.by_reset]
    if late:
        text = f"a reset has put it into cycle {reset.cycle}, and it was delivered in cycle {history.cycle}"
        yield history.finding(Breach.SUPERSEDED, late[0].times, text, *late[:SHOWN])


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
    unknown_cycle,
    superseded,
)


def judge(facts: Iterable[Fact], terms: Terms) -> Findings:
    """Yield all findings about one record. `facts` are all facts with its id."""
    for history in histories_of(facts):
        # What began under a relay has a relay's traces: posts that came twice, copies without events, no COMMIT.
        relayed = any(map(terms.read_by_service, history.copies))
        # Who wrote decides, not the configuration: a Spark query counts each attempt once, as a sidecar does.
        by_query = any(fact.by_query for fact in history.told)
        its = replace(terms, relay=(terms.relay or relayed) and not by_query)
        for rule in RULES:
            yield from rule(history, its)


def judge_each(facts: Iterable[Fact], terms: Terms) -> Findings:
    """Yield all findings about several records, whose facts come in any order. For groups that fit into memory."""
    by_id: defaultdict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_id[fact.id].append(fact)
    for of_record in by_id.values():
        yield from judge(of_record, terms)


# --- outputs ---------------------------------------------------------------------------------------------------------


def judge_outputs(outputs: Iterable[Fact], facts: Iterable[Fact], terms: Terms) -> Findings:
    """Yield all findings about the outputs of one record. `facts` are all other facts with its id.

    Each output is there once, and only if its record is done. An output that is missing cannot be told, as no topic
    says what a service asked for. The timestamp of an output is the service's to choose, so no rule compares it.
    """
    histories = {(history.cycle, history.redrives): history for history in histories_of(facts)}
    for (cycle, redrives, times), group in groupby(sorted(outputs, key=attempt_of), key=attempt_of):
        its = tuple(group)
        history = histories.get((cycle, redrives))
        if history is None:
            history = RecordHistory(its[0].id, cycle, redrives, (), (), (), (), None)
        # From this count on an operator may have had the record tried again, which counts no attempt.
        counts = [fact.times for fact in (*history.copies, *history.tells(*State)) if fact.by_hand]
        if times < min(counts, default=2**63) and not any(map(terms.read_by_service, history.copies)):
            yield from output_torn(history, terms, times, its)
            yield from output_twice(history, terms, times, its)


def output_torn(history: RecordHistory, terms: Terms, times: int, outputs: Sequence[Fact]) -> Findings:
    """Check that the record is done, or the copy whose attempt asked for the outputs: both are one transaction."""
    source = last_below(history.by_times(), times + 1)
    # The parked copy that the source is, or the copy of the redrive, may be deleted.
    is_unsure = may_park(terms) and incomplete(terms)
    if source is None:
        is_unsure = history.redrives > 0 or terms.reset_of(history) is not None
    if not is_unsure and is_source_done(history, terms, source) is False:
        shown = (*(() if source is None else (source,)), *outputs)[:SHOWN]
        text = "an output is there, and its record is not done by the progress"
        yield history.finding(Breach.OUTPUT_TORN, times, text, *shown)


def output_twice(history: RecordHistory, terms: Terms, times: int, outputs: Sequence[Fact]) -> Findings:
    """Check that no output of an attempt is twice in a topic.

    In two topics it may have been copied by another program, with all its headers. What is parked is tried again with
    the same count, which only the parked copy shows. A dead letter may have been redriven twice with one count, by
    hand; `counted-twice` reports that.
    """
    if (history.redrives or may_park(terms)) and incomplete(terms):
        return
    if history.redrives and len(retry_chains(history.by_times().get(0, ()), terms)) != 1:
        return
    for (topic, number), group in groupby(sorted(outputs, key=mark_of), key=mark_of):
        same = tuple(group)
        if len(same) > 1:
            text = f"output {number} of one attempt is {len(same)} times in {topic}"
            yield history.finding(Breach.OUTPUT_TWICE, times, text, *same[:SHOWN])


def mark_of(output: Fact) -> tuple[str, str]:
    """Return the topic of an output and its number in the answer."""
    return output.topic, output.level or ""


def may_park(terms: Terms) -> bool:
    """Whether the group has queues, in which records may be parked."""
    return any(terms.names.ordered(topic) in terms.delays for topic in terms.mains)


def incomplete(terms: Terms) -> bool:
    """Whether copies or events of the group are deleted, left out, or held back."""
    return terms.complete_since() > 0 or terms.known.until < Known().until
