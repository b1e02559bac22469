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


class Refused(msgspec.Struct):
    """A row: deliveries of a topic that failed with the same status, one after the other.

    `status`: 0 while another end begins the row. `since_ms`: epoch ms of the first. `sent`: what was sent, once the row
    is reported. `text`: what the service said last; empty if it said nothing. A text may quote a record's value.
    `record_ids`: FAILING_RECORDS of their records, at most.
    """

    topic: str
    status: int
    since_ms: int
    deliveries: int = 0
    sent: Sent = Sent()
    text: str = ""
    record_ids: set[str] = msgspec.field(default_factory=set)


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
        self.rows: dict[str, Refused] = {}
        """The present row of each topic of which no delivery has succeeded since; while empty, no success matters."""
        self._refused: dict[str, Refused] = {}
        self._reported_at: dict[str, int] = {}

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The topics whose records the service rejects. For any thread, to read."""
        return tuple(self._refused.values())

    def note(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note how a delivery ended. What is no attempt, and what the service takes later, changes nothing."""
        topic = record.main_topic
        match outcome:
            case Failed(asked=False) | Rejected() if CLIENT_ERROR.fullmatch(outcome.reason):
                row, status = self.rows.get(topic), int(outcome.reason.removeprefix("http-"))
                if row is None or row.status != status:
                    row = self.rows[topic] = Refused(topic, status, now.wall_ms)
                row.deliveries += 1
                row.text = outcome.text or row.text
                if len(row.record_ids) < FAILING_RECORDS:
                    row.record_ids.add(record.id)
                if row.deliveries >= IN_A_ROW and len(row.record_ids) == FAILING_RECORDS:
                    self._refuse(row, record, now)
            case Failed() | Rejected() | Expired() if topic in self.rows:
                self.rows[topic] = Refused(topic, 0, now.wall_ms)
            case Committed():
                self.rows.pop(topic, None)
                self._refused.pop(topic, None)

    def _refuse(self, row: Refused, record: Record, now: Now) -> None:
        """Report a row that is long enough, at most once an hour and topic."""
        if self._refused.get(row.topic) is not row:
            row.sent = self._describe(record)
            self._refused[row.topic] = row
        if now.steady_ms - self._reported_at.get(row.topic, -LOG_EVERY) >= LOG_EVERY:
            self._reported_at[row.topic] = now.steady_ms
            self._report(row)

    def check(self) -> None:
        """Raise BrokenInvariantError if the invariant does not hold."""
        for topic, row in self._refused.items():
            enough = row.deliveries >= IN_A_ROW and len(row.record_ids) == FAILING_RECORDS
            ensure(enough and topic in self.rows, f"{topic} is reported for {IN_A_ROW} deliveries of its row")
