"""Checks of what a main topic has of its own, and of rates."""

from __future__ import annotations

from collections.abc import Iterator

from reconsume.sidecar.settings.faults import Fault
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.rates import Rate, render_rate

OF_REQUESTS = ("path", "timeout", "concurrency", "content_type")
"""What a topic may have of its own that is for requests to the service."""


def topics_have_effect(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each setting of a topic that has no effect in the mode of delivery."""
    mode = settings.deliver.mode
    if mode == "push":
        return
    why = "is for push mode; in pull mode the service calls the sidecar"
    if mode == "relay":
        why = "has no effect in relay mode, where the service reads Kafka itself"
    for number, topic in enumerate(settings.topics):
        for name in (*OF_REQUESTS, *(["rate"] if mode == "relay" else [])):
            if getattr(topic, name) is not None:
                yield Fault(("topics", number, name), f"{why}; leave it out", has_value=False)


def rates_have_effect(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if a rate of the group is set where all instances get every record."""
    deliver = settings.deliver
    if deliver.broadcast and deliver.group_rate is not None:
        text = "cannot be divided in broadcast mode, where each instance gets every record; set deliver.rate"
        yield Fault(("deliver", "group_rate"), text, render_rate(deliver.group_rate))


CHECKS_OF_TOPICS = (
    (topics_have_effect, (("topics",), ("deliver", "mode"))),
    (rates_have_effect, (("deliver", "broadcast"), ("deliver", "group_rate"))),
)


def without_effect(settings: Settings) -> list[str]:
    """Return a sentence for each limit of a topic that never binds, as a limit of all binds first."""
    deliver = settings.deliver
    sentences = []
    for topic in settings.topics:
        if topic.concurrency is not None and topic.concurrency > deliver.concurrency:
            sentences.append(
                f"topics: concurrency {topic.concurrency} of {topic.name} has no effect: deliver.concurrency is "
                f"{deliver.concurrency}"
            )
        if topic.rate is not None and deliver.rate is not None and _above(topic.rate, deliver.rate):
            sentences.append(
                f"topics: rate {render_rate(topic.rate)} of {topic.name} has no effect: deliver.rate is "
                f"{render_rate(deliver.rate)}"
            )
    return sentences


def _above(one: Rate, other: Rate) -> bool:
    return one.count * other.per_ms > other.count * one.per_ms
