"""The check of a group: nothing lost, each attempt counted once, nothing early, every byte kept.

See contract 1.1, 2.3 and 3.4.

Pure over rows: full dumps of the topics (read_committed) and the service's ledger in, a frozen Report out. It trusts
neither side: the topics are compared with each other by the rules of an audit, and with what the service saw. A
duplicate delivery is counted, but is no fault, because delivery is at least once. Redriven records are not judged here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from reconsume.sidecar.audit.facts import Fact, Terms, topics_of
from reconsume.sidecar.audit.parsing import fact_in
from reconsume.sidecar.audit.rules import judge_each
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.dev.demo.checks import CHECKS, RELAYED, Checks
from reconsume.sidecar.dev.demo.lateness import Spread, in_outage, lateness, spread
from reconsume.sidecar.dev.demo.ledger import Delivery, Outage
from reconsume.sidecar.dev.demo.record_histories import Finding, RecordHistory, Row, build_histories
from reconsume.sidecar.dev.demo.verify_order import disorder, in_line, in_place_checks
from reconsume.topics.names import Kind, Names


class Rules(msgspec.Struct, frozen=True):
    """How the group's mode changes the checks.

    `in_place`: it is ordered by key; `relay`: the service reads Kafka itself.
    """

    in_place: InPlace | None = None
    relay: bool = False

    @property
    def checks(self) -> Checks:
        """The checks that every record must pass."""
        if self.in_place is not None:
            return in_place_checks(self.in_place)
        return RELAYED if self.relay else CHECKS


LADDER = Rules()
JUDGED = (Kind.MAIN, Kind.LEVEL, Kind.READY, Kind.DLQ, Kind.EVENTS)


class Report(msgspec.Struct, frozen=True):
    """The result. `deliveries[n]` is the number of deliveries of attempt n + 1.

    `lateness` counts from RETRY_DUE_AT, which counts from the failure. `release` counts from the end of the level's
    delay if that is later: it leaves out the time that the copy needed to be written. `held_back` is the lateness of
    retries that an outage delayed; the other two leave these out. `in_line` is the number of records that had an order
    to keep.
    """

    orders: int
    committed: int
    dead: int
    deliveries: tuple[int, ...]
    retries: int
    duplicates: int
    unseen: int
    lateness: Spread
    release: Spread
    held_back: Spread
    rows: int
    findings: tuple[Finding, ...]
    in_line: int = 0


def verify(
    rows: Sequence[Row],
    deliveries: Sequence[Delivery],
    names: Names,
    topics: Collection[str],
    outages: Sequence[Outage] = (),
    rules: Rules = LADDER,
) -> Report:
    """Judge a group by its topics and its service's ledger. Retries that an outage delayed have a lateness of their
    own."""
    terms = terms_of(rows, names, topics, rules)
    facts = facts_of(rows, names, topics)
    firsts = [row for row in rows if row.topic in topics]
    histories = list(build_histories(firsts, facts, deliveries, terms.delays).values())
    known = [history for history in histories if history.first is not None]
    came = [late for history in known for late in lateness(history)]
    held_back = [late for late in came if in_outage(late, outages)]
    in_time = [late for late in came if not in_outage(late, outages)]
    retries = [(history, times) for history in known for times in retries_of(history, rules)]
    return Report(
        orders=len(known),
        committed=sum(history.committed and not history.dead for history in known),
        dead=sum(bool(history.dead) for history in known),
        deliveries=by_attempt(histories),
        retries=len(retries),
        duplicates=sum(len(made) - 1 for history in histories for made in history.deliveries.values()),
        unseen=sum(times - 1 not in history.deliveries for history, times in retries),
        lateness=spread(late.after_due for late in in_time),
        release=spread(late.after_level for late in in_time),
        held_back=spread(late.after_due for late in held_back),
        rows=len(rows),
        findings=tuple(sorted((*audited(facts, terms), *findings(histories, rules)))),
        in_line=0 if rules.in_place is None else in_line(known),
    )


def retries_of(history: RecordHistory, rules: Rules) -> Iterable[int]:
    """Return the retries of a record: those with a copy, or in place those that reached the service."""
    return history.copies if rules.in_place is None else (times for times in history.deliveries if times > 0)


def facts_of(rows: Iterable[Row], names: Names, topics: Collection[str]) -> list[Fact]:
    """Return the facts of an audit in the rows of the group's topics; rows of other topics are skipped."""
    roles = ((row, names.role(row.topic, topics)) for row in rows)
    kinds = [(row, role.kind) for row, role in roles if role is not None and role.kind in JUDGED]
    return [fact_in(row, kind, names.group, topics) for row, kind in kinds]


def terms_of(rows: Iterable[Row], names: Names, topics: Collection[str], rules: Rules) -> Terms:
    """Return the terms by which an audit judges the group."""
    own = topics_of(names, topics, {row.topic for row in rows})
    return Terms(
        names,
        {**own.get(Kind.LEVEL, {}), **own.get(Kind.READY, {})},
        frozenset(own.get(Kind.DLQ, {})),
        slack=0,  # one machine has one clock
        in_memory=rules.in_place is not None,
        mains=frozenset(topics),
    )


def audited(facts: Iterable[Fact], terms: Terms) -> Iterator[Finding]:
    """Yield every violation that the topics show without the ledger, by the rules of an audit."""
    for one in judge_each(facts, terms):
        yield Finding(str(one.kind), one.id, f"{one.text}: {', '.join(one.records)}")


def findings(histories: Sequence[RecordHistory], rules: Rules) -> Iterator[Finding]:
    """Yield every contradiction between the topics and the ledger."""
    if rules.in_place is not None:
        yield from disorder(histories)
    for history in histories:
        if history.first is None:
            if history.deliveries:
                yield Finding("unknown", history.id, "it is in no main topic, and was delivered")
            continue
        for kind, check in rules.checks:
            for text in check(history, history.first):
                yield Finding(kind, history.id, text)


def by_attempt(histories: Iterable[RecordHistory]) -> tuple[int, ...]:
    """Return the number of deliveries of the first attempt, the second, and so on."""
    counts: dict[int, int] = {}
    for history in histories:
        for times, made in history.deliveries.items():
            counts[times] = counts.get(times, 0) + len(made)
    return tuple(counts.get(times, 0) for times in range(max(counts, default=-1) + 1))
