"""The pages of an ordered group's keys: those of which records wait, and the queue of one key.

On the second one is the form that settles its first record (`settle_forms.py`).
"""

from __future__ import annotations

import base64
import binascii

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.waiting_keys import WaitingKey
from reconsume.sidecar.group_policy.blocking import retried_in_place
from reconsume.sidecar.kafka.listed_records import NoQueuesError, WaitingScan, Wanted, read_waiting
from reconsume.sidecar.ui.endpoint import Site
from reconsume.sidecar.ui.pages import LONGEST_TEXT
from reconsume.sidecar.ui.queries import LONGEST
from reconsume.sidecar.ui.security import Session
from reconsume.topics.agreement import SILENT_AFTER

MOST_READ = 200_000
"""Copies that one page reads at most; more are for the command line."""
MOST_KEYS, MOST_RECORDS = 100, 500
"""Keys, and records of one key, that a page shows."""


class KeyPages:
    """The endpoints of these pages."""

    def __init__(self, site: Site) -> None:
        self._render, self._scan, self._looks = site.render, site.scan, site.looks
        self._by_key = site.looks.settings.deliver.order == "key"

    async def _read(self, wanted: Wanted) -> WaitingScan:
        """Return what waits in the queues, in LONGEST seconds at most."""
        looks, order = self._looks, self._looks.settings.order_by
        assert order is not None, "only an ordered group has these pages"
        topics = looks.settings.topic_names
        return await self._scan(
            lambda: read_waiting(looks.cluster, looks.policy, topics, order, wanted, looks.within(LONGEST))
        )

    async def keys(self, request: Request, session: Session | None) -> Response:
        """Show the keys of which records wait, those with the longest queues first."""
        try:
            scan = await self._read(Wanted(None, MOST_READ))
        except NoQueuesError:  # its keys are retried in place, of which the heartbeats tell
            scan = None
        keys = [] if scan is None else sorted(scan.keys.by_due(), key=lambda key: -key.waiting)
        news = await self._scan(self._looks.heartbeats)
        retried = retried_in_place(news.beats, wall() - SILENT_AFTER)
        tried = {key.first.id: retried.in_queue(key.first.id, key.first.due) for key in keys}
        rows = [(key, self._coded(key), tried[key.first.id]) for key in keys[:MOST_KEYS]]
        return self._render(
            "keys.html", session=session, here="/keys", rows=rows, count=len(keys), scan=scan, by_key=self._by_key,
            retried=retried, named=retried.in_no_queue(tried),
        )  # fmt: skip

    def _coded(self, key: WaitingKey) -> str | None:
        """Return the key in Base64, by which its page is found; None if the key cannot be named."""
        return None if key.whole is None or not self._by_key else _coded(key.whole)

    async def queue(self, request: Request, session: Session | None) -> Response:
        """Show the queue of one key: its first record, and what is behind it."""
        key = key_of(request.query_params)
        if key is None or not self._by_key:
            text = "That is no key." if self._by_key else "The order of this group is by partition: no key has a queue."
            return self._render("error.html", 400, session=session, here="/keys", text=text)
        scan = await self._read(Wanted(key, MOST_READ, MOST_RECORDS))
        keys, coded = scan.keys.by_due(), _coded(key)
        return self._render("key.html", session=session, here="/keys", key=key, coded=coded, scan=scan, keys=keys)


def _coded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def key_of(query: QueryParams) -> bytes | None:
    """Return the key that a page is about: `key` as text, or `base64`; None if it is neither."""
    if text := query.get("key", "")[:LONGEST_TEXT]:
        return text.encode("utf-8", "surrogatepass")
    if (coded := query.get("base64")) is None or len(coded) > LONGEST_TEXT:
        return None
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        return None
