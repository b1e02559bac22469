"""Which of a cluster's topics an audit of a group reads, and by which terms the group is judged. No IO here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sidecar.audit.facts import Known, Number, Terms, topics_of
from sidecar.errors import ContractError
from sidecar.settings import Settings
from topics.names import Kind


class Survey(NamedTuple):
    """The group's topics that are there, and the partitions of those that are read."""

    own: Mapping[Kind, Mapping[str, int]]
    partitions: Mapping[str, int]
    retries: tuple[Number, ...]
    """Whose progress the retry lane commits."""
    mains: tuple[Number, ...]
    """Whose progress the main lane commits; none of a relay."""
    read: tuple[Number, ...]

    @property
    def waits(self) -> dict[str, int]:
        """Every topic where copies wait, with its delay in ms."""
        return {**self.own.get(Kind.LEVEL, {}), **self.own[Kind.READY]}


def survey_of(settings: Settings, there: Mapping[str, int]) -> Survey:
    """What to read of the topics that are there (with their numbers of partitions); ContractError when some lack."""
    own = topics_of(settings.names, settings.topic_names, there)
    if settings.deliver.broadcast:
        raise ContractError("a broadcast retries nothing, and has no topics to audit")
    absent = [kind for kind in (Kind.EVENTS, Kind.READY, Kind.DLQ) if kind not in own]
    if absent:
        raise ContractError(f"the group has no {' and no '.join(absent)} topic; `reconsume topics apply` makes them")
    relay, levels = settings.deliver.mode == "relay", own.get(Kind.LEVEL, {})
    lane = levels if relay else {**levels, **own[Kind.READY]}
    read = (*levels, *own[Kind.READY], *own[Kind.DLQ], *own[Kind.EVENTS])
    mains = () if relay else tuple(own.get(Kind.MAIN, {}))
    return Survey(own, there, *(tuple(places(there, topics)) for topics in (lane, mains, read)))


def places(partitions: Mapping[str, int], topics: Iterable[str]) -> Iterator[Number]:
    """Every partition of the topics."""
    return ((topic, number) for topic in topics for number in range(partitions[topic]))


def terms_of(settings: Settings, survey: Survey, slack: int, known: Known) -> Terms:
    """By what the group is judged, but for its progress and its main topics; `slack` in ms."""
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
