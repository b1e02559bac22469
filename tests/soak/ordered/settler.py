"""The person who decides about parked keys: reads in the events which are, and settles them through a pod's API."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, TopicPartition

from reconsume.topics.events import Event, State, decode_event, latest
from tests.soak.cluster import Cluster
from tests.soak.pods import Pods
from tests.soak.service import luck
from tests.support.sidecar.config import AS_OPERATOR

WAYS = ("retry-now", "dead-letter", "retry-now", "commit")
ANSWER = 20.0
"""Seconds: the call itself waits ten for the owner."""
AT_ONCE = 2
"""Each call has clients of its own in the pod, some twenty threads: four at once looked like a pod that grows."""
MOST = 8
"""Decisions in a row: where pods are away each takes its whole time."""
READ = 10_000
"""Events at once."""


class Settler:
    """Settles what is parked. Used by one thread at a time."""

    def __init__(self, cluster: Cluster, pods: Pods) -> None:
        self.answers: dict[str, list[int]] = {}
        """By id, what the API said: 200 carried out, 202 written, 409 or 404 not to be settled (any more)."""
        self._cluster, self._pods, self._topic = cluster, pods, cluster.group.names.events
        self._known: dict[str, Event] = {}
        self._partitions = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.group.bootstrap,
                "group.id": "soak-settler",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()

    def parked(self) -> list[str]:
        """The ids of the records that wait for a person now."""
        if not self._partitions:
            self._partitions = self._cluster.partitions(self._topic)
            self._consumer.assign([TopicPartition(self._topic, number, 0) for number in range(self._partitions)])
        while messages := self._consumer.consume(READ, 0.5):
            for message in messages:
                event = decode_event(message.value()) if message.error() is None else None
                if isinstance(event, Event):
                    self._known[event.id] = latest([event, self._known.get(event.id, event)]) or event
        return [ident for ident, event in self._known.items() if event.state is State.WAITING_RETRY and event.parked]

    def settle(self) -> str:
        """Decide about some of what is parked, those first that were not decided about for long; what came of it."""
        parked = self.parked()
        turn = sorted(parked, key=lambda ident: len(self.answers.get(ident, ())))[:MOST]
        with ThreadPoolExecutor(AT_ONCE) as people:
            said = sorted(people.map(self._settle, turn))
        return f"{len(parked)} are parked; of {len(turn)} the API said {', '.join(map(str, said)) or 'nothing'}"

    def _settle(self, ident: str) -> int:
        """The API's status; 0 if no pod answers. Each record is first tried again, and then in another way."""
        past = self.answers.setdefault(ident, [])
        how = WAYS[(len(past) + luck(ident) % 2) % len(WAYS)]
        pods = [pod for pod in self._pods.all() if pod.wanted and pod.process.running]
        status = next((said for pod in pods if (said := _call(pod.process.port, ident, how))), 0)
        past.append(status)
        return status


def _call(port: int, ident: str, how: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER)
    body = json.dumps({"id": ident, "how": how, "why": "soak"})
    try:
        connection.request("POST", "/v1/settle", body, {"Content-Type": "application/json", **AS_OPERATOR})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
