"""Compare the other instances of the group with this one: log once whether they want the same records."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sidecar.clock import now
from sidecar.core.participation import Others
from sidecar.group_policy.members import GroupMembers
from sidecar.settings.group_policy import flow
from topics import versions
from topics.policy_record import SubscriptionRecord

_LOG = logging.getLogger("reconsume.policy")


class Peers:
    """The subscriptions of the other instances, compared with this one's. All calls come on the event loop."""

    def __init__(self, instance: str, subscription: Mapping[str, str]) -> None:
        self._own = subscription
        self._roster = GroupMembers(instance, subscription)
        self._differing: Mapping[str, Mapping[str, str]] = {}
        self._newer_told = False

    def hear(self, instance: str, record: SubscriptionRecord | None, *, live: bool) -> None:
        """Process a heartbeat. `record` is None if the instance stopped cleanly."""
        self._roster.hear(instance, record, now(), live=live)

    def hear_newer(self, instance: str, v: int) -> None:
        """Log once that heartbeats of a newer version cannot be read. Each instance sends one a minute."""
        if not self._newer_told:
            self._newer_told = True
            text, extra = "subscriptions of newer instances are not compared; %s", {"event": "policy-newer-instances"}
            _LOG.info(text, f"{instance}: {versions.sentence(v)}", extra=extra)

    def others(self) -> Others:
        """Return whether other instances are well."""
        return self._roster.others(now())

    def differing(self) -> dict[str, Mapping[str, str]]:
        """Return the instances that want other records, with their subscriptions."""
        return self._roster.differing(now())

    def compare(self) -> None:
        """Log once that another instance wants other records, and once that all agree again."""
        differing = self.differing()
        if differing and differing != self._differing:
            name, other = next(iter(differing.items()))
            _LOG.warning(
                "instances of one group want different records: here %s, %s %s; give all of them the same topics and "
                "tags, or each its own group (%d differ)",
                flow(self._own),
                name,
                flow(dict(other)),
                len(differing),
                extra={"event": "subscriptions-differ"},
            )
        elif self._differing and not differing:
            _LOG.info("all instances want the same records again", extra={"event": "subscriptions-agree"})
        self._differing = differing
