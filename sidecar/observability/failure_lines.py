"""Log why records fail: a line for each dead letter, and for each record that is parked or settled by hand.

The first failure of each topic and class in a minute, of all lanes together, has a line. Once a minute a sum of all
failures is logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NoReturn

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.printable import plural
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import BY_OPERATOR, Commit, DeadLetter, Requeue

_LOG = logging.getLogger("reconsume.failures")

EVERY = 60.0
"""Seconds between two sums."""
MOST_NAMED = 20
"""Pairs of topic and class that one sum names, the most frequent first. The line stays below 4 KiB with them."""


def log_dead_letters(entries: Iterable[SettledRecord]) -> None:
    """Log each dead letter among records whose copies are in Kafka, and each that is parked or settled by hand.

    The log keeps the lines to a few a minute.
    """
    for entry in entries:
        match entry.decision:
            case DeadLetter() as letter:
                log_dead_letter(letter)
            case Requeue(RetryState(parked=True) as parked):
                log_parked(parked)
            case Requeue(RetryState() as state) | Commit(RetryState() as state):
                log_settled(state, "done" if isinstance(entry.decision, Commit) else "tried now")
            case _:
                pass


def log_parked(parked: RetryState) -> None:
    """Log that a key waits for a person from now on."""
    text = "%s is parked after %s, and its key with it, until it is settled by hand: %s"
    extra = {"event": "parked", "id": parked.id, "reason": reason_class(parked.reason), "times": parked.times}
    _LOG.warning(text, parked.id, plural(parked.times, "retry"), parked.reason, extra=extra)


def log_settled(state: RetryState, how: str) -> None:
    """Log that a person's decision was carried out, or that the service took what a person has tried; nothing else."""
    if reason_class(state.reason) == BY_OPERATOR:
        extra = {"event": "settled", "id": state.id, "reason": BY_OPERATOR, "times": state.times}
        _LOG.info("%s is %s, by hand: %s", state.id, how, text_of(state.reason), extra=extra)


def log_dead_letter(letter: DeadLetter) -> None:
    """Log one dead letter: its id, the class of its reason, and the text of the service, which may be anything."""
    retry_state = letter.retry_state
    text = text_of(retry_state.reason)
    extra = {
        "event": "dead-letter",
        "id": retry_state.id,
        "topic": retry_state.topic,
        "reason": letter.reason,
        "text": text,
        "times": retry_state.times,
    }
    why = f"{letter.reason}: {text}" if text else letter.reason
    _LOG.warning(
        "%s is a dead letter after %s: %s", retry_state.id, plural(retry_state.times, "retry"), why, extra=extra
    )


class FailureSums:
    """Sum up the failures of some lanes. Used on the event loop."""

    def __init__(self, lanes: Sequence[LaneCounters], *, broadcast: bool = False) -> None:
        """`broadcast`: a failed record is not delivered again, and no topic of ours has it."""
        self._lanes, self._broadcast = lanes, broadcast
        self._before: Counter[tuple[str, str]] = Counter()
        self._named_at: dict[tuple[str, str], float] = {}
        """When a failure of a topic and class last had a line, by `time.monotonic`; only those of the last minute."""

    async def follow(self) -> NoReturn:
        """Log first failures each second, and a sum each minute, without end."""
        seconds = 0
        while True:
            await asyncio.sleep(1.0)
            self.log_first()
            seconds += 1
            if seconds >= EVERY:
                seconds = 0
                self.log_sum()

    def log_first(self) -> None:
        """Log a failure of each topic and class that had no line for a minute, whichever lane it comes from."""
        now = time.monotonic()
        self._named_at = {cause: at for cause, at in self._named_at.items() if now - at < EVERY}
        for counters in self._lanes:
            for failure in counters.failures.take_first():
                cause = (failure.topic, failure.reason)
                if cause in self._named_at:
                    continue
                self._named_at[cause] = now
                why = f"{failure.reason}: {failure.text}" if failure.text else failure.reason
                about = {"id": failure.id, "topic": failure.topic, "reason": failure.reason, "text": failure.text}
                if self._broadcast:
                    text, lost = "%s failed, and a broadcast has no retries: %s", {"event": "broadcast-failed", **about}
                    _LOG.warning(text, failure.id, why, extra=lost)
                else:
                    text, extra = "%s failed after %s: %s", {"event": "failure", **about, "times": failure.times}
                    _LOG.info(text, failure.id, plural(failure.times, "retry"), why, extra=extra)

    def log_sum(self) -> None:
        """Log the failures since the last sum, in one line; nothing if there were none."""
        self.log_first()
        total: Counter[tuple[str, str]] = Counter()
        for counters in self._lanes:
            total.update(counters.failures.by_cause)
        failed, self._before = total - self._before, total
        if failed:
            counts = {f"{topic} {reason}": count for (topic, reason), count in failed.most_common(MOST_NAMED)}
            extra = {"event": "failures", "failed": failed.total(), "by": counts}
            text = ", ".join(f"{count} of {what}" for what, count in counts.items())
            _LOG.info("%s failed: %s", plural(failed.total(), "attempt"), text, extra=extra)
