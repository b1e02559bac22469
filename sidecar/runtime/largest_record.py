"""Learn how large a record of the main topics may be: what is posted to a relay may be as large."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from reconsume.sidecar.api.retry import longest_post
from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.errors import BrokerError, ConfigError
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import KAFKA_LIMIT
from reconsume.sidecar.kafka.clients import CredentialRegistry

LOOK_EVERY = 300.0
"""Seconds between two looks."""
AGAIN = 10.0
"""Seconds until the next look after one without an answer."""

_LOG = logging.getLogger("reconsume.run")


class LargestRecord:
    """The largest record that one of these topics takes.

    A client is made for each look: one that stayed would cost threads and connections for a request in five minutes.
    """

    def __init__(self, kafka: Mapping[str, str], registry: CredentialRegistry, topics: tuple[str, ...]) -> None:
        self.size = KAFKA_LIMIT
        """Bytes, as far as this user may see it."""
        self._kafka, self._registry, self._topics = kafka, registry, topics
        self._hidden: frozenset[str] = frozenset()
        """The topics whose settings this user may not see, or that do not exist."""

    async def follow(self) -> None:
        """Look now and then, without end; do nothing where there are no topics."""
        while self._topics:
            answered = await on_own_thread("largest-record", self._look_up_size)
            await asyncio.sleep(LOOK_EVERY if answered else AGAIN)

    def _look_up_size(self) -> bool:
        try:
            cluster = Cluster(self._registry.with_newest(self._kafka), "reconsume-largest-record")
            found = cluster.settings(self._topics)
        except (BrokerError, ConfigError) as fault:
            _LOG.debug("the topics' limits are not known: %s", fault, extra={"event": "topic-limits-unknown"})
            return False
        told = [config.get("max.message.bytes", "") for config in found.values()]
        self.size = max((int(text) for text in told if text.isdecimal()), default=KAFKA_LIMIT)
        self._name_hidden(frozenset(self._topics) - found.keys())
        return True

    def _name_hidden(self, hidden: frozenset[str]) -> None:
        """Log once which topics' limits are not known: a post that one of them would take may be refused."""
        if hidden - self._hidden:
            text = "how large a record of %s may be is not for this user to see: posts to /v1/retry may have %d bytes"
            extra = {"event": "topic-limits-hidden"}
            _LOG.warning(text, ", ".join(sorted(hidden)), longest_post(self.size), extra=extra)
        self._hidden = hidden
