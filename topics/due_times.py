"""When a retry is due, and after which time a record is not due again (contract 2.3, 2.11, 2.12). Pure; epoch ms.

How long a retry waits is asked of `GroupRules.wait_of`: the service's wish, or the ladder. Here that becomes a time.
"""

from __future__ import annotations

from zlib import crc32

from reconsume.topics.attempt import ReadRecord, retry_state_of
from reconsume.topics.expiry import Expiry
from reconsume.topics.levels import LONGEST
from reconsume.topics.retry_rules import FailureTerms

MIXER = 2_654_435_761
"""Of Knuth's multiplicative hash: a CRC alone puts neighbouring offsets close together."""


def due_time(record_id: str, retry: int, wait: int, jitter: int, now: int, last: int | None) -> int:
    """Return when retry `retry` is due that waits `wait` ms from `now`, and up to `jitter` percent more.

    Never after `last`, nor further off than the longest delay.
    """
    if not jitter or wait <= 0:
        return now + wait
    due = now + min(jittered(record_id, retry, wait, jitter), LONGEST)
    return due if last is None else min(due, last)


def jittered(record_id: str, retry: int, wait: int, percent: int) -> int:
    """Return a wait (ms) with up to `percent` more, never less.

    It is a function of the record and its retry, so that it can be tested, and records that failed together come back
    spread evenly.
    """
    chance = crc32(b"%d/%s" % (retry, record_id.encode())) * MIXER & 0xFFFFFFFF
    return wait + wait * percent * chance // (100 << 32)


def last_time(record: ReadRecord, expires: Expiry | None, terms: FailureTerms, now: int, speed: int = 1) -> int | None:
    """Return the time after which a record that failed at `now` is not due again; None: there is none.

    A record's age counts from its own timestamp. One that has none, one that is ahead of the clock, or one that a reset
    delivers again, is as old as its first failure in its cycle. `expires`: what the service said now; else what
    it said before counts. `speed`: as in `GroupRules`.
    """
    state = record.retry_state
    if expires is None and terms.max_age is None and (state is None or not state.expires_at):
        return None
    state = retry_state_of(record)
    expires_at = state.expires_at if expires is None else expires.time(now, speed)
    times = [expires_at] if expires is not None or expires_at else []
    if terms.max_age is not None:
        has_age = 0 < state.timestamp <= now and not state.cycle
        first = state.timestamp if has_age else state.first_failed_at or record.failed_at_ms or now
        times.append(first + terms.max_age)
    return min(times)
