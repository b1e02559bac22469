"""The page that finds a record that is not done by its key, value, headers or id. Nothing is changed here."""

from __future__ import annotations

import base64
import binascii
import shlex
import time
import zlib

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.dlq.letters import fault_of_text
from reconsume.sidecar.find.finder import FindResult, Positions, SearchBounds, ValuesHiddenError, find
from reconsume.sidecar.find.match import Query, Where, origin_in
from reconsume.sidecar.hints import hint
from reconsume.sidecar.ui.endpoint import Site
from reconsume.sidecar.ui.pages import LONGEST_TEXT
from reconsume.sidecar.ui.queries import LONGEST
from reconsume.sidecar.ui.security import Session
from reconsume.sidecar.view.query import BadCursorError

SECONDS, PATIENCE = 8.0, 4.0
"""Seconds of one page's search, and those that a partition may not respond. What is left is searched by its link."""
ROWS = 50
MOST_BYTES = 256 * 1024 * 1024
MOST_CURSOR = 256 * 1024
"""Bytes of a cursor that is unpacked; a partition takes some 15."""
_DECODER = msgspec.msgpack.Decoder(dict[str, list[tuple[int, int]]])


class FindPage:
    """The endpoint of this page."""

    def __init__(self, site: Site) -> None:
        self._render, self._scan, self._looks, self._gate = site.render, site.scan, site.looks, site.gate

    async def find(self, request: Request, session: Session | None) -> Response:
        """Show the newest records that contain a text and are not done, and a link that searches on."""
        text = request.query_params.get("text", "").strip()[:LONGEST_TEXT]
        values = self._gate.opens_to(session)
        cursor = request.query_params.get("cursor")
        rest = None if cursor is None else positions_in(cursor)
        result, hidden = None, ""
        if text:
            try:
                result = await self._scan(lambda: self._find(text, rest, values=values))
            except ValuesHiddenError as error:
                hidden = str(error)
        more = {"text": text, "cursor": cursor_of(result.rest)} if result is not None and result.rest else None
        return self._render(
            "find.html", session=session, here="/records", text=text, result=result, hidden=hidden, more=more,
            values=values, dead=Where.DEAD, is_id=origin_in(text) is not None, command=command_of(text),
        )  # fmt: skip

    def _find(self, text: str, rest: Positions | None, *, values: bool) -> FindResult:
        looks = self._looks
        query = Query(text.encode(errors="surrogatepass"))
        if origin_in(text) is not None:
            query = Query(id=text)
        bounds = SearchBounds(ROWS, MOST_BYTES, time.monotonic() + SECONDS, PATIENCE)
        return find(looks.settings, looks.policy, query, bounds, looks.within(LONGEST), values=values, rest=rest)


def command_of(text: str) -> str:
    """Return the command that makes the same search, quoted for a shell; empty if the text cannot be typed."""
    if not text.isprintable() or fault_of_text(text):
        return ""
    words = ["--id", text] if origin_in(text) is not None else ["--", text] if text.startswith("-") else [text]
    return f"{hint('find')} {shlex.join(words)}"


def cursor_of(rest: Positions) -> str:
    """Return where a search goes on as a text for a link."""
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for (topic, number), end in rest.items():
        by_topic.setdefault(topic, []).append((number, end))
    return base64.urlsafe_b64encode(zlib.compress(msgspec.msgpack.encode(by_topic))).decode()


def positions_in(cursor: str) -> Positions:
    """Return the positions in a cursor. Raises BadCursorError if it is none of ours."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(cursor, b"-_", validate=True), MOST_CURSOR)
        by_topic = _DECODER.decode(data)
    except (binascii.Error, ValueError, zlib.error, msgspec.DecodeError) as error:
        raise BadCursorError("this is no cursor of a search") from error
    return {(topic, number): end for topic, ends in by_topic.items() for number, end in ends}
