"""How the records of a main topic are delivered: where to, how fast, how many at once; notes for `explain`."""

from __future__ import annotations

from collections.abc import Iterator

from reconsume.sidecar.masking import text_without_secrets
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.deliver import Subscription
from reconsume.topics.durations import render_duration
from reconsume.topics.rates import render_rate


def notes_of_limits(settings: Settings, main: str) -> list[str]:
    """Return what a main topic has of its own, and which limits bind its records, a sentence each."""
    topic = next(one for one in settings.topics if one.name == main)
    return [*_of_topic(topic), *_rates(settings, topic)]


def _of_topic(topic: Subscription) -> Iterator[str]:
    own = []
    if topic.path is not None:
        own.append(f"path {text_without_secrets(topic.path)}")
    if topic.timeout is not None:
        own.append(f"timeout {render_duration(topic.timeout)}")
    if topic.concurrency is not None:
        own.append(f"at most {plural(topic.concurrency, 'request')} at once")
    if own:
        yield f"{topic.name} has of its own, for retries and redrives too: {', '.join(own)}"


def _rates(settings: Settings, topic: Subscription) -> Iterator[str]:
    deliver = settings.deliver
    if topic.rate is not None:
        yield f"an instance delivers at most {render_rate(topic.rate)} of its records, fresh ones and retries together"
    if deliver.rate is not None:
        yield f"an instance delivers at most {render_rate(deliver.rate)} of all records (deliver.rate)"
    if deliver.group_rate is not None:
        whole = render_rate(deliver.group_rate)
        yield f"the group delivers at most {whole}, each instance by the partitions it owns (deliver.group_rate)"
    if topic.rate is not None or deliver.rate is not None or deliver.group_rate is not None:
        yield "the smallest of these binds; a record that waits for it is late, and spends no retry"
