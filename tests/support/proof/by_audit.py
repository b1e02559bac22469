"""The rules of `reconsume audit` on what a test run left behind: its users' judge is a second one of every fault test.

The other rules of this folder read the topics with the eyes of a stranger. Where the two disagree, one is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from reconsume.sidecar.audit.facts import NOTES, Fact, Terms
from reconsume.sidecar.audit.parsing import TopicRecord, fact_in, only_postponed
from reconsume.sidecar.audit.rules import judge_each
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.names import Kind
from tests.support.kafka.topic_io import UNREADABLE, Row
from tests.support.proof.evidence import Evidence

FORMER = 1_000
"""More than any topic here has partitions."""


def by_the_audit(evidence: Evidence) -> Iterator[str]:
    """What an audit finds in the topics, but for records that were destroyed or written by a stranger on purpose."""
    touched = {ident for ident, _ in evidence.touched}
    for found in judge_each(_facts(evidence), _terms(evidence)):
        if found.kind not in NOTES and found.id not in touched and found.id not in evidence.foreign:
            yield f"audit: {found.kind} {found.id} redrives={found.redrives} times={found.times}: {found.text}"


def _terms(evidence: Evidence) -> Terms:
    group = evidence.group
    progress = dict(_progress(evidence))
    return Terms(
        names=group.names,
        delays={evidence.name_of(topic): evidence.delay_of(topic) for topic in evidence.retries},
        dlqs=frozenset({group.dlq}),
        before=progress,
        after=progress,
        slack=0,  # one machine has one clock
        in_memory=bool(evidence.kept),
        mains=frozenset(evidence.mains),
    )


def _progress(evidence: Evidence) -> Iterator[tuple[tuple[str, int], Progress]]:
    """What is done of each partition, one by one: what was destroyed counts as done."""
    topics = {**evidence.mains, **evidence.retries}
    for topic, name, former in _lives(topics, evidence):
        done: dict[int, set[int]] = {row.partition: set() for row in topics[topic]}
        for row in topics[topic]:
            if evidence.covers(topic, row):
                done[row.partition].add(row.offset)
        for number, offsets in done.items():
            yield (name, number + former), Progress(0, frozenset(offsets))


def _lives(topics: Iterable[str], evidence: Evidence) -> Iterator[tuple[str, str, int]]:
    """Each topic as it stands in the evidence, its name on Kafka, and what its partitions are numbered from.

    A topic that was deleted and made again stands there twice. To an audit, its former partitions are others.
    """
    lives: Counter[str] = Counter()
    for topic in topics:
        name = evidence.name_of(topic)
        yield topic, name, lives[name] * FORMER
        lives[name] += 1


def _facts(evidence: Evidence) -> Iterator[Fact]:
    group = evidence.group
    kinds = [(Kind.MAIN, evidence.mains), (Kind.LEVEL, evidence.retries)]
    kinds += [(Kind.DLQ, {group.dlq: evidence.dlq}), (Kind.EVENTS, {group.names.events: evidence.events})]
    for kind, topics in kinds:
        for topic, name, former in _lives(topics, evidence):
            for record in (_record(name, row) for row in topics[topic]):
                fact = fact_in(record, kind, group.group, evidence.mains)
                if not only_postponed(record, fact):
                    yield replace(fact, partition=fact.partition + former)


def _record(topic: str, row: Row) -> TopicRecord:
    headers = None if row.headers == UNREADABLE else list(row.headers)
    return TopicRecord(topic, row.partition, row.offset, row.timestamp, row.key, row.value, headers)
