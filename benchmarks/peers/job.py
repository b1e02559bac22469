"""What a peer is asked to do, and what a peer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka.cimpl import NewTopic

from benchmarks import cluster


class Job(NamedTuple):
    """Deliver the records of a topic to a service; `delay` is in seconds, from a failure to its retry."""

    bootstrap: str
    topic: str
    group: str
    url: str
    delay: int

    @property
    def delay_ms(self) -> int:
        """The delay in ms."""
        return self.delay * 1000


Command = Callable[[Job], list[str]]
"""How a peer is started for a job."""


def no_topics(_job: Job) -> list[NewTopic]:
    """A peer that needs no topic of its own, or makes it itself."""
    return []


class Peer(NamedTuple):
    """One way to consume.

    `prepare` fetches what it needs and returns how it is started; it raises SetupError if something cannot be had.
    """

    name: str
    retries: str
    """How a failed record is tried again."""
    page: str
    """The page of its documentation that its configuration follows."""
    prepare: Callable[[], Command]
    topics: Callable[[Job], list[NewTopic]] = no_topics


def topic(name: str) -> NewTopic:
    """A topic with as many partitions as the main topic."""
    return NewTopic(name, cluster.PARTITIONS, 1)
