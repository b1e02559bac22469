"""What an operator decides about a record that waits, as command, call and form give it. Pure.

`settle.py` carries it out. This file loads no Kafka client, so that the API can check a call without one.
"""

from __future__ import annotations

from typing import NamedTuple

from reconsume.sidecar.errors import LetterError
from reconsume.topics.decision_record import COMMIT, DEAD_LETTER, RETRY_NOW, WAYS
from reconsume.topics.events import Event
from reconsume.topics.policy_record import LONGEST_ID, LONGEST_WHY
from reconsume.topics.retry_headers import ID

ENDS = {COMMIT: "done", DEAD_LETTER: "a dead letter", RETRY_NOW: "tried now"}
"""What a record is after each decision, in words."""


class NotWaitingError(LetterError):
    """The record waits in no queue of the group."""


class SettleRequest(NamedTuple):
    """A decision about one record: its id, how it ends (one of WAYS), why, and who decides."""

    id: str
    how: str
    why: str
    by: str

    @property
    def end(self) -> str:
        """What the record is once it is settled, in words."""
        return ENDS[self.how]

    def end_under(self, hold: str) -> str:
        """Return the same of a record that the hold with this id keeps back; empty: none does."""
        return f"tried once hold {hold} ends" if hold and self.how == RETRY_NOW else self.end


class Decided(NamedTuple):
    """What became of a decision: the event that tells of its end, None if none has come; and whether it says what was
    decided, or that the record's answer came first.

    `hold`: the id of a hold that keeps back what is to be tried now.
    """

    event: Event | None
    as_decided: bool = False
    hold: str = ""


def fault_of_why(why: str) -> str:
    """Return why an operator's reason cannot be kept, as one sentence; empty if it can."""
    good = why.strip() and len(why) <= LONGEST_WHY and why.isprintable()
    return "" if good else f"the reason must be 1 to {LONGEST_WHY} printable characters"


def settle_request(ident: object, how: object, why: object, by: str) -> SettleRequest:
    """Return the decision that a call or a form asks for. Raises ValueError, with one sentence, if it is not one."""
    if not isinstance(ident, str) or len(ident) > LONGEST_ID or ID.fullmatch(ident.encode(errors="replace")) is None:
        raise ValueError("id must be the id of one record, topic:partition:offset")
    if not isinstance(how, str) or how not in WAYS:
        raise ValueError(f"how must be one of {', '.join(WAYS)}")
    if not isinstance(why, str) or (fault := fault_of_why(why)):
        raise ValueError(fault if isinstance(why, str) else "why must be a text")
    return SettleRequest(ident, how, why, by)
