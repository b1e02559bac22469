"""`/v1/settle` (contract 5.7): an operator's decision about records that wait, one or many.

`DecisionCalls` of `sidecar/dlq/settle_waiting.py` plans and writes it, as `reconsume settle` does, on threads of its
own: a call may take ten seconds, and few may be in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.api.holds import author_of
from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.dlq.settle_request import (
    NotWaitingError,
    Settled,
    SettleRequest,
    settle_request,
    waiting_request,
)
from reconsume.sidecar.errors import LetterError, RecordError
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import Fields, RefusedError, read_fields
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.kafka.clients import one_operation
from reconsume.sidecar.printable import printable

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.settle_waiting import DecisionCalls

PATH = "/v1/settle"
FIELDS = ("id", "waiting", "how", "why", "rate", "dry_run")
MOST_AT_ONCE = 4
"""Calls under way, each on a thread of its own. One more is refused, so that callers in a loop do no harm."""
UNKNOWN = "No such decision is known."


def settle_routes(connect: Callable[[], DecisionCalls], topics: Sequence[str]) -> list[Call]:
    """Return the routes of the calls. `connect`: returns what decides, with the credentials of now; it is called on a
    thread of these calls. `topics`: the main topics, of which a decision may name one.
    """
    threads = BoundedThreads("settle", MOST_AT_ONCE, MOST_AT_ONCE, one_operation)

    async def decide(request: Request) -> Response:
        """Write a decision: 202 with its id, of one record 200 once it is done. A dry run answers 200 with the plan."""
        fields = await read_fields(request, FIELDS)
        if not isinstance(dry_run := fields["dry_run"] or False, bool):
            raise RefusedError("dry_run must be true, or left out.")
        wanted = _wanted(fields, author_of(request), topics)
        try:
            return _answer_of(wanted, await threads(lambda: connect().settle(wanted, dry_run=dry_run)))
        except NotWaitingError:
            return problem(404, "No such record waits in this group.")
        except LetterError as fault:
            return problem(409, f"{str(fault).replace(printable(wanted.id), 'the record')}.")

    async def status(request: Request) -> Response:
        """Return how far a decision is."""
        ident = request.path_params["id"]
        try:
            return json_answer(dict(await threads(lambda: connect().status(ident))))
        except RecordError:
            return problem(404, UNKNOWN)

    async def end(request: Request) -> Response:
        """End a decision."""
        ident, who = request.path_params["id"], author_of(request)
        try:
            await threads(lambda: connect().end(ident, who))
        except RecordError:
            return problem(404, UNKNOWN)
        return Response(status_code=204)

    return [
        Call(PATH, decide, Caller.OPERATOR, "POST"),
        Call(PATH + "/{id}", status, Caller.OPERATOR),
        Call(PATH + "/{id}", end, Caller.OPERATOR, "DELETE"),
    ]


def _wanted(fields: Fields, by: str, topics: Sequence[str]) -> SettleRequest:
    """Return the decision that a call asks for. Raises RefusedError if it is not one."""
    ident, waiting = fields["id"], fields["waiting"]
    if (ident is None) == (waiting is None):
        raise RefusedError("id must name one record, or waiting must say which ones are meant.")
    try:
        if waiting is None:
            return settle_request(ident, fields["how"], fields["why"], by, fields["rate"])
        if not isinstance(waiting, dict):
            raise RefusedError("waiting must be an object of conditions; an empty one means all that waits.")
        if waiting.get("topic") not in (None, *topics):  # the sentence of `waiting_request` repeats the caller's word
            raise RefusedError(f"topic must be one of the group's main topics: {', '.join(topics)}.")
        return waiting_request(waiting, fields["how"], fields["why"], by, fields["rate"], topics)
    except RefusedError:
        raise
    except ValueError as fault:
        raise RefusedError(f"{fault}.") from None


def _answer_of(wanted: SettleRequest, settled: Settled) -> Response:
    if settled.done is False:
        return problem(409, "Nothing was settled: the record had ended, or was delivered before.")
    fields: dict[str, object] = {"decision": settled.decision or None, "how": wanted.how, "records": settled.records}
    if wanted.id:
        fields |= {"id": wanted.id, "done": bool(settled.done)}
    else:
        fields["plan"] = [dict(row) for row in settled.rows]
    return json_answer(fields, 202 if settled.decision and not settled.done else 200)
