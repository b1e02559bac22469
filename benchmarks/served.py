"""When a sidecar that follows the view answers with a row: the last moment of `spark_freshness`."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable

from reconsume.topics.events import Event

PORT = 19_998
SETTINGS = (f"api.listen=127.0.0.1:{PORT}", "api.probe_listen=null", "view.enabled=true", "view.source=spark")
EVERY = 0.25
"""Seconds between two events that are asked for: so that they fall anywhere in the job's batches."""
PAUSE = 0.02
"""Seconds between two rounds of questions: so much an age may be too great, beside the round's own time."""


class Asker(threading.Thread):
    """Asks the sidecar on PORT for the event that was written last, every EVERY seconds for another, until it has it.

    `newest` is that event, None while there is none. `take` gives the ages that were seen since, in ms.
    """

    def __init__(self, newest: Callable[[], Event | None], now: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._newest, self._now = newest, now
        self._ages: list[int] = []
        self._ended = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)

    def run(self) -> None:
        """Ask until ended."""
        waiting: list[Event] = []
        due = 0.0
        while not self._ended.wait(PAUSE):
            event = self._newest()
            if event is not None and time.monotonic() >= due:
                due = time.monotonic() + EVERY
                waiting.append(event)
            waiting = [event for event in waiting if not self._is_served(event)]

    def take(self) -> list[int]:
        """The ages since it was called last, sorted."""
        ages, self._ages = self._ages, []
        return sorted(ages)

    def end(self) -> None:
        """Ask no more."""
        self._ended.set()
        self.join()

    def _is_served(self, event: Event) -> bool:
        """Whether the sidecar tells of it; notes its age if so."""
        served = self._told_at(event.id) >= event.at
        if served:
            self._ages.append(self._now() - event.at)
        return served

    def _told_at(self, identity: str) -> int:
        """When the newest event that the sidecar knows of was written; -1 when it knows none, or does not listen."""
        try:
            self._connection.request("GET", f"/v1/view/messages/{identity}")
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            time.sleep(0.2)
            return -1
        return int(json.loads(body)["at"]) if answer.status == 200 else -1
