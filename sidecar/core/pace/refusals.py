"""Notice a service that rejects every record of a topic: ten deliveries in a row, of at least three records, get one
4xx status. Pure.

The dispatcher calls `note` on the event loop with each outcome that may matter. `/status`, heartbeats, the log,
`doctor` and the dashboard show what is in `refused`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.outcome import Committed, Expired, Failed, Outcome, Rejected
from reconsume.sidecar.core.pace.pace import FAILING_RECORDS
from reconsume.sidecar.core.record import Now, Record

IN_A_ROW = 10
"""Deliveries of a topic, retries included, that fail with the same status before this is reported. They are of at least
FAILING_RECORDS different records, as in an outage: one record that is retried in place is not every record."""
LOG_EVERY = 3_600_000
"""ms between two reports of a topic."""
CLIENT_ERROR = re.compile(r"http-4[0-9]{2}")
READS_NOTHING = (
    "if the service cannot read the request, compare what it expects with the content type (deliver.content_type), the "
    "envelope (deliver.envelope) and the value, which may hold several lines of JSON"
)
NOT_THERE = "nothing takes a POST at this path: correct the path in deliver.url, or that of the topic"
NOT_ALLOWED = "the service does not accept this caller: set deliver.bearer_token_file, or let it accept the sidecar"
SAID_ELSEWHERE = "the service says why: see the sidecar's log (all-refused, failure), or the dead letters"
"""What is said of a text of the service where the text itself may not be shown."""
HINTS = {
    **dict.fromkeys((400, 415, 422), READS_NOTHING),
    **dict.fromkeys((404, 405), NOT_THERE),
    **dict.fromkeys((401, 403), NOT_ALLOWED),
    408: "the service did not get a whole request in time: see its own log",
    413: "the service takes no body of this size: raise its limit",
    431: "the service takes no head of this size: raise its limit, or forward fewer headers (deliver.forward_headers)",
}


class Sent(NamedTuple):
    """What a request with a record was, for people. `content_type`: empty if it had none."""

    method: str = "POST"
    path: str = ""
    content_type: str = ""


class Refused(NamedTuple):
    """A topic whose records the service rejects. `since_ms`: epoch ms of the first of these `deliveries`.

    `text`: what the service said last; empty if it said nothing. A text may quote a record's value.
    """

    topic: str
    status: int
    since_ms: int
    deliveries: int
    sent: Sent
    text: str = ""


def status_of(refused: Refused) -> dict[str, object]:
    """Return what `/status` shows of a topic."""
    return {
        "topic": refused.topic,
        "status": refused.status,
        "since": refused.since_ms,
        "deliveries": refused.deliveries,
        "sent": refused.sent._asdict(),
        "text": refused.text or None,
        "hint": hint_of(refused.status, quoted(refused.text)),
    }


def without_text(shown: Mapping[str, object]) -> dict[str, object]:
    """Return what `/status` shows of a topic to callers who may not see texts."""
    hint = hint_of(int(str(shown["status"])), SAID_ELSEWHERE if shown["text"] else "")
    return {**shown, "text": None, "hint": hint}


def quoted(text: str) -> str:
    """Return a text of the service as the beginning of a hint."""
    return f"the service says: {text}" if text else ""


def hint_of(status: int, said: str = "") -> str:
    """Return the likely fix where a service answers this 4xx status to everything, after what the service said."""
    likely = HINTS.get(status, "" if said else "the log of the service may say why")
    return "; ".join(filter(None, (said, likely)))


class Row(msgspec.Struct):
    """Failures of a topic with the same status, one after the other. `reason` is their class, `text` the last text.

    `record_ids`: FAILING_RECORDS of their records, at most.
    """

    reason: str
    since_ms: int
    deliveries: int = 0
    sent: Sent = Sent()
    text: str = ""
    record_ids: set[str] = msgspec.field(default_factory=set)


class Refusals:
    """The rows of all topics, and which of them are reported.

    `describe` returns what a request with a record is. `report` gets each topic that is to be logged: when it is found
    out, and then at most once an hour until a delivery succeeds.

    Invariant: a topic that is reported has a row, and as many deliveries and records as it takes.
    """

    def __init__(
        self, describe: Callable[[Record], Sent] = lambda _: Sent(), report: Callable[[Refused], None] = lambda _: None
    ) -> None:
        self._describe, self._report = describe, report
        self.rows: dict[str, Row] = {}
        """The present row of each topic of which no delivery has succeeded since; while empty, no success matters."""
        self._refused: dict[str, Row] = {}
        self._reported_at: dict[str, int] = {}

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The topics whose records the service rejects. For any thread."""
        return tuple(shown(topic, row) for topic, row in list(self._refused.items()))

    def note(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note how a delivery ended. What is no attempt, and what the service takes later, changes nothing."""
        match outcome:
            case Committed():
                self.rows.pop(record.main_topic, None)
                self._refused.pop(record.main_topic, None)
            case Failed(asked=False) | Rejected() if CLIENT_ERROR.fullmatch(outcome.reason):
                self._failed(record, outcome, now)
            case Failed() | Rejected() | Expired():
                if record.main_topic in self.rows:
                    self.rows[record.main_topic] = Row("", now.wall_ms)
            case _:
                pass

    def check(self) -> None:
        """Raise BrokenInvariantError if the invariant does not hold."""
        ensure(self._refused.keys() <= self.rows.keys(), "each topic that is reported has a row")
        enough = all(
            row.deliveries >= IN_A_ROW and len(row.record_ids) == FAILING_RECORDS for row in self._refused.values()
        )
        ensure(enough, f"each topic that is reported has {IN_A_ROW} deliveries, of {FAILING_RECORDS} records")

    def _failed(self, record: Record, outcome: Failed | Rejected, now: Now) -> None:
        topic, reason = record.main_topic, outcome.reason
        row = self.rows.get(topic)
        if row is None or row.reason != reason:
            row = self.rows[topic] = Row(reason, now.wall_ms)
        row.deliveries += 1
        row.text = outcome.text or row.text
        if len(row.record_ids) < FAILING_RECORDS:
            row.record_ids.add(record.id)
        if row.deliveries < IN_A_ROW or len(row.record_ids) < FAILING_RECORDS:
            return
        if self._refused.get(topic) is not row:
            row.sent = self._describe(record)
            self._refused[topic] = row
        if now.steady_ms - self._reported_at.get(topic, -LOG_EVERY) >= LOG_EVERY:
            self._reported_at[topic] = now.steady_ms
            self._report(shown(topic, row))


def shown(topic: str, row: Row) -> Refused:
    """Return a row that is long enough to be reported."""
    return Refused(topic, int(row.reason.removeprefix("http-")), row.since_ms, row.deliveries, row.sent, row.text)
