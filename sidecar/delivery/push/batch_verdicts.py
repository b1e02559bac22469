"""Read the answer to an envelope: one verdict for all of its records, or one for each (contract 6.2). Pure.

Except for the list of verdicts, it is read like the answer to a bare record (`verdict.py`). A list that names a record
of the request decides for all of them. A record that it leaves out is retried, since nothing says that the service took
it. A list that names none of them is the service's own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from reconsume.sidecar.core.outcome import COMMITTED, Outcome, output_refused
from reconsume.sidecar.core.record import Record
from reconsume.sidecar.delivery.verdict import (
    ACCEPTED,
    ACCEPTED_STATUS,
    MISSING,
    NO_ID,
    OTHER,
    OUR_TYPE,
    TOO_LONG,
    UNKNOWN_ID,
    UNKNOWN_WORD,
    UNREADABLE,
    OddAnswer,
    Unreadable,
    VerdictBody,
    VerdictFields,
    VerdictHeaders,
    VerdictRules,
    is_word,
    meaning_of,
    said_by,
    status_of,
    type_of,
    unreadable,
    without_verdict,
)

MOST_ENTRIES = 4096
"""Entries of a list of verdicts: four times the records of the largest batch."""


class EntryBody(VerdictBody, gc=False):
    """An entry of a list of verdicts, as it came."""

    def __post_init__(self) -> None:
        """Raise ValueError, which ends the reading, if the list is longer than any of ours."""
        _count.entries += 1
        if _count.entries > MOST_ENTRIES:
            raise ValueError(f"more than {MOST_ENTRIES} entries")


class Count(threading.local):
    """How many entries this thread has read of its response."""

    entries = 0


_count = Count()
ENTRIES, ENTRY = msgspec.json.Decoder(list[EntryBody]), msgspec.json.Decoder(EntryBody)
NO_ENTRY = VerdictFields(id=OTHER)
LENIENT = 64 * 1024
"""Bytes of a list in which each entry is read for itself."""


class Verdicts(NamedTuple):
    """An outcome for each record of a batch, in the order of the records."""

    outcomes: list[Outcome]


class WholeRefused(NamedTuple):
    """A failing status for a whole batch. It may be the fault of one of its records, or of their size.

    It says nothing of how many there are: the same bytes may answer another batch (`response_reader.Plain`).
    """

    status: int
    outcome: Outcome
    """The outcome of each record, if the batch is not sent again in halves."""


def read_batch_answer(
    records: Sequence[Record], status: int, noted: VerdictHeaders, body: bytes, rules: VerdictRules, wall: int
) -> Outcome | Verdicts | WholeRefused | OddAnswer:
    """Return the meaning of a complete answer to a batch that came at `wall` (epoch ms). Never raises."""
    return read_answer([record.id for record in records], status, noted, body, rules, wall)


def read_envelope_answer(
    identity: str, status: int, noted: VerdictHeaders, body: bytes, rules: VerdictRules, wall: int
) -> Outcome | OddAnswer:
    """Return the outcome of a complete answer to one record in an envelope, whose id is `identity`. Never raises."""
    judged = read_answer([identity], status, noted, body, rules, wall)
    if isinstance(judged, OddAnswer):
        return OddAnswer(_only(judged.judged), judged.kinds)
    return _only(judged)


def _only(judged: Outcome | Verdicts | WholeRefused) -> Outcome:
    match judged:
        case Verdicts(outcomes=outcomes):
            return outcomes[0]
        case WholeRefused(outcome=outcome):
            return outcome
        case _:
            return judged


def read_answer(
    ids: Sequence[str], status: int, noted: VerdictHeaders, body: bytes, rules: VerdictRules, wall: int
) -> Outcome | Verdicts | WholeRefused | OddAnswer:
    """Return the meaning of a complete answer to the records with these ids."""
    said = said_by(noted, body, rules)
    if isinstance(said, Unreadable):
        return unreadable(said, rules) or OddAnswer(_by_status(status, noted, rules, wall), (said.kind,))
    if said.verdict is not None:
        if said.produce is not None and len(ids) > 1:
            return output_refused("one verdict for many records cannot have outputs: each record needs its own")
        return meaning_of(said, rules)
    if (refusal := without_verdict(said, rules)) is not None:
        return refusal
    entries = [] if said.verdicts is None else _entries_of(said.verdicts)
    if entries is None:  # it may name records of the request, so it is no success
        return OddAnswer(UNREADABLE, (TOO_LONG,))
    if entries:
        return _listed(entries, ids, rules) or OddAnswer(
            UNREADABLE if type_of(noted) == OUR_TYPE else _by_status(status, noted, rules, wall), (NO_ID,)
        )
    if status == ACCEPTED_STATUS:
        return OddAnswer(COMMITTED, (ACCEPTED,))
    return _by_status(status, noted, rules, wall)


def _by_status(status: int, noted: VerdictHeaders, rules: VerdictRules, wall: int) -> Outcome | WholeRefused:
    outcome = status_of(status, noted, rules, wall)
    return outcome if status < 300 else WholeRefused(status, outcome)


def _entries_of(verdicts: msgspec.Raw) -> list[VerdictFields] | None:
    """Return the entries of a list of verdicts; empty if it is no list. None if it is too long to be read leniently,
    and has something else than objects or more of them than any batch.

    Of a short list each entry counts for itself. A long one may not become many times its size (contract 13.3).
    """
    raw = memoryview(verdicts)
    if bytes(raw[:1]) != b"[":
        return []
    _count.entries = 0
    try:
        if len(raw) > LENIENT:
            return [entry.fields() for entry in ENTRIES.decode(verdicts)]
        singles = msgspec.json.decode(verdicts, type=list[msgspec.Raw])
        return [ENTRY.decode(one).fields() if bytes(memoryview(one)[:1]) == b"{" else NO_ENTRY for one in singles]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _listed(entries: list[VerdictFields], ids: Sequence[str], rules: VerdictRules) -> Verdicts | OddAnswer | None:
    """Return the outcome of each id; None if the list names none of them."""
    wanted = frozenset(ids)
    by_id: dict[str, VerdictFields] = {}
    clashing: set[str] = set()
    odd: list[str] = []
    for entry in entries:
        identity = entry.id
        if not isinstance(identity, str) or identity not in wanted:
            odd.append(UNKNOWN_ID)
        elif _said(by_id.setdefault(identity, entry)) != _said(entry):
            clashing.add(identity)
    if not by_id:
        return None
    outcomes: list[Outcome] = []
    for identity in ids:
        outcome = _outcome_of(by_id[identity], rules) if identity in by_id else MISSING
        if isinstance(outcome, OddAnswer):
            odd += outcome.kinds
            outcome = outcome.judged
        outcomes.append(outcome)
    if clashing:  # neither of two verdicts is preferred
        outcomes = [UNREADABLE if own in clashing else outcome for own, outcome in zip(ids, outcomes, strict=True)]
    odd += [UNKNOWN_WORD for outcome in outcomes if outcome is UNREADABLE]
    return OddAnswer(Verdicts(outcomes), tuple(odd)) if odd else Verdicts(outcomes)


def _said(entry: VerdictFields) -> tuple[Any, ...]:
    """Return what two entries must have in common to say the same."""
    produce = None if entry.produce is None else bytes(entry.produce)
    return entry.verdict, entry.delay, entry.level, entry.reason, entry.expires, produce


def _outcome_of(entry: VerdictFields, rules: VerdictRules) -> Outcome | OddAnswer:
    """Return the outcome of one entry. An entry of a record of ours without one of our words is unreadable."""
    return meaning_of(entry, rules) if is_word(entry.verdict) else UNREADABLE
