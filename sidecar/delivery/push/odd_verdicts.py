"""Count responses that look like a verdict but are not valid, and log each kind."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from reconsume.sidecar.delivery.verdict import ACCEPTED, HEADER, HTML, UNKNOWN_ID

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
    HTML: "a 2xx status and a page of HTML, as from a proxy that wants a login: its records count as done",
    ACCEPTED: "the status 202 and no verdict: its records are done, and work that goes on is lost in a crash",
}
"""What each kind is, for people."""


class OddVerdicts:
    """The counts by kind. Called for each odd response; the log keeps repeated lines to one a minute.

    A page of HTML and a 202 are logged once for each topic: they are either always wrong there, or always meant so.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._named: set[tuple[str, str]] = set()
        """Kind and topic of what is logged once."""

    def count_kinds(self, kinds: Iterable[str], topic: str) -> None:
        """Count the kinds of one response to records of `topic`, and log each."""
        kinds = tuple(kinds)
        self.counts.update(kinds)
        for kind in dict.fromkeys(kinds):
            if (kind, topic) not in self._named:
                extra = {"event": "odd-verdict", "kind": kind, "topic": topic}
                _LOG.warning("a response for %s has %s", topic, MEANING[kind], extra=extra)
            if kind in (HTML, ACCEPTED):
                self._named.add((kind, topic))
