"""Settlements of records that wait, as the policy topic tells them: those that can be carried out go to the lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from reconsume.sidecar.hints import hint
from reconsume.topics.policy_record import MOST_OPEN, SettlementRecord, fault_of_settlement

Settle: TypeAlias = Callable[[str, SettlementRecord | None], None]
"""Have the lanes take in a settlement, by the id of its record; None: it is there no more."""


class HeardSettlements:
    """Knows which settlements are open, and bounds their number: whoever may write to the topic may name any."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._open: set[str] = set()

    def begin(self) -> None:
        """Note that the topic is read from its first record: it may be another one, without what was heard.

        What is not told again is not carried out. A person who reads of it settles again.
        """
        before, self._open = self._open, set()
        for ident in before:
            self._settle(ident, None)

    def hear(self, ident: str, record: SettlementRecord | None) -> str:
        """Take in a record of the topic. Return why nobody carries it out, as one sentence; empty if somebody may."""
        if record is not None and not record.position:
            fault = fault_of_settlement(ident, record) or self._excess(ident)
            if not fault:
                self._open.add(ident)
                self._settle(ident, record)
            return fault
        if ident in self._open:  # it is gone, or what is settled now is a dead letter of the same record
            self._open.discard(ident)
            self._settle(ident, None)
        return ""

    def _excess(self, ident: str) -> str:
        is_full = len(self._open) >= MOST_OPEN and ident not in self._open
        return f"there are {MOST_OPEN} of them: `{hint('settle')}` makes room" if is_full else ""
