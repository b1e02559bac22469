"""Report the group's topics that do not exist, as long as they are missing; the lanes go on with the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.hints import hint

TOPICS_EVERY = 15.0
"""Seconds between two looks for topics that were missing."""
AGAIN = 1.0
"""Seconds until the next look if Kafka has not answered."""

_LOG = logging.getLogger("reconsume.run")


class MissingTopics:
    """The topics that are missing.

    `needed`: the topics that the policy in force needs. `missing`: returns which of some topics are missing; None if
    Kafka does not tell.
    """

    def __init__(
        self, needed: Callable[[], frozenset[str]], missing: Callable[[frozenset[str]], frozenset[str] | None]
    ) -> None:
        self.names: frozenset[str] = frozenset()
        self._needed, self._missing = needed, missing

    async def name(self) -> None:
        """Log which topics are missing, and how to create them, until none is."""
        while True:
            needed = self._needed()
            told = await on_own_thread("missing-topics", partial(self._missing, needed))
            missing = self.names if told is None else told
            if missing - self.names:
                _LOG.error(
                    "topics are missing, or not for this user to see: %s; `%s` creates all but the main topics",
                    ", ".join(sorted(missing)),
                    hint("topics apply"),
                    extra={"event": "topics-missing"},
                )
            self.names = missing
            if told is not None and not missing:
                return
            await asyncio.sleep(TOPICS_EVERY if told is not None else AGAIN)
