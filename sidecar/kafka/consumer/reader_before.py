"""Where another consumer group stood that has read a topic before this one: the service's own consumer of a relay.

In relay mode the service reads the ready topic in the main group. A sidecar that delivers reads it in the retry group,
which has no offset there at first. It begins where the service stood: else all that the service has finished would come
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.consumer.committed_offsets import committed

_LOG = logging.getLogger("reconsume.assignment")


class ReaderBefore:
    """The group that read some topics before. `config`: of a reader of its offsets, with the newest credentials."""

    def __init__(self, config: Callable[[], dict[str, Any]], topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        self._config = config

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, Progress | None]:
        """Return its progress in each partition, None where it has none; what Kafka does not answer for is left out."""
        asked = [source for source in partitions if source.topic in self._topics]
        others = dict.fromkeys(source for source in partitions if source.topic not in self._topics)
        return {**others, **(self._ask(asked) if asked else {})}

    def _ask(self, asked: Sequence[Partition]) -> dict[Partition, Progress | None]:
        config = self._config()
        try:
            consumer = make_client(Consumer, config)
        except KafkaException as fault:  # while files are rotated two of them may not match
            held_back = "group %s cannot be asked where it stood: %s"
            _LOG.warning(held_back, config["group.id"], fault, extra={"event": "offset-held-back"})
            return {}
        try:
            answered = committed(consumer, asked)
        finally:
            consumer.close()
        for source, progress in answered.items():
            if progress is not None:
                text = "%s: begins at %d, where group %s stood that read it before"
                extra = {"event": "taken-over", "partition": str(source)}
                _LOG.info(text, source, progress.next, config["group.id"], extra=extra)
        return answered
