"""What an ordered group came to: its topics and its ledger, as a story, and what `reconsume audit` finds."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from reconsume.topics import retry_headers as wire
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.retry_order import RETRY_BEHIND
from tests.soak.ordered.lines import Story, violations
from tests.soak.ordered.side import OrderedSide
from tests.support.kafka.topic_io import Row, dump
from tests.support.proof.ledger import Delivery
from tests.support.sidecar.config import config_of
from tests.support.sidecar.process import REPOSITORY

AUDIT = 300.0
"""Seconds that the audit may take."""
EVIDENCE = "evidence.pickle"
SHOWN = 3
"""Lines whose deliveries are shown."""


class OrderedVerdict(NamedTuple):
    """What is said of one group."""

    figures: str
    violations: tuple[str, ...]
    journeys: tuple[str, ...]


def judge_ordered(side: OrderedSide) -> OrderedVerdict:
    """Read everything that is left, and judge it. The sidecars have stopped."""
    group = side.group
    mains = {topic: dump(group.bootstrap, topic) for topic in group.mains}
    events = [event for row in dump(group.bootstrap, group.names.events) if isinstance(event := _event(row), Event)]
    copies = [row for topic in group.queues for row in dump(group.bootstrap, topic)]
    story = Story(
        _lines(mains),
        _by_record(side.ledger.deliveries()),
        _ended(events),
        _counts(copies),
        tuple(side.pods.stood),
    )
    found = [*violations(story), *_lost_by_the_broker(side, story), *_audited(side)]
    if found:
        (side.folder / EVIDENCE).write_bytes(pickle.dumps(story))
    parked = {event.id for event in events if event.parked}
    return OrderedVerdict(_figures(side, story, len(copies), len(parked)), tuple(found), _journeys(story, found))


def _event(row: Row) -> object:
    return decode_event(row.value)


def _lines(mains: dict[str, list[Row]]) -> dict[str, list[str]]:
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for topic, rows in mains.items():
        for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
            lines[f"{(row.key or b'').decode()} in {topic}[{row.partition}]"].append(
                f"{topic}:{row.partition}:{row.offset}"
            )
    return lines


def _by_record(deliveries: Sequence[Delivery]) -> dict[str, list[Delivery]]:
    found: defaultdict[str, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        found[delivery.id].append(delivery)
    return dict(found)


def _ended(events: Sequence[Event]) -> dict[str, int]:
    """When each record became a dead letter, or a person called it done."""
    ended: dict[str, int] = {}
    for event in events:
        if event.state is State.DLQ or (event.state is State.COMMIT and event.reason == "by-operator"):
            ended[event.id] = min(event.at, ended.get(event.id, event.at))
    return ended


def _counts(copies: Sequence[Row]) -> dict[str, list[int]]:
    """Of what failed; what is behind has no count."""
    counts: defaultdict[str, list[int]] = defaultdict(list)
    for row in copies:
        headers = dict(row.headers)
        if RETRY_BEHIND not in headers:
            ident = (headers.get(wire.ORIGIN_MESSAGE_ID) or b"").decode()
            counts[ident].append(int(headers.get(wire.RECONSUMETIMES) or b"0"))
    return dict(counts)


def _lost_by_the_broker(side: OrderedSide, story: Story) -> list[str]:
    there = {ident for line in story.lines.values() for ident in line}
    return [f"the broker lost {ident}, which it had confirmed" for ident in sorted(side.load.acked - there)]


def _audited(side: OrderedSide) -> list[str]:
    """What `reconsume audit` calls a violation. A process of its own: it prints, and so does the soak."""
    file = side.folder / "audit.json"
    config = side.kind.config("base", side.group.bootstrap)
    file.write_text(json.dumps(config_of(side.group, "http://127.0.0.1:1/", 8471, config)), encoding="utf-8")
    command = [sys.executable, "-m", "reconsume.sidecar", "-c", str(file), "audit", "-o", "jsonl"]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=AUDIT, check=False)
    if ended.returncode not in (0, 1):
        return [f"audit of {side.kind.name}: ended with {ended.returncode}: {ended.stderr[-500:]}"]
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    return [f"audit of {side.kind.name}: {row}" for row in rows if row["found"] == "violation"]


def _figures(side: OrderedSide, story: Story, copies: int, parked: int) -> str:
    deliveries = [one for found in story.deliveries.values() for one in found]
    attempts = Counter((one.id, one.times) for one in deliveries)
    excused = sum(story.half_awake(one) for one in deliveries)
    behind = copies - sum(map(len, story.counts.values()))
    settled = sum(status in (200, 202) for said in side.settler.answers.values() for status in said)
    return (
        f"{side.kind.name}: {sum(map(len, story.lines.values()))} records of {len(story.lines)} keys, "
        f"{len(deliveries)} deliveries, {sum(attempts.values()) - len(attempts)} of them again, {len(story.counts)} "
        f"records failed, {behind} copies behind them, {len(story.ended)} dead or settled, {parked} parked, "
        f"{settled} decisions; {excused} deliveries by pods that had stood still"
    )


def _journeys(story: Story, found: Sequence[str]) -> tuple[str, ...]:
    """Everything that was sent of the first lines that are named."""
    names = [name for name, line in story.lines.items() if any(ident in text for text in found for ident in line)]
    lines = []
    for name in names[:SHOWN]:
        sent = sorted((one for i in story.lines[name] for one in story.deliveries.get(i, ())), key=lambda d: d.received)
        ends = [f"  {ident} ended at {story.ended[ident]}" for ident in story.lines[name] if ident in story.ended]
        lines += [f"--- {name} ---", *(f"  {one.received} {_told(one)}" for one in sent), *ends]
    return tuple(lines)


def _told(one: Delivery) -> str:
    return f"{one.id} times {one.times} by {one.path.rpartition('/')[2]}: {one.means or 'no answer'} at {one.answered}"
