"""Why a process restarts in place, as the threads that read Kafka report it. `runtime/restarts.py` decides and acts.

These are doubts that no call of the client removes. Everyday events (a rebalance, an aborted transaction, a broker that
does not respond, a log that retention has cut, renewed credentials) are no causes, and neither is a missing topic.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class RestartReason(StrEnum):
    """The closed list of reasons; also the label of the metric and the `reason` in `/status`."""

    TOPIC_RECREATED = "topic-recreated"
    """A main topic was deleted and created again: the client's positions are those of the former log."""
    QUEUE_TOPIC = "queue-topic"
    """A queue topic was created, or recreated, while the process runs."""
    CLIENT_DEAF = "client-deaf"
    """A client receives nothing of a partition, although its log has records that were not read."""


class RestartCause(NamedTuple):
    """One doubt about one topic.

    `incarnation`: Kafka's id of the topic, with the cluster's; empty if it is not known. `broken`: what the process has
    read of the topic is not true any more, or a client of its own is of no use, so that it must not wait for long.
    """

    reason: RestartReason
    topic: str
    incarnation: str
    broken: bool = True


AskRestart: TypeAlias = Callable[[RestartCause], bool]
"""Asks for a restart in place, on any thread, and returns at once. False: there will be none, since the process has
restarted for this reason and this incarnation of the topic before."""


def no_restart(_cause: RestartCause) -> bool:
    """Return False: the caller goes on without a restart."""
    return False
