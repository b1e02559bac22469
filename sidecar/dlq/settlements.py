"""Settlements: read from the policy topic, written to it, and forgotten with what they are about.

A settlement names the attempt that it is for. So it dismisses one stay of a record in the DLQ, and never a
later one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.group_policy.control_log import ControlLog, RecordWriter
from reconsume.sidecar.kafka.scan import HasSpan
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.events import BY_SETTLEMENT, Event, State, encode_event, event_of
from reconsume.topics.names import Names
from reconsume.topics.policy_record import SettlementRecord, render_record, settlement_key
from reconsume.topics.reasons import one_line
from reconsume.topics.retry_headers import RetryState

MOST = 10_000
"""Settlements of a group: each has some 300 bytes, which every instance reads when it starts."""
CLIENT = "reconsume-settle"
BY_KEY = -1
"""The partition that a record's key chooses, as for all events."""


# No position: an imported letter is the same death. The record's position only says when it may be forgotten. Lists and
# redrives read the settlements with the history of redrives, so that `eligibility` is one question.
class LetterKey(NamedTuple):
    """One stay of a record in the DLQ: its id, and the attempt that its headers name."""

    id: str
    attempt: Attempt


class Settlements(NamedTuple):
    """What the policy topic holds of people's decisions.

    `commits`: the settlements that dismiss a letter, by its stay. `has_ladder`: the policy in force has a ladder that
    keeps the order, whatever the configuration says.
    """

    commits: Mapping[LetterKey, SettlementRecord]
    has_ladder: bool = False

    @property
    def dismissed(self) -> dict[LetterKey, int]:
        """The stays that were dismissed, and when (epoch ms)."""
        return {letter: record.at for letter, record in self.commits.items()}


NONE = Settlements({})


def read_settlements(kafka: Mapping[str, str], names: Names) -> Settlements:
    """Return the settlements of the group; none if it has no policy topic. Raises BrokerError."""
    state = ControlLog(kafka, names, CLIENT).read_if_there()
    if state is None:
        return NONE
    commits = {LetterKey(ident, attempt_of(record)): record for ident, record in state.dismissals.items()}
    policy, agreed = state.policies.in_force, next(iter(state.live_settings(wall())), None)
    values = {**({} if agreed is None else agreed.record.values), **({} if policy is None else policy.policy)}
    has_ladder = bool(values.get("ordered_ladder"))
    return Settlements(commits, has_ladder)


def gone_of(settlements: Settlements, layout: Mapping[Partition, HasSpan]) -> list[str]:
    """Return the ids of the settlements whose letters are known to be gone. `layout`: the spans that are known now."""
    begins = {f"{source.topic}:{source.number}": span.begin for source, span in layout.items()}
    gone = []
    for letter, record in settlements.commits.items():
        source, _, offset = record.position.rpartition(":")
        # A partition that is not among the spans has no leader now, or is another configuration's: nothing is known.
        if (begin := begins.get(source)) is not None and offset.isdecimal() and int(offset) < begin:
            gone.append(letter.id)
    return gone


def event_of_settlement(retry_state: RetryState, record: SettlementRecord, group: str) -> Event:
    """Return the event that tells of a settlement: by whom and why, and nothing of what the letter died of.

    It depends on the settlement alone, so that written again it is the same.
    """
    instance = f"{BY_SETTLEMENT}{record.who}"
    event = event_of(retry_state, State.DISMISSED, None, group=group, instance=instance, at=record.at)
    return replace(event, due=0, text=one_line(record.why) or msgspec.UNSET)


class SettlementWriter:
    """Writes settlements, and the events that tell of them. It is a context manager, whose end closes its client."""

    def __init__(self, kafka: Mapping[str, str], names: Names) -> None:
        self._names, self._writer = names, RecordWriter(kafka, CLIENT)

    def __enter__(self) -> SettlementWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, records: Mapping[str, SettlementRecord]) -> None:
        """Write settlements, by the id of the record. Raises BrokerError if one is not known to be in the topic."""
        for ident, record in records.items():
            self._writer.send(self._names.policy, settlement_key(ident), render_record(record))
        self._writer.confirm(f"the settlement of {_some(records)} is not written, as far as is known")

    def tell(self, events: Sequence[Event]) -> None:
        """Write the events of dismissals. Raises BrokerError if one is not known to be in the topic."""
        for event in events:
            self._writer.send(self._names.events, event.id.encode(), encode_event(event), BY_KEY)
        self._writer.confirm(f"the event of {_some([event.id for event in events])} is not written, as far as is known")

    def forget(self, idents: Iterable[str]) -> None:
        """Delete settlements whose letters are gone. Raises BrokerError."""
        for ident in idents:
            self._writer.send(self._names.policy, settlement_key(ident), None)
        self._writer.confirm("settlements of deleted letters are still there")


def _some(idents: Collection[str]) -> str:
    """Name one record, or one of several."""
    return ("one of " if len(idents) > 1 else "") + next(iter(idents), "no record")
