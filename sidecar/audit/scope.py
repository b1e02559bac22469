"""Select the topics that an audit of a group reads, and the terms by which the group is judged. No IO here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from reconsume.sidecar.audit.facts import Known, Number, Terms, topics_of
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.settings import Settings
from reconsume.topics.names import Kind


class Survey(NamedTuple):
    """The group's topics that exist, and the partitions of those that are read."""

    own: Mapping[Kind, Mapping[str, int]]
    partitions: Mapping[str, int]
    retries: tuple[Number, ...]
    """The partitions whose progress the retry lane commits."""
    mains: tuple[Number, ...]
    """The partitions whose progress the main lane commits, those of queue topics too; none for a relay."""
    read: tuple[Number, ...]
    ready: tuple[Number, ...] = ()
    """The partitions of the ready topic that the service may have read in the main group, before the sidecar did; none
    for a relay."""

    @property
    def waits(self) -> dict[str, int]:
        """Every topic where copies wait, with its delay in ms."""
        return {**self.own.get(Kind.LEVEL, {}), **self.own.get(Kind.ORDERED, {}), **self.own[Kind.READY]}


def survey_of(settings: Settings, there: Mapping[str, int]) -> Survey:
    """Return what to read of the topics that exist; `there` has their numbers of partitions.

    Raises ContractError if a required topic is missing, or if the group is a broadcast.
    """
    own = topics_of(settings.names, settings.topic_names, there)
    if settings.deliver.broadcast:
        raise ContractError("a broadcast retries nothing, and has no topics to audit")
    absent = [kind for kind in (Kind.EVENTS, Kind.READY, Kind.DLQ) if kind not in own]
    if absent:
        raise ContractError(f"the group has no {' and no '.join(absent)} topic; `{hint('topics apply')}` makes them")
    relay, levels = settings.deliver.mode == "relay", own.get(Kind.LEVEL, {})
    lane = levels if relay else {**levels, **own[Kind.READY]}
    queues = tuple(own.get(Kind.ORDERED, {}))
    read = (*levels, *queues, *own[Kind.READY], *own[Kind.DLQ], *own[Kind.EVENTS])
    mains = () if relay else (*own.get(Kind.MAIN, {}), *queues)
    ready = () if relay else tuple(own[Kind.READY])
    return Survey(own, there, *(tuple(partition_numbers(there, topics)) for topics in (lane, mains, read, ready)))


def partition_numbers(partitions: Mapping[str, int], topics: Iterable[str]) -> Iterator[Number]:
    """Return every partition of the topics."""
    return ((topic, number) for topic in topics for number in range(partitions[topic]))


def terms_of(settings: Settings, survey: Survey, slack: int, known: Known) -> Terms:
    """Return the terms of the group, without its progress and the offsets of its main topics; `slack` in ms."""
    deliver = settings.deliver
    return Terms(
        names=settings.names,
        delays=survey.waits,
        dlqs=frozenset(survey.own[Kind.DLQ]),
        mains=frozenset(settings.topic_names),
        known=known,
        slack=slack,
        relay=deliver.mode == "relay",
        in_memory=deliver.order != "none" or deliver.mode == "pull",
        foreign=bool(settings.retry.understand),
    )
