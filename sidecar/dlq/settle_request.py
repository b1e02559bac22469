"""What an operator decides about a record or about many, as command, call and form give it. Pure.

`dismissals.py` dismisses dead letters, `settle_waiting.py` settles what waits. This file loads no Kafka client, so that
the API can check a call without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from reconsume.sidecar.errors import LetterError
from reconsume.sidecar.hints import not_ours
from reconsume.topics.decision_record import (
    COMMIT,
    DEAD_LETTER,
    LONGEST_ID,
    LONGEST_KEY,
    LONGEST_WHY,
    PARKED,
    RETRY_NOW,
    WAYS,
)
from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.hold_record import read_key
from reconsume.topics.rates import parse_rate
from reconsume.topics.reasons import reason_class
from reconsume.topics.retry_headers import ID

ENDS = {COMMIT: "done", DEAD_LETTER: "a dead letter", RETRY_NOW: "tried now"}
"""What a record is after each decision, in words."""
LEVELS = ("ready", "ordered", PARKED)
"""Levels of waits that are no delay."""
CONDITIONS = ("topic", "reason", "level", "key", "key_base64")
"""The names of the conditions of a decision about many records."""

ONE_COLUMNS = ("id", "place", "reason", "was", "is", "why")
"""The columns of the plan of a decision about one record, or about dead letters."""
NOTHING_WRITTEN = "nothing was written"


class NotWaitingError(LetterError):
    """The record does not wait."""


class SettleRequest(NamedTuple):
    """A decision: how the records end (one of WAYS), why, and who decides.

    It is about one record, by its `id`; or about all that wait, of which each condition that is given must fit: `topic`
    (the main topic), `reason` (the class of the last failure), `level` (of the wait), `key`. `rate`: how many the group
    settles in a time, as `50/s`; empty: no bound.
    """

    id: str
    how: str
    why: str
    by: str
    topic: str = ""
    reason: str = ""
    level: str = ""
    key: bytes | None = None
    rate: str = ""

    @property
    def end(self) -> str:
        """What the record is once it is settled, in words."""
        return ENDS[self.how]


class Settled(NamedTuple):
    """What became of a call: the rows of the plan, how many records it has, and the id of the decision; empty if none
    was written.

    `done`: whether the one record that it was about was settled; None while that is not known.
    """

    rows: Sequence[Mapping[str, object]]
    records: int
    decision: str = ""
    done: bool | None = None


def fault_of_why(why: str) -> str:
    """Return why an operator's reason cannot be kept, as one sentence; empty if it can."""
    good = why.strip() and len(why) <= LONGEST_WHY and why.isprintable()
    return "" if good else f"the reason must be 1 to {LONGEST_WHY} printable characters"


def settle_request(ident: object, how: object, why: object, by: str, rate: object = None) -> SettleRequest:
    """Return the decision about one record that a call or a form asks for. Raises ValueError, with one sentence, if it
    is not one."""
    if not isinstance(ident, str) or len(ident) > LONGEST_ID or ID.fullmatch(ident.encode(errors="replace")) is None:
        raise ValueError("id must be the id of one record, topic:partition:offset")
    return _decision(ident, how, why, by, rate)


def waiting_request(
    named: Mapping[str, object], how: object, why: object, by: str, rate: object, topics: Sequence[str]
) -> SettleRequest:
    """Return the decision about many records that a command, a call or a form asks for. Raises ValueError, with one
    sentence, if it is not one.

    `named`: texts by the names in CONDITIONS; None or a missing one: any. `topics`: the group's main topics.
    """
    if named.keys() - set(CONDITIONS):
        raise ValueError(f"the conditions are {', '.join(CONDITIONS)}")
    texts: dict[str, str] = {}
    for name, text in named.items():
        if text is None:
            continue
        longest = 2 * LONGEST_KEY if name.startswith("key") else LONGEST_ID
        is_sound = isinstance(text, str) and len(text) <= longest and (name == "key" or (text and text.isprintable()))
        if not isinstance(text, str) or not is_sound:
            raise ValueError(f"{name} must be a printable text of 1 to {longest} characters")
        texts[name] = text
    if (topic := texts.get("topic", "")) and topic not in topics:
        raise ValueError(not_ours(topic, topics))
    key = read_key(texts.get("key"), texts.get("key_base64"))
    if key is not None and len(key) > LONGEST_KEY:
        raise ValueError(f"a key has at most {LONGEST_KEY} bytes")
    request = _decision("", how, why, by, rate)
    level = read_wait_level(texts["level"]) if "level" in texts else ""
    return request._replace(topic=topic, reason=reason_class(texts.get("reason", "")), level=level, key=key)


def read_wait_level(text: str) -> str:
    """Return the level of a wait as owners name it. Raises ValueError, with a sentence, if it is none."""
    if text in LEVELS:
        return text
    try:
        return render_duration(parse_duration(text))
    except ValueError:
        raise ValueError(f"a level is {', '.join(LEVELS)}, or a delay like 10m") from None


def is_rate(text: str) -> bool:
    """Return whether a text is a rate, or empty."""
    with suppress(ValueError):
        return not text or parse_rate(text) is not None
    return False


def _decision(ident: str, how: object, why: object, by: str, rate: object) -> SettleRequest:
    if not isinstance(how, str) or how not in WAYS:
        raise ValueError(f"how must be one of {', '.join(WAYS)}")
    if not isinstance(why, str) or (fault := fault_of_why(why)):
        raise ValueError(fault if isinstance(why, str) else "why must be a text")
    if rate is not None and (not isinstance(rate, str) or not is_rate(rate)):
        raise ValueError("a rate is written like 50/s, 600/m or 5/h")
    return SettleRequest(ident, how, why, by, rate=rate or "")
