"""What an ordered group is told about its settings."""

from __future__ import annotations

from reconsume.sidecar.settings.model import Settings
from reconsume.topics.durations import render_duration


def overlapping(settings: Settings) -> list[str]:
    """Return a sentence if a partition that is taken away waits less long than a delivery may take (contract 5.4)."""
    if settings.order_by is None:
        return []
    own = [topic.timeout for topic in settings.topics if topic.timeout is not None]
    longest = max([settings.deliver.timeout, *own])
    if longest <= settings.lock_timeout:
        return []
    takes, waits = render_duration(longest), render_duration(settings.lock_timeout)
    return [
        f"a delivery may take {takes} (deliver.timeout), and a partition that is taken away waits {waits} for it "
        "(lock_timeout): two records of a key may be out at once then; make lock_timeout the longer one"
    ]
