"""Count what looks like a verdict and is none, and name each kind in the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from reconsume.sidecar.delivery.verdict import HEADER, UNKNOWN_ID

_LOG = logging.getLogger("reconsume.verdict")

MEANING = {
    HEADER: "a Reconsume-Verdict that cannot be read: each is a retry",
    "unknown-word": "JSON with a field `verdict` that is none of our words",
    "not-json": "a JSON content type, and a body that is no JSON",
    "encoded": "a JSON content type, and a body in another encoding",
    "too-long": "a JSON content type, and a body that is longer than a verdict can be",
    UNKNOWN_ID: "verdicts for records that were not in the request",
    "delay": "a `postpone` whose delay is no duration or out of bounds: the nearer bound or 10s is taken",
    "expires": "a `retry` whose expires is neither a time nor a duration: it never expires by this answer",
    "no-id": "a list of verdicts that names no record of the request",
}
"""What each kind is, for people."""


class OddVerdicts:
    """The counts by kind. Called for each odd answer; the log keeps repeated lines to one a minute."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, kinds: Iterable[str]) -> None:
        """Count one answer's kinds, and log each."""
        kinds = tuple(kinds)
        self.counts.update(kinds)
        for kind in dict.fromkeys(kinds):
            extra = {"event": "odd-verdict", "kind": kind}
            _LOG.warning("the service's answer has %s", MEANING[kind], extra=extra)
