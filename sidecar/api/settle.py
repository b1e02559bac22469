"""`POST /v1/settle` (contract 5.7): an operator's decision about a record that waits in a queue.

It is made by `Settler` of `sidecar/dlq/settle.py`, as for `reconsume settle`, on threads of its own: a call may take
ten seconds, and few may be under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.api.holds import author_of
from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.dlq.settle_request import Decided, NotWaitingError, SettleRequest, settle_request
from reconsume.sidecar.errors import BrokerError, ReconsumeError
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import RefusedError, read_fields
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.printable import printable

MOST_AT_ONCE = 4
"""Calls under way, each on a thread of its own. One more is refused, so that callers in a loop do no harm."""
RETRY_AFTER = {"retry-after": "5"}
NO_QUEUES = "No record of this group waits in a queue: deliver.order is none."

Settle: TypeAlias = Callable[[SettleRequest], Decided]
"""Returns what became of a decision in some ten seconds. Called on a thread of this module. Raises ReconsumeError."""


def settle_routes(settle: Settle | None) -> list[Call]:
    """Return the route of the call. `settle`: None if the group has no queues; then the call says so."""
    threads = BoundedThreads("settle", MOST_AT_ONCE, MOST_AT_ONCE)

    async def answer(request: Request) -> Response:
        """Settle one record: 200 if it was carried out, 202 if it is written and not carried out yet."""
        fields = await read_fields(request, ("id", "how", "why"))
        try:
            wanted = settle_request(fields["id"], fields["how"], fields["why"], author_of(request))
        except ValueError as fault:
            raise RefusedError(f"{fault}.") from None
        return problem(404, NO_QUEUES) if settle is None else await threads(lambda: _answer(settle, wanted))

    return [Call("/v1/settle", answer, Caller.OPERATOR, "POST")]


def _answer(settle: Settle, wanted: SettleRequest) -> Response:
    # A value, not an error: an error that crosses the task would keep the clients of Kafka in its frames.
    try:
        decided = settle(wanted)
    except NotWaitingError:
        return problem(404, "No such record waits in a queue of this group.")
    except ReconsumeError as fault:
        text = f"{str(fault).replace(printable(wanted.id), 'the record')}."
        return problem(503, text, RETRY_AFTER) if isinstance(fault, BrokerError) else problem(409, text)
    state = None if decided.event is None else str(decided.event.state)
    fields = {"id": wanted.id, "how": wanted.how, "done": decided.as_decided, "state": state}
    return json_answer(fields, 200 if decided.as_decided else 202)
