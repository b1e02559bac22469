"""What a soak came to: the checker's word, the figures, and the whole journey of each record that breaks a rule."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from reconsume.topics import retry_headers as wire
from tests.soak.account import SoakEvidence
from tests.support.kafka.topic_io import Row
from tests.support.proof.checker import Report, report_of
from tests.support.proof.evidence import Copy, place_of, read_copy
from tests.support.proof.invariants import RULES, Rule

IDENT = re.compile(r"[\w.-]+:\d+:\d+")
JOURNEYS = 3
"""For each class of violations."""


EVIDENCE = "evidence.pickle"
"""The file that a run which failed leaves, so that its evidence can be judged again."""


class Kept(NamedTuple):
    """What is judged."""

    evidence: SoakEvidence
    acked: Mapping[tuple[str, int], Iterable[int]]


def keep(path: Path, evidence: SoakEvidence, load: Acked) -> None:
    """Write down what was judged."""
    plain = replace(evidence)  # without what was worked out of it
    path.write_bytes(pickle.dumps(Kept(plain, dict(load.acked))))


def kept(path: Path) -> Kept:
    """What was judged then. Only of files that we wrote: a pickle runs what it says."""
    found = pickle.loads(path.read_bytes())
    assert isinstance(found, Kept)
    return found


class Verdict(NamedTuple):
    """The checker's word."""

    report: Report
    found: tuple[str, ...]
    destroyed: int
    """Records that ended by the operator's hand."""
    unfinished: int
    """Records that were neither taken, nor dead-lettered, nor destroyed."""


class Acked(Protocol):
    """What the broker has confirmed: offsets by topic and partition."""

    @property
    def acked(self) -> Mapping[tuple[str, int], Iterable[int]]: ...


def judge(evidence: SoakEvidence, load: Acked, rules: Iterable[Rule] = RULES) -> Verdict:
    """Every rule, those of an audit among them, and two of a soak alone: what was confirmed is there, and all has an
    end."""
    found = [violation for rule in rules for violation in rule(evidence)]
    found += condemned(evidence)
    found += unconfirmed(evidence, load)
    ends = endings(evidence)
    found += (f"rest: {ident} was neither taken nor dead-lettered" for ident, end in ends.items() if end == "none")
    counts = Counter(ends.values())
    return Verdict(report_of(evidence), tuple(found), counts["destroyed"], counts["none"])


def endings(evidence: SoakEvidence) -> dict[str, str]:
    """How each main record ended: `taken`, `dead`, `destroyed` by the operator, or `none`."""
    taken = {delivery.id for delivery in evidence.deliveries if delivery.means == "took"}
    dead = {copy.id for copy in evidence.dead}
    touched = {ident for ident, _ in evidence.touched}

    def end(ident: str) -> str:
        if ident in taken:
            return "taken"
        if ident in dead:
            return "dead"
        return "destroyed" if ident in touched else "none"

    return {ident: end(ident) for ident in evidence.sources}


def condemned(evidence: SoakEvidence) -> Iterator[str]:
    """Nothing foreign is ever written in a soak: no record of ours is unreadable, and none is in the DLQ for it."""
    for topic, rows in {**evidence.retries, evidence.group.dlq: evidence.dlq}.items():
        for row in rows:
            copy = read_copy(topic, row)
            if copy is None:
                yield f"unreadable: {place_of(topic, row)} has headers {row.headers}"
            elif topic == evidence.group.dlq and _unjust(evidence, copy):
                yield f"condemned: {copy} is in the DLQ with the reason {copy.ours[wire.RETRY_REASON]!r}"


def _unjust(evidence: SoakEvidence, copy: Copy) -> bool:
    unread = (b"bad-header", b"headers-unreadable", b"unknown-topic")
    return copy.id not in evidence.sources or copy.ours[wire.RETRY_REASON].startswith(unread)


def unconfirmed(evidence: SoakEvidence, load: Acked) -> Iterator[str]:
    """What the broker confirmed is in the log, or was before it was cut."""
    there = {topic: {(row.partition, row.offset) for row in rows} for topic, rows in evidence.mains.items()}
    for (topic, partition), offsets in load.acked.items():
        for offset in offsets:
            if (partition, offset) not in there[topic]:
                yield f"the broker lost {topic}:{partition}:{offset}, which it had confirmed"


def journeys(evidence: SoakEvidence, found: Sequence[str]) -> Iterator[str]:
    """The whole way of the first records of each class: deliveries, copies and events, in the order of time."""
    classes: dict[str, dict[str, None]] = {}
    for text in found:
        named = [ident for ident in IDENT.findall(text) if ident in evidence.sources]
        classes.setdefault(text.partition(":")[0], {}).update(dict.fromkeys(named))
    for ident in dict.fromkeys(ident for named in classes.values() for ident in list(named)[:JOURNEYS]):
        yield f"--- {ident} ---"
        yield from (f"  {at} {what}" for at, what in sorted(_steps(evidence, ident)))


def _steps(evidence: SoakEvidence, ident: str) -> Iterator[tuple[int, str]]:
    topic, row = evidence.sources[ident]
    cut = ", destroyed before it was done" if (topic, row.partition, row.offset) in evidence.cut else ""
    yield row.timestamp, f"produced{cut}; progress {_progress(evidence, topic, row)}"
    for delivery in evidence.deliveries:
        if delivery.id == ident:
            pod = delivery.path.rpartition("/")[2]
            answer = f"{delivery.answer or 'nothing'} ({delivery.means or 'no answer'}) at {delivery.answered}"
            yield delivery.received, f"delivered by {pod}, times {delivery.times}: {answer}"
    for name, rows in {**evidence.retries, evidence.group.dlq: evidence.dlq}.items():
        for one in rows:
            copy = read_copy(name, one)
            if copy is not None and copy.id == ident:
                yield one.timestamp, f"copy {place_of(name, one)} {_told(copy.ours, evidence, name, one)}"
    for one in evidence.events:
        if one.key == ident.encode():
            event = json.loads(one.value or b"{}")
            told = {name: event.get(name) for name in ("state", "times", "level", "due", "reason", "instance")}
            yield event["at"], f"event {told}"


def _told(ours: Mapping[str, bytes], evidence: SoakEvidence, topic: str, row: Row) -> str:
    names = (wire.RECONSUMETIMES, wire.RETRY_DUE_AT, wire.RETRY_REASON)
    said = " ".join(f"{name}={ours.get(name, b'').decode(errors='replace')}" for name in names)
    cut = ", destroyed" if (topic, row.partition, row.offset) in evidence.cut else ""
    return f"{said}; progress {_progress(evidence, topic, row)}{cut}"


def _progress(evidence: SoakEvidence, topic: str, row: Row) -> str:
    progress = evidence.progress.get((topic, row.partition))
    return "none" if progress is None else f"{progress.next}{' and it' if row.offset in progress.done else ''}"


def figures(verdict: Verdict, rest: float | None, bound: float) -> str:
    """The numbers of a run."""
    report = verdict.report
    rested = f"{rest:.0f} s" if rest is not None else "never"
    return (
        f"{report.deliveries} deliveries, {report.duplicates} of them duplicates; {report.committed} committed, "
        f"{report.dead_lettered} dead-lettered, {report.waiting} waiting, {verdict.destroyed} destroyed by the "
        f"operator, {verdict.unfinished} without an end; {report.retries} retries, late p50 {report.late(0.5)} ms, "
        f"p99 {report.late(0.99)} ms, max {max(report.lateness, default=0)} ms; at rest after {rested} "
        f"(bound {bound:.0f} s)"
    )
