"""`POST /v1/settle` (contract 5.7): a person's decision about a record that waits in a queue.

It is made by the function of `reconsume settle`, on threads of its own: a call may take ten seconds, and few may be
under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.api.holds import author_of, text_of
from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.errors import BrokerError, ReconsumeError
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import Fields, RefusedError, read_fields, refusing
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.printable import printable
from reconsume.topics.policy_record import LONGEST_ID, LONGEST_WHY, WAYS
from reconsume.topics.retry_headers import ID

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.decisions import Decided

PATH = "/v1/settle"
FIELDS = ("id", "how", "why")
MOST_AT_ONCE = 4
"""Calls under way, each on a thread of its own. One more is refused, so that callers in a loop do no harm."""
RETRY_AFTER = {"retry-after": "5"}
NO_QUEUES = "No record of this group waits in a queue: deliver.order is none."


class Settle(Protocol):
    """Settles a record. Called on a thread of this module."""

    def __call__(self, ident: str, how: str, why: str, by: str) -> Decided:
        """Return what became of the decision in some ten seconds. Raises ReconsumeError."""


class SettleCalls:
    """The endpoint of decisions. `settle`: None if the group has no queues."""

    def __init__(self, settle: Settle | None) -> None:
        self._settle = settle
        self._threads = BoundedThreads("settle", MOST_AT_ONCE, MOST_AT_ONCE)

    async def settle(self, request: Request) -> Response:
        """Settle one record: 200 if it was carried out, 202 if it is written and not carried out yet."""
        fields, settle = await read_fields(request, FIELDS), self._settle
        ident, how, why = wanted_of(fields)
        if settle is None:
            return problem(404, NO_QUEUES)
        by = author_of(request)
        return await self._threads(lambda: _answer(settle, ident, how, why, by))


def settle_routes(settle: Settle | None) -> list[Call]:
    """Return the route of the call. `settle`: None if the group has no queues; then the call says so."""
    return [Call(PATH, refusing(SettleCalls(settle).settle), Caller.OPERATOR, "POST")]


def _answer(settle: Settle, ident: str, how: str, why: str, by: str) -> Response:
    # A value, not an error: an error that crosses the task would keep the clients of Kafka in its frames.
    try:
        return answer_of(ident, how, settle(ident, how, why, by))
    except ReconsumeError as fault:
        return refusal_of(fault, ident)


def wanted_of(fields: Fields) -> tuple[str, str, str]:
    """Return the record's id, what is decided, and why. Raises RefusedError."""
    ident, how = text_of(fields, "id", LONGEST_ID), fields["how"]
    why = text_of(fields, "why", LONGEST_WHY)
    if ident is None or ID.fullmatch(ident.encode()) is None:
        raise RefusedError("id must be the id of one record, topic:partition:offset.")
    if how not in WAYS:
        raise RefusedError(f"how must be one of {', '.join(WAYS)}.")
    if why is None or not why.strip():
        raise RefusedError("why must be the reason, for whoever looks later.")
    return ident, how, why


def answer_of(ident: str, how: str, decided: Decided) -> Response:
    """Return the response to a decision that is written."""
    state = None if decided.event is None else str(decided.event.state)
    fields = {"id": ident, "how": how, "done": decided.as_decided, "state": state}
    return json_answer(fields, 200 if decided.as_decided else 202)


def refusal_of(fault: ReconsumeError, ident: str) -> Response:
    """Return the response to a call that settles nothing. `ident`: the caller's word, which the text leaves out."""
    from reconsume.sidecar.dlq.queue_settler import (
        NotWaitingError,  # an import at the top would cost groups without order memory
    )

    if isinstance(fault, NotWaitingError):
        return problem(404, "No such record waits in a queue of this group.")
    text = str(fault).replace(printable(ident), "the record")
    return problem(503, f"{text}.", RETRY_AFTER) if isinstance(fault, BrokerError) else problem(409, f"{text}.")
