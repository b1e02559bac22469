"""The two closed lists of reasons: why a record is not delivered, and why a partition is not fetched.

`/status`, metrics, ages (`ages.py`), log lines, heartbeats, `doctor` and the pages show these words, and no other
states of a partition. Each reason is a word and its meaning in one line; docs/runbook.md repeats both.

`NotDelivered` has the gates in their order: the first one that does not let a record pass is the reason. A gate only
looks. What a delivery takes (a slot, a token of a rate, the mark of a suspect) is taken once all gates agree. Behind
the gates are the reasons of a record that cannot come to them: not due, behind its key, not in memory, or decided and
not in Kafka yet. `why.py` finds the reason of a record; `Fetching` (`fetching.py`) sets those of a partition.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self, TypeAlias


class Reason(StrEnum):
    """A word that people read, with its `meaning` in one line."""

    meaning: str

    def __new__(cls, word: str, meaning: str) -> Self:
        """Make a member from its row."""
        reason = str.__new__(cls, word)
        reason._value_, reason.meaning = word, meaning
        return reason


class NotDelivered(Reason):
    """Why a record is not delivered now."""

    CLOSING = "closing", "its partition is being released: the next owner delivers it"
    MEMBERSHIP = "membership", "Kafka may have given the partition to another instance, and has not said so yet"
    UNREAD_NOTES = "unread-notes", "what was settled of its partition before its turn is not known yet"
    REFUSED = "refused", "Kafka refuses a copy, a dead letter or the progress of its partition"
    UNPROVEN = "unproven", "Kafka has not yet accepted progress of the greatest length"
    BEHIND_RESET = "behind-reset", "the position of its partition is being reset, or it waits to know what was reset"
    SUPERSEDED = "superseded", "its record is delivered again, because the position was reset: it ends with an event"
    DECIDED = "decided", "an operator has decided about it, and the rate of that decision keeps it back"
    HELD = "held", "an operator holds it, or the record that it waits for"
    SUSPECT = "suspect", "Kafka must first know that it is being delivered; after deaths, one record goes at a time"
    TOPIC_RATE = "topic-rate", "the rate of its topic is used up"
    TOPIC_CONCURRENCY = "topic-concurrency", "as many records of its topic are in flight as may be"
    RATE = "rate", "the rate of the instance or the group is used up"
    PACE = "pace", "no slot in flight is free: the service is slow, throttles, or is in an outage"
    NOT_DUE = "not-due", "its level is not over, or the service has asked for a later attempt"
    RETRIED = "retried", "it has failed or was nacked, and is retried in place"
    ORDER = "order", "an earlier record of its key is not done"
    UNREAD = "unread", "it is not in memory: `not_fetched` says why, unless it is just being read"
    UNCOMMITTED = "uncommitted", "it has its outcome, and Kafka has not committed it yet"

    @property
    def is_deliberate(self) -> bool:
        """Whether an operator or the configuration wants the record to wait, so that it does not count as waiting."""
        return self in DELIBERATE


Closed: TypeAlias = Literal[
    NotDelivered.CLOSING,
    NotDelivered.REFUSED,
    NotDelivered.UNPROVEN,
    NotDelivered.BEHIND_RESET,
    NotDelivered.SUPERSEDED,
    NotDelivered.HELD,
]
"""The gates of a lane that say no to a record whose turn has come. `Gates` knows what each asks for."""


def meaning_of(word: str) -> str:
    """Return the meaning of the word of a `NotDelivered` that another instance has written; empty if it is none."""
    return next((reason.meaning for reason in NotDelivered if reason == word), "")


DELIBERATE = frozenset(
    {NotDelivered.DECIDED, NotDelivered.HELD, NotDelivered.TOPIC_RATE, NotDelivered.RATE, NotDelivered.NOT_DUE}
)
"""The reasons that an operator or the configuration intends. This is the only list of them."""
BY_OPERATOR = (NotDelivered.HELD, NotDelivered.DECIDED)
"""The gates that keep one record back for an operator, and that its entry names with the hold or the decision."""


class NotFetched(Reason):
    """Why a partition is not fetched now."""

    CLOSING = "closing", "it is being released: the next owner goes on"
    UNREAD_NOTES = "unread-notes", "what was settled of it before its turn is being read from the policy topic"
    REFUSED = "refused", "Kafka refuses its copies or its progress"
    QUEUE_UNREAD = "queue-unread", "what waits in its queue topic is not known yet"
    BEHIND_KEYS = "behind-keys", "as many records wait in its queue as may (`retry.ordered_max_waiting`)"
    BEHIND_RESET = "behind-reset", "its position is being reset: what is in flight ends first"
    HELD = "held", "an operator holds its records, or as many of them as it may keep back"
    NOT_DUE = "not-due", "its next record is not due"
    DISTANCE = "distance", "its next record is too far from the oldest one that is not done"
    DONE = "done", "the last owner has done what comes next: it goes on behind that"
    MEMORY = "memory", "its part of the memory is full, or the lane's memory is"
    SHARE = "share", "its share of the memory is full, and other flows need the rest"
    NO_LEADER = "no-leader", "Kafka has not answered for it for 30 s"
    TRANSACTION = "transaction", "a transaction of another program is open on it, and hides what comes behind"
