"""Read the answer to a batch: one verdict for all of its records, or one for each (INTERFACE §2). Pure.

Except for the list of verdicts, it is read like a single answer (`verdict.py`). A list decides for every record of the
batch. A record that the list leaves out is retried, since nothing says that the service took it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sidecar.core.outcome import Outcome
from sidecar.core.record import Record
from sidecar.delivery.push.verdict import (
    MISSING,
    UNREADABLE,
    VerdictFields,
    VerdictHeaders,
    VerdictRules,
    outcome_of,
    said_by,
    status_of,
    verdict_of,
)


class Verdicts(NamedTuple):
    """An outcome for each record of a batch, in the order of the records."""

    outcomes: list[Outcome]
    unknown: int
    """Entries of the list that belong to no record of the batch."""


def read_batch_answer(
    records: Sequence[Record], status: int, noted: VerdictHeaders, body: bytes, rules: VerdictRules, wall: int
) -> Outcome | Verdicts:
    """Return the meaning of a complete answer to a batch that came at `wall` (epoch ms). Never raises."""
    said = said_by(noted, body)
    if not isinstance(said, VerdictFields):
        return said
    if said.verdict is not None:
        return verdict_of(said)
    if isinstance(said.verdicts, list):
        return verdicts_of(said.verdicts, [record.id for record in records])
    return status_of(status, noted, rules, wall)


def verdicts_of(entries: list[Any], ids: Sequence[str]) -> Verdicts:
    """Return the outcome of each id. Two entries for one id are unreadable, because neither is preferred."""
    wanted = frozenset(ids)
    found: dict[str, Outcome] = {}
    unknown = 0
    for entry in entries:
        identity = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(identity, str) or identity not in wanted:
            unknown += 1
        else:
            found[identity] = UNREADABLE if identity in found else outcome_of(entry)
    return Verdicts([found.get(identity, MISSING) for identity in ids], unknown)
