"""Say in the log when instances of the group want different records, and when they agree again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.heartbeat_reader import GroupMembers
from reconsume.sidecar.settings.group_policy import flow
from reconsume.topics import versions

_LOG = logging.getLogger("reconsume.policy")


class SubscriptionLog:
    """Compares this instance's subscription with the others', and remembers what was logged last."""

    def __init__(self, members: GroupMembers, clock: Callable[[], Now]) -> None:
        self._members, self._clock = members, clock
        self._differing: Mapping[str, Mapping[str, str]] = {}
        self._newer_logged = False
        """Whether it was logged that heartbeats of a newer version cannot be read. Each instance sends one a minute."""

    def compare(self) -> None:
        """Log once that another instance wants other records, and once that all agree again."""
        differing = self._members.differing(self._clock())
        if differing and differing != self._differing:
            name, other = next(iter(differing.items()))
            _LOG.warning(
                "instances of one group want different records: here %s, %s %s; give all of them the same topics and "
                "tags, or each its own group (%d differ)",
                flow(self._members.own),
                name,
                flow(dict(other)),
                len(differing),
                extra={"event": "subscriptions-differ"},
            )
        elif self._differing and not differing:
            _LOG.info("all instances want the same records again", extra={"event": "subscriptions-agree"})
        self._differing = differing

    def name_newer(self, instance: str, v: int) -> None:
        """Log once that the heartbeats of an instance are of a newer version, `v`, and not compared."""
        if not self._newer_logged:
            self._newer_logged = True
            text, extra = "subscriptions of newer instances are not compared; %s", {"event": "policy-newer-instances"}
            _LOG.info(text, f"{instance}: {versions.sentence(v)}", extra=extra)
