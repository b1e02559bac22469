"""Know which topics exist that `deliver.outputs` allows, so that a service's names cost no request (contract 1.12).

A service chooses the topics of its outputs, or echoes names that somebody else has chosen. Looking such a name up costs
a request, and a response may have a thousand of them. So a thread of its own lists the topics that the operator allows:
before the first delivery, every `LOOK_EVERY` seconds, and sooner, but at most every `SOONEST` seconds, after a response
named a topic that is not in the list. An output to such a topic is refused when the response is read. The committer
takes the partitions of output topics from here and asks Kafka for none of them.

The list is as large as the topics that exist and are allowed, whatever names come. It is replaced as a whole: the event
loop (`fault`) and the committers (`states`) read it without a lock. Where Kafka does not answer, the list stays as it
is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.kafka.admin.connection import Connection
from reconsume.sidecar.kafka.committer.refusing_partitions import State
from reconsume.sidecar.kafka.credentials.registry import CredentialRegistry
from reconsume.sidecar.kafka.named_topics import named_topics
from reconsume.sidecar.observability.thread_watch import FOLLOWER_LIMIT, StopRequest, WatchedThread
from reconsume.topics.outputs import AllowedOutputs

LOOK_EVERY = 45.0
"""Seconds between two looks. A topic that is created is known within 60 s, with the look itself."""
SOONEST = 5.0
"""Seconds between two looks at least, whatever a service names: a list of a large cluster takes seconds."""
AGAIN = 1.0
"""Seconds until the next look while Kafka has not answered yet: nothing is delivered before it has."""
ANSWER_WITHIN = 20.0
"""Seconds for an answer. A cluster of 200 000 partitions has taken six."""

_LOG = logging.getLogger("reconsume.outputs")


class KnownOutputs(ContextThread):
    """The thread that lists the topics for outputs; tells what a service may write to (`topics.outputs.OutputTopics`).

    A client is made for each look: one that stayed would cost threads and connections for a request in 45 seconds.
    """

    def __init__(self, allowed: AllowedOutputs, kafka: Mapping[str, str], registry: CredentialRegistry) -> None:
        super().__init__("outputs")
        self.allowed = allowed
        self.states: Mapping[str, list[State]] = {}
        """The partitions of each topic that exists and is allowed, as of the last look."""
        self.listed = threading.Event()
        """Set once Kafka has answered."""
        self._kafka, self._registry = kafka, registry
        self._stopping, self._wanted = StopRequest(), threading.Event()

    def fault(self, topic: str, partition: int | None) -> str:
        """Return why no record may be written to a topic, or to this partition of it; empty if one may.

        A topic or partition that is not known brings the next look forward.
        """
        if why := self.allowed.fault(topic, partition):
            return why
        states = self.states.get(topic)
        if states is not None and (partition is None or partition < len(states)):
            return ""
        self.look_soon()
        if states is None:
            return f"topic {topic} does not exist, or the sidecar's user may not see it"
        return f"topic {topic} has no partition {partition}"

    def look_soon(self) -> None:
        """Bring the next look forward, for any thread."""
        self._wanted.set()

    def stop(self) -> None:
        """End soon; returns at once."""
        self._stopping.set()
        self._wanted.set()

    def watched(self) -> list[WatchedThread]:
        """Return this thread, for `/livez`."""
        return [WatchedThread(self.name, self, lambda: self._stopping.turned_at, FOLLOWER_LIMIT)]

    def do_work(self) -> None:
        """Look at the topics until stopped."""
        while not self._stopping.is_set():
            self._look()
            if self._stopping.wait(SOONEST if self.listed.is_set() else AGAIN):
                return
            if self.listed.is_set():
                self._wanted.wait(LOOK_EVERY - SOONEST)
            self._wanted.clear()

    def _look(self) -> None:
        """Replace the list by what exists now. Without an answer it stays."""
        properties = {**self._registry.with_newest(self._kafka), "allow.auto.create.topics": "false"}
        try:
            described = self._describe(Connection(properties, "reconsume-outputs").client)
        except (KafkaException, ConfigError) as fault:
            text = "the topics of deliver.outputs are not listed; the list before stays in force: %s"
            _LOG.warning(text, fault, extra={"event": "outputs-unlisted"})
            return
        self.states = {
            name: [State(partition.leader, len(partition.isrs)) for _, partition in sorted(topic.partitions.items())]
            for name, topic in described
            if topic.error is None and self.allowed.allows(name)
        }
        self.listed.set()

    def _describe(self, client: Any) -> Iterable[tuple[str, Any]]:
        """Return Kafka's descriptions: of all topics where there is a glob, otherwise of each name."""
        if self.allowed.has_glob:
            return dict(client.list_topics(timeout=ANSWER_WITHIN).topics).items()
        named = named_topics(client, self.allowed.names, ANSWER_WITHIN)
        if unknown := set(self.allowed.names) - named.described.keys() - named.absent:
            text = "Kafka does not describe the topics of deliver.outputs: %s"
            raise ConfigError([text % ", ".join(sorted(unknown))])
        return named.described.items()
