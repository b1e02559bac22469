"""Limit the log lines of one kind: a lasting cause is logged once, then summed up once in each window.

A warning is written at once if it says something new: another partition, another topic, another text. All that repeats
it is counted. At the end of each window one sum replaces them: how many lines there were, about how many partitions
or topics, and the text of the last one. The rule holds for every logger, so no call site can break it.
"""

from __future__ import annotations

import copy
import logging
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.printable import plural

WINDOW = 60.0
"""Seconds between two sums of one kind."""
BURST = 5
"""Lines of one kind that are written in one window; further ones are counted. A cause that hits all partitions of a
group at once is named by its first five, and the sum says how many there were."""
KINDS = 512
"""Kinds that are told apart. Further kinds of a logger share one limit, so that a caller who invents kinds fills
neither the log nor our memory."""
MOST = 1_000
"""Subjects of one kind that are told apart, 60 bytes each. What is beyond them is counted as repeated."""
LONGEST = 2_000
"""Characters of the last text that a sum repeats."""
KAFKA = "reconsume.kafka"
AUDIT = "reconsume.audit"
"""The logger of audit lines, of the API and of the dashboard."""
CALLER = ("action", "token", "peer")
"""The fields of an audit line that tell one caller and action from another."""
FAILURES = "reconsume.failures"
"""The logger of lines about deliveries."""
REFUSED = ("api-refused", "operator-call-refused")
"""The events of a refused call: of the service and of readers, and of operators."""
DELIVERIES = "reconsume.deliveries"
"""The logger of a line for each delivery, at `debug`: whoever sets that level wants all of them."""
OPERATOR = ("settled", "parked")
"""Its events that an operator must see each time."""
BUDGET = 36
"""Lines about deliveries that are written in a window, of all kinds together, and of refused calls: with the sums they
are 60 at most. Refused calls of operators have as many of their own. What is beyond is counted for the sums."""
SUMMED = 20
"""Kinds of such lines that are told apart in a window. Further ones have one sum together."""
NEW_AFTER = 600.0
"""Seconds after which the first line of such a kind is news again, which is always written."""
CAUSE = ("reason", "topic")
"""The fields of a line about one record, which has an `id`, that tell one cause from another. The reason is a class, of
which there are few."""

Kind: TypeAlias = tuple[object, ...]
_NUMBER = re.compile(r"\d+")


class Line(NamedTuple):
    """What a log record says, as far as the limit needs it.

    `subjects`: if all of them were logged before, the line repeats; empty if each line of its kind is news. `about`:
    the partitions and topics that it names.
    """

    kind: Kind
    subjects: frozenset[str]
    about: frozenset[str]


class _Held:
    """The lines of one kind since its first one."""

    def __init__(self, started: float) -> None:
        self.started = started
        """When the present window began."""
        self.written = 0
        self.held = 0
        self.about: set[int] = set()
        """Hashes of what the lines that were held back in this window are about."""
        self.logged: set[int] = set()
        """Hashes of the subjects since the kind's first line. They outlive the window as long as lines come."""
        self.last: logging.LogRecord | None = None


class _Budget:
    """How many lines about deliveries and refused calls were written in this window."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._started, self._used = float("-inf"), 0
        self._last_at: dict[Kind, float] = {}
        """When a line of each kind came last."""

    def is_first(self, kind: Kind, now: float) -> bool:
        """Note a line; return whether it is the first of its kind in `NEW_AFTER`."""
        first = now - self._last_at.pop(kind, float("-inf")) >= NEW_AFTER and len(self._last_at) < KINDS
        self._last_at[kind] = now
        while len(self._last_at) > KINDS or now - self._last_at[next(iter(self._last_at))] >= NEW_AFTER:
            del self._last_at[next(iter(self._last_at))]
        return first

    def take_line(self, now: float, *, first: bool) -> bool:
        """Return whether a line may be written, and count it if so."""
        if now - self._started >= self._window:
            self._started, self._used = now, 0
        if self._used >= BUDGET and not first:
            return False
        self._used += 1
        return True


class Repeats:
    """Count the lines of each kind, and decide which are written. Not safe for threads."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window = window
        self._kinds: dict[Kind, _Held] = {}
        self._budget, self._of_operators = _Budget(window), _Budget(window)

    def admit(self, record: logging.LogRecord, now: float) -> bool:
        """Return whether to write a record now. Otherwise it is counted for the next sum of its kind."""
        if record.name == DELIVERIES:
            return True
        line = line_of(record)
        shares, first = shares_budget(record), False
        budget = self._of_operators if line.kind[2] == REFUSED[1] else self._budget
        if shares:
            first = budget.is_first(line.kind, now)
        held = self._of_kind(self._shared(line.kind) if shares else line.kind, now)
        hashes = {hash(subject) for subject in line.subjects}
        repeats = bool(hashes) and (hashes <= held.logged or len(held.logged) >= MOST)
        held.logged |= hashes if len(held.logged) < MOST else set()
        if not repeats and (held.written < BURST or first) and (not shares or budget.take_line(now, first=first)):
            held.written += 1
            return True
        held.held += 1
        held.about |= {hash(subject) for subject in line.about} if len(held.about) < MOST else set()
        held.last = _without_references(record)
        return False

    def sums(self, now: float, *, early: bool = False) -> Iterator[logging.LogRecord]:
        """Yield a sum of each kind whose window is over and that held lines back; forget the kinds that did not.

        `early`: do not wait for the end of a window.
        """
        for kind, held in list(self._kinds.items()):
            if now - held.started < self._window and not early:
                continue
            if held.last is None:
                del self._kinds[kind]
                continue
            yield _sum(held, held.last, now - held.started)
            held.started, held.written, held.held, held.last = now, 0, 0, None
            held.about.clear()

    def next_sum(self, now: float) -> float | None:
        """Return the seconds until a window is over; None if no kind has one."""
        first = min((held.started for held in self._kinds.values()), default=None)
        return None if first is None else max(0.0, first + self._window - now)

    def _shared(self, kind: Kind) -> Kind:
        """Return the kind under which a line that shares the budget is counted: many have one sum together."""
        own = REFUSED[1]
        known = sum(1 for one in self._kinds if (one[2:3] == (own,)) is (kind[2] == own) and is_shared(one))
        return kind if kind in self._kinds or known < SUMMED else kind[:3]

    def _of_kind(self, kind: Kind, now: float) -> _Held:
        if kind not in self._kinds and len(self._kinds) >= KINDS:
            kind = kind[:2]  # logger and level: both are few
        return self._kinds.setdefault(kind, _Held(now))


def is_shared(kind: Kind) -> bool:
    """Return whether lines of a kind share a budget with others."""
    return kind[0] == FAILURES or (len(kind) > 2 and kind[2] in REFUSED)


def shares_budget(record: logging.LogRecord) -> bool:
    """Return whether a record is about a delivery or a refused call, and is no error and no change by an operator."""
    event = getattr(record, "event", None)
    about = (record.name == FAILURES and hasattr(record, "id")) or event in REFUSED
    return about and record.levelno < logging.ERROR and event not in OPERATOR


def line_of(record: logging.LogRecord) -> Line:
    """Return the kind of a record, and what it is about.

    Two lines are of one kind if their logger, level and event are the same; without an event, their template. Of
    librdkafka's lines its own name counts, which is their first argument. Audit lines of two callers or two actions are
    two kinds, so that the calls of one never hide those of another; so are lines with another `kind`, those about
    records that failed for another reason, and those of another group.
    """
    event = getattr(record, "event", None) or _NUMBER.sub("#", str(record.msg))
    if isinstance(record.msg, dict):  # structlog's
        event = record.msg.get("event")
    elif record.name == KAFKA and isinstance(record.args, tuple) and record.args:
        event = record.args[0]
    fields = CALLER if record.name == AUDIT else CAUSE if hasattr(record, "id") else ("kind",)
    distinguishing = [getattr(record, name, None) for name in (*fields, "group")]
    about = about_of(record)
    return Line((record.name, record.levelno, event, *distinguishing), _subjects(record, about), about)


def about_of(record: logging.LogRecord) -> frozenset[str]:
    """Return the partitions and topics of a record: its `about`, else its `partition`, else its `topic`."""
    subjects = (
        getattr(record, "about", None) or getattr(record, "partition", None) or getattr(record, "topic", None) or ()
    )
    return frozenset([subjects] if isinstance(subjects, str) else map(str, subjects))


def _subjects(record: logging.LogRecord, about: frozenset[str]) -> frozenset[str]:
    """Return what makes a record news. Its text counts without numbers: a cause that lasts counts on in them."""
    if record.levelno < logging.WARNING or hasattr(record, "was") or hasattr(record, "id"):
        return frozenset()  # an event, a change of state, or one record's end: none of them repeats another
    if about:
        offset = getattr(record, "offset", "")
        return frozenset(f"{one} {offset}" for one in about)
    fault = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    return frozenset([_NUMBER.sub("#", f"{record.getMessage()} {fault!r}")])


def _without_references(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record that holds its text instead of its arguments: an exception would keep the frames it passed."""
    kept = copy.copy(record)
    if not isinstance(record.msg, dict):
        kept.msg = record.getMessage()[:LONGEST]
    kept.args = kept.exc_info = kept.exc_text = kept.stack_info = None
    kept.__dict__.pop("about", None)
    return kept


def _sum(held: _Held, last: logging.LogRecord, seconds: float) -> logging.LogRecord:
    """Return the record of a sum: the last line, with the numbers of all that were held back."""
    last_at = datetime.fromtimestamp(last.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    numbers = {"kept_back": held.held, "last_at": last_at} | ({"about": len(held.about)} if held.about else {})
    last.created = time.time()
    if isinstance(last.msg, dict):
        last.msg = last.msg | numbers
        return last
    about = f", about {plural(len(held.about), 'partition or topic')}" if held.about else ""
    last.msg = f"{held.held} more in {seconds:.0f} s{about}; the last: {last.msg}"
    last.__dict__.update(numbers)
    return last
