"""The form in which a producer writes: as the topics are found to take it, by what they have refused.

A topic's limit is on a batch as it is packed. So a copy may be refused for its company (many small copies in a batch),
or because it is not packed as its first copy was. And a clock that is ahead gives times that a topic refuses. None of
this is the record's fault: the next producer writes it in another form.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum, auto

from confluent_kafka import KafkaError

from reconsume.sidecar.core.commit_batch import Refusal
from reconsume.sidecar.kafka.committer.write_apart import copy_sizes

LEAST_BATCH = 1_024
"""Bytes of a batch at least. Kafka's own lower bound of `max.message.bytes` is in no use below."""
FIRST_STEP, LAST_STEP = 3_600_000, 90 * 86_400_000
"""ms by which the times of records are put back, at first and at most: the brokers' default takes an hour ahead."""
COMPRESSION = ("compression.type", "compression.codec")
STRONGEST = "zstd"
"""Packs as small as whatever the record's own producer used, or smaller. It costs 8 us of CPU for a record of 1 KB,
where all of a failed record costs some 70. So it is used only once a topic has refused a copy for its size."""


class Change(Enum):
    """What a producer does otherwise than the one before it."""

    SMALLER = auto()
    """Its batches are smaller."""
    PACKED = auto()
    """It packs them."""
    EARLIER = auto()
    """Its records have an earlier time."""


class RecordForm:
    """The form of one transactional id's records. Used by one thread. `config`: of its producer."""

    def __init__(self, config: Mapping[str, object], clock: Callable[[], float] = time.time) -> None:
        self._batch = int(str(config.get("batch.size", LEAST_BATCH)))
        self._may_compress = not any(name in config for name in COMPRESSION)
        self._clock, self._behind, self._ahead_at = clock, 0, 0.0
        self._more: dict[str, object] = {}

    def applied(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the configuration of the next producer."""
        return {**config, **self._more}

    def timestamp(self) -> int:
        """Return the time to write records with (epoch ms); 0: the client's own.

        A clock that was put back in the meantime is believed again.
        """
        if self._behind and self._clock() - time.monotonic() < self._ahead_at - self._behind / 2_000:
            self._behind = 0
        return int(self._clock() * 1_000) - self._behind if self._behind else 0

    def adapt(self, code: int, refusals: tuple[Refusal, ...]) -> Change | None:
        """Take in why a transaction was aborted: the error's code, and the copies that were refused.

        Returns what the next producer does otherwise; None if no other form is left.
        """
        if code == KafkaError.INVALID_TIMESTAMP:
            # A time that the service gave to an output says nothing of this machine's clock.
            timed = any(copy.timestamp for refusal in refusals for copy in refusal.entry.writes)
            return None if timed else self._step_back()
        sizes = [size for refusal in refusals if refusal.too_large for size in _sizes(refusal)]
        if not sizes:
            return None
        if max(sizes) < self._batch > LEAST_BATCH:
            self._batch = max(LEAST_BATCH, self._batch // 2)
            self._more["batch.size"] = self._batch
            return Change.SMALLER
        if self._may_compress:
            self._may_compress = False
            self._more["compression.type"] = STRONGEST
            return Change.PACKED
        return None

    def _step_back(self) -> Change | None:
        if self._behind >= LAST_STEP:
            return None
        self._behind = 2 * self._behind or FIRST_STEP
        self._ahead_at = self._clock() - time.monotonic()
        return Change.EARLIER


def _sizes(refusal: Refusal) -> list[int]:
    """Return the bytes of the entry's copies to the topic that refuses it."""
    topic = refusal.where.partition("[")[0]
    return [size for written, size in copy_sizes(refusal.entry.writes) if written == topic]
