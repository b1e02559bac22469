"""What users are told about settings and a policy with which a delivery may take longer than anything waits for it."""

from __future__ import annotations

from collections.abc import Mapping

from reconsume.sidecar.settings.model import Settings
from reconsume.topics.durations import render_duration
from reconsume.topics.policy_record import SubscriptionRecord

MOST_NAMED = 3


def short_waits(settings: Settings) -> list[str]:
    """Return a sentence for each wait that ends before the longest delivery does (contract 5.4, 9.1)."""
    if settings.deliver.mode != "push":
        return []
    longest, takes = settings.longest_delivery, render_duration(settings.longest_delivery)
    released, drained = settings.release_wait, settings.drain_wait
    sentences = []
    if released < longest:
        what = "a record" if settings.order_by is None else "two records of a key"
        twice = "may be delivered twice at once" if settings.order_by is None else "may be in flight at once"
        sentences.append(
            f"a delivery may take {takes} (deliver.timeout), and a partition that a rebalance takes away waits "
            f"{render_duration(released)} for it (lock_timeout): {what} {twice} then; shorten the timeout, or make "
            "lock_timeout the longer one"
        )
    if drained < longest:
        sentences.append(
            f"a delivery may take {takes} (deliver.timeout), and a stop waits {render_duration(drained)} for it "
            "(drain_timeout): a delivery that is cut off is made again; shorten the timeout, or make drain_timeout "
            "and the grace period longer"
        )
    return sentences


def short_waits_of_instances(settings: Settings, instances: Mapping[str, SubscriptionRecord]) -> list[str]:
    """Return a sentence for each wait that ends before the longest delivery does, at a live instance.

    `settings`: those that the policy would make. `instances`: what live instances say of themselves, by name.
    """
    if settings.deliver.mode != "push":
        return []
    longest, sentences = settings.longest_delivery, []
    for setting, what in (
        ("lock_timeout", "a partition that a rebalance takes away waits"),
        ("drain_timeout", "a stop waits"),
    ):
        waits = {name: getattr(record, setting) for name, record in instances.items()}
        short = {name: wait for name, wait in waits.items() if isinstance(wait, int) and wait < longest}
        if short:
            names = ", ".join(sorted(short)[:MOST_NAMED]) + (" and others" if len(short) > MOST_NAMED else "")
            sentences.append(
                f"a delivery may take {render_duration(longest)} then, and at {names} {what} at most "
                f"{render_duration(min(short.values()))} for it ({setting}): a delivery that is cut off is made again"
            )
    return sentences
