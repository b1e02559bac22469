"""The outcome of one delivery, as a closed family of frozen values.

A delivery that fails is a value, never an exception. `match` over `Outcome` in `decide` ends with `assert_never`, so a
new member cannot be forgotten.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from reconsume.topics.expiry import Expiry
from reconsume.topics.outputs import OUTPUT_REFUSED
from reconsume.topics.retry_rules import LEASE_EXPIRED, RELEASED
from reconsume.topics.transition_records import Copy

Outputs: TypeAlias = tuple[Copy, ...]
"""Records that the service asks to be written with its verdict, in the same transaction."""


class Committed(msgspec.Struct, frozen=True):
    """The service accepted the record."""

    outputs: Outputs = ()


class Failed(msgspec.Struct, frozen=True):
    """An attempt was made and failed: one retry is used up.

    `reason`: a class such as `http-500`, `timeout`, `broken-answer`, `retry-asked`. `text`: more, for people. `label`:
    the outcome's name in the metrics: `retry`, `timeout` or `broken_answer`. `delay` (ms) or `level` (−1 DLQ, 0 ladder,
    n > 0 that level of the table): what the service asked for, if anything. `asked`: the service said "retry"
    explicitly, so it is available, whatever becomes of its records. `expires`: when it is worth no retry any more.
    """

    reason: str
    text: str = ""
    label: str = "retry"
    delay: int | None = None
    level: int | None = None
    asked: bool = False
    expires: Expiry | None = None
    outputs: Outputs = ()


class Rejected(msgspec.Struct, frozen=True):
    """The service refused the record for good: it goes straight to the DLQ."""

    reason: str
    text: str = ""
    outputs: Outputs = ()


class Throttled(msgspec.Struct, frozen=True):
    """The service asked for time (429, or 503 with Retry-After). The record is delivered later; no retry is used up."""

    after_ms: int
    """Milliseconds to wait, already limited."""


class Postponed(msgspec.Struct, frozen=True):
    """The service takes this record later, as one customer's limit asks: no retry is used up, and the pace goes on."""

    after_ms: int
    """Milliseconds to wait, already limited."""


class NotSent(msgspec.Struct, frozen=True):
    """No byte reached the service: not an attempt (contract 1.6)."""

    reason: str


class Died(msgspec.Struct, frozen=True):
    """The service died while it had the record: not an attempt, and the record is a suspect (contract 1.10)."""

    reason: str = ""
    """Why the service cannot be reached; empty if it can: a worker died, or it was restarted at once."""


class Expired(msgspec.Struct, frozen=True):
    """The lease ended without a verdict: an attempt that failed (contract 6.6). The record is due when the lease is
    over: at once, or in `after_ms` where the service gave it back before (`release`)."""

    reason: str = LEASE_EXPIRED
    after_ms: int = 0


class Nacked(msgspec.Struct, frozen=True):
    """The service does not take the record now. Nothing is written, and no retry is used up; the record is delivered
    after the nack delay."""


class Cancelled(msgspec.Struct, frozen=True):
    """The sidecar withdrew the delivery, at a drain or a rebalance: before anything was sent, or a lease of a lost
    partition. Not an attempt, and not done."""


class Withdrawn(Cancelled, frozen=True):
    """The sidecar withdrew the delivery before the service had it, because an operator holds the record."""


CONNECTION_LOST = "connection-lost"
"""The reason of a failure where the service hung up before its answer was complete: it may have stopped."""

Outcome: TypeAlias = (
    Committed | Failed | Rejected | Throttled | Postponed | NotSent | Died | Expired | Nacked | Cancelled
)

COMMITTED = Committed()


def output_refused(why: str) -> Failed:
    """Return the failure of a record whose answer asks for outputs that are not written; the service is available."""
    return Failed(OUTPUT_REFUSED, why, asked=True)


CANCELLED = Cancelled()
WITHDRAWN = Withdrawn()
EXPIRED = Expired()
NACKED = Nacked()


def released(after_ms: int) -> Expired:
    """Return the outcome of a lease that the service gives back `after_ms` before its end."""
    return Expired(RELEASED, after_ms)


def label_of(outcome: Outcome) -> str:
    """Return the outcome's name in `reconsume_deliveries_total{outcome}`."""
    match outcome:
        case Failed(label=label):
            return label
        case Expired(reason=reason) if reason == RELEASED:
            return "retry"
        case _:
            return LABELS[type(outcome)]


LABELS: dict[type, str] = {
    Committed: "commit",
    Rejected: "dead_letter",
    Throttled: "throttled",
    Postponed: "postponed",
    NotSent: "not_sent",
    Died: "died",
    Expired: "timeout",
    Nacked: "retry",
    Cancelled: "cancelled",
    Withdrawn: "cancelled",
}
OUTCOME_NAMES = (
    *("commit", "retry", "dead_letter", "throttled", "postponed", "not_sent", "died", "timeout", "broken_answer"),
    "cancelled",
)
"""Every name that `label_of` can return; each counter starts at 0 for all of them."""
