"""Learn Kafka's ids of the group's topics: they tell a topic from another one of the same name, here or elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from sidecar.errors import BrokerError, ConfigError
from sidecar.kafka.admin.cluster import Cluster
from sidecar.kafka.admin.descriptions import KAFKA_LIMIT
from sidecar.kafka.credentials.registry import CredentialRegistry

LOOK_EVERY = 300.0
"""Seconds between two looks. Progress of a topic that is created again meanwhile carries the former id, and whoever
takes it over later repeats its done records."""
AGAIN = 10.0
"""Seconds until the next look while an id is missing."""
FIRST_WITHIN = 3.0
"""Seconds that a start waits for the ids. Only the admin client tells them; Kafka answers within 50 ms, or is away."""

_LOG = logging.getLogger("reconsume.run")


class TopicIds:
    """The ids by the topics' names, as far as they are known.

    `needed`: the topics that the policy in force needs. A client is made for each look: one that stayed would cost
    threads and connections for a request in five minutes. `sized`: the topics of which the largest record matters.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        needed: Callable[[], frozenset[str]],
        registry: CredentialRegistry,
        sized: tuple[str, ...] = (),
    ) -> None:
        self.known: Mapping[str, str] = {}
        self.largest = KAFKA_LIMIT
        """Bytes of the largest record that one of the topics takes, as far as this user may see it."""
        self._sized = sized
        self._kafka, self._needed, self._registry = kafka, needed, registry
        self._looked = asyncio.Event()

    async def follow(self) -> None:
        """Look now and then, without end."""
        while True:
            needed = self._needed()
            self.known = {**self.known, **await asyncio.to_thread(self._look, needed)}
            self._looked.set()
            await asyncio.sleep(LOOK_EVERY if needed <= self.known.keys() else AGAIN)

    def known_after(self, before: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Return what waits for `before`, and then for the end of the first look, FIRST_WITHIN seconds at most."""

        async def known() -> None:
            await before()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), FIRST_WITHIN)

        return known

    def _look(self, names: frozenset[str]) -> dict[str, str]:
        kafka = {**self._kafka, **self._registry.newest.properties}
        try:
            cluster = Cluster(kafka, "reconsume-topic-ids")
            found, _ = cluster.topics(names)
            told = [config.get("max.message.bytes", "") for config in cluster.settings(self._sized).values()]
            self.largest = max((int(text) for text in told if text.isdecimal()), default=KAFKA_LIMIT)
        except (BrokerError, ConfigError) as fault:
            _LOG.debug("the topics' ids are not known: %s", fault, extra={"event": "topic-ids-unknown"})
            return {}
        return {name: topic.id for name, topic in found.items()}
