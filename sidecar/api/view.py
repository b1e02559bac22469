"""`/v1/view/*` (contract 11.3): the group-wide view from the local copy, with the age of each answer.

404 means that the view has no such message. 503 means that nothing is known: the copy was never read to its end, or the
view was never written. The file is read by a few threads of its own, never on the event loop. Only few calls may wait
for these threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import now
from reconsume.sidecar.http.calls import Call, Caller, Endpoint, may_see_values
from reconsume.sidecar.http.json_body import MEDIA_TYPE, RefusedError
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.view.query import Filters, Origin, Page, QueryPool, age
from reconsume.topics.durations import parse_duration
from reconsume.topics.events import State

MOST_ROWS = 1_000
USUAL_ROWS = 100
USUAL_SINCE = 3_600_000
LONGEST_SINCE = 7 * 86_400_000
"""ms. The sums are kept for this long."""
LONGEST_TEXT = 4_096
PATHS = ("messages", "messages/{id:path}", "stats")


class ViewCalls:
    """The endpoints of the view."""

    def __init__(self, readers: QueryPool) -> None:
        self._readers = readers

    async def message(self, request: Request) -> Response:
        """Return one message's VIEW value."""
        read_query(request, ())
        key = request.path_params["id"]
        value, origin = await self._readers.ask(lambda query: query.message(key))
        if value is None:
            text = "The view has no such message: it never failed, or it is forgotten."
            return problem(404, text, headers_of(origin))
        (shown,) = shown_to(request, [value])
        return Response(shown, media_type=MEDIA_TYPE, headers=headers_of(origin))

    async def messages(self, request: Request) -> Response:
        """Return a page of messages; those that are due first come first."""
        parameters = read_query(request, ("state", "level", "topic", "reason", "due_before", "limit", "cursor"))
        due_before = None if "due_before" not in parameters else read_moment(parameters["due_before"])
        filters = Filters(
            read_state(parameters.get("state")),
            parameters.get("level"),
            parameters.get("topic"),
            parameters.get("reason"),
            due_before,
        )
        limit, cursor = read_limit(parameters.get("limit")), parameters.get("cursor")
        page, origin = await self._readers.ask(lambda query: query.messages(filters, limit, cursor))
        return page_response("messages", page._replace(values=shown_to(request, page.values)), origin)

    async def stats(self, request: Request) -> Response:
        """Return sums by minute."""
        parameters = read_query(request, ("since", "limit", "cursor"))
        since = now().wall_ms - read_since(parameters.get("since"))
        limit, cursor = read_limit(parameters.get("limit"), MOST_ROWS), parameters.get("cursor")
        page, origin = await self._readers.ask(lambda query: query.sums(since, limit, cursor))
        return page_response("stats", page, origin._replace(since=origin.sums_since))


def view_routes(readers: QueryPool) -> list[Call]:
    """Return the routes of the view. The calls change nothing."""
    calls = ViewCalls(readers)
    endpoints = (calls.messages, calls.message, calls.stats)
    return [_call(path, call) for path, call in zip(PATHS, endpoints, strict=True)]


def no_view_routes() -> list[Call]:
    """Return the same routes for a sidecar that follows no view. Each answers why."""

    async def absent(_request: Request) -> Response:
        return problem(404, "This sidecar does not follow the group's view: view.enabled is false.")

    return [_call(path, absent) for path in PATHS]


def _call(path: str, endpoint: Endpoint) -> Call:
    return Call(f"/v1/view/{path}", endpoint, Caller.READ)


# --- reading a call ---------------------------------------------------------------------------------------------------


def read_query(request: Request, known: Sequence[str]) -> dict[str, str]:
    """Return the parameters. Raises RefusedError if one is unknown, empty, too long or given twice."""
    parameters = request.query_params.multi_items()
    query = dict(parameters)
    if not query.keys() <= set(known):
        raise RefusedError(f"The call knows {', '.join(known) or 'no parameters'}, and nothing else.")
    if len(query) < len(parameters) or any(not 0 < len(value) <= LONGEST_TEXT for value in query.values()):
        raise RefusedError("Each parameter may be given once, and not be empty.")
    return query


def read_state(text: str | None) -> State | None:
    """Return the state; None if none is given. Raises RefusedError if it does not exist."""
    try:
        return None if text is None else State(text.upper())
    except ValueError:
        raise RefusedError(f"state must be {', '.join(State)}.") from None


def read_limit(text: str | None, usual: int = USUAL_ROWS) -> int:
    """Return the number of rows. Raises RefusedError if it is out of bounds."""
    limit = usual if text is None else int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    if not 1 <= limit <= MOST_ROWS:
        raise RefusedError(f"limit must be a whole number from 1 to {MOST_ROWS}.")
    return limit


def read_since(text: str | None) -> int:
    """Return a length of time in ms. Raises RefusedError if it is not a duration within bounds."""
    try:
        length = USUAL_SINCE if text is None else parse_duration(text)
    except ValueError:
        length = 0
    if not 0 < length <= LONGEST_SINCE:
        raise RefusedError("since must be a duration up to 7d, written like 1h.")
    return length


def read_moment(text: str) -> int:
    """Return epoch ms from digits or RFC 3339. Raises RefusedError if the text is neither."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise RefusedError("due_before must be epoch milliseconds, or RFC 3339 with a time zone (a + is written %2B).")


# --- answering it -----------------------------------------------------------------------------------------------------


def shown_to(request: Request, rows: list[bytes]) -> list[bytes]:
    """Return rows of the view without the texts of failures, if the caller may not see them."""
    if may_see_values(request):
        return rows
    decoded = [msgspec.json.decode(row, type=dict[str, msgspec.Raw]) for row in rows]
    return [msgspec.json.encode({name: value for name, value in row.items() if name != "text"}) for row in decoded]


def headers_of(origin: Origin) -> dict[str, str]:
    """Return the headers with the origin of an answer: `Age` in seconds, the moment itself (epoch ms), the source."""
    as_of = origin.as_of
    headers = {"reconsume-as-of": str(as_of), "reconsume-view-source": str(origin.source)}
    return {"cache-control": "no-store", "age": str(int(age(as_of))), **headers}


def page_response(name: str, page: Page, origin: Origin) -> Response:
    """Return the response with a page. Its rows are JSON already."""
    rows = msgspec.Raw(b"[" + b",".join(page.values) + b"]")
    rest = {"cursor": page.cursor, **told_origin(origin)}
    return Response(msgspec.json.encode({name: rows, **rest}), media_type=MEDIA_TYPE, headers=headers_of(origin))


def told_origin(origin: Origin) -> dict[str, object]:
    """Return the fields that say where an answer comes from, how old it is and what it lacks."""
    return {
        "source": str(origin.source),
        "as_of": origin.as_of,
        "age_seconds": age(origin.as_of),
        "complete_since": origin.since or None,
        "shortfall": origin.shortfall or None,
    }
