"""The calls of pull mode (contract 6.4, 6.5): read them and answer them. `delivery/pull/queue.py` does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.core.outcome import COMMITTED, NACKED, Committed, Outcome
from reconsume.sidecar.delivery.envelope import envelope
from reconsume.sidecar.delivery.outputs import OutputsRefusedError, read_outputs
from reconsume.sidecar.delivery.pull.lease_table import HandleStatus, LeaseEnd
from reconsume.sidecar.delivery.pull.queue import PullQueue, Received
from reconsume.sidecar.delivery.verdict import VerdictFields, verdict_of
from reconsume.sidecar.http.calls import MOST, Call, Caller, Endpoint
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import read_fields
from reconsume.sidecar.http.problems import problem
from reconsume.topics.outputs import OutputTopics

MOST_RECORDS = 1_024
MOST_WAITING = 1_024
"""Calls of `receive` that may wait for a record at once. Each takes some 40 KB."""
USUAL_RECORDS = 32
LONGEST_INVISIBLE = 43_200_000
"""ms: 12 h (contract 6.4)."""
USUAL_INVISIBLE = 30_000
LONGEST_WAIT_MS = 60_000
USUAL_WAIT_MS = 10_000
RECEIVE = "/v1/receive"
PATHS = ("receive", "ack", "nack", "release", "change-invisible", "reconsume-later", "dead-letter")

OVER = {
    HandleStatus.EXPIRED: "The lease has expired: this call has changed nothing, and the record is delivered again.",
    HandleStatus.FENCED: "The handle does not speak for the record any more: this call has changed nothing.",
    HandleStatus.UNKNOWN: "This is no handle of this sidecar.",
}


class PullCalls:
    """The endpoints of pull mode.

    `group`: whose records these are, for `idempotency_key`. `shortest`: the shortest invisible duration that a caller
    may ask for, in ms. `most_waiting`: callers that may wait. `outputs`: where records may go that an ack asks to be
    written; None: nowhere.
    """

    def __init__(
        self, leases: PullQueue, group: str, shortest: int, outputs: OutputTopics | None, most_waiting: int
    ) -> None:
        self._leases, self._group, self._outputs = leases, group, outputs
        self._shortest, self._most_waiting = shortest, most_waiting

    async def receive(self, request: Request) -> Response:
        """Lease records to the caller; wait for the first one."""
        fields = await read_fields(request, ("max", "invisible", "wait"))
        most = fields.whole("max", 1, MOST_RECORDS, USUAL_RECORDS)
        usual = max(self._shortest, USUAL_INVISIBLE)
        invisible = fields.duration("invisible", self._shortest, LONGEST_INVISIBLE, usual)
        wait = fields.duration("wait", 0, LONGEST_WAIT_MS, USUAL_WAIT_MS)
        if self._leases.closed:
            return problem(503, "The sidecar drains and gives out no more records.")
        if self._leases.waiting >= self._most_waiting:
            return problem(503, "As many callers wait as may; receive again.", {"retry-after": "1"})
        gone = asyncio.ensure_future(_hang_up(request))
        try:
            async with self._leases.turn(wait / 1000, gone):
                # A lease for a caller that has hung up would only expire, and count as a failure.
                received = [] if gone.done() else self._leases.receive(most, invisible)
        finally:
            gone.cancel()
        return json_answer({"records": [self._shown(one) for one in received]})

    def _shown(self, one: Received) -> dict[str, Any]:
        return {
            "handle": one.handle,
            "nacks": one.record.nacks,
            **msgspec.to_builtins(envelope(one.record, self._group)),
        }

    async def ack(self, request: Request) -> Response:
        """Commit records; `produce` beside one handle has records written in the same transaction."""
        fields = await read_fields(request, ("handles", "produce"))
        if fields["produce"] is None:
            return self._settle_all(fields.handles(), LeaseEnd.ACKED, COMMITTED)
        handles = fields.handles()
        try:
            if len(handles) != 1:
                raise OutputsRefusedError("produce goes with exactly one handle")
            outputs = read_outputs(fields["produce"], self._outputs)
        except OutputsRefusedError as fault:
            return problem(422, f"Nothing is written, and the lease goes on: {fault.plain}.")
        return self._settle_all(handles, LeaseEnd.ACKED, Committed(outputs))

    async def nack(self, request: Request) -> Response:
        """Deliver records again after the nack delay."""
        fields = await read_fields(request, ("handles",))
        return self._settle_all(fields.handles(), LeaseEnd.NACKED, NACKED)

    async def release(self, request: Request) -> Response:
        """Spend one retry, and deliver records again when their leases would have ended."""
        fields = await read_fields(request, ("handles",))
        return self._settle_all(fields.handles(), LeaseEnd.RELEASED, None)

    async def change_invisible(self, request: Request) -> Response:
        """Change the end of a lease, counted from this call."""
        fields = await read_fields(request, ("handle", "invisible"))
        handle = fields.handle()
        changed = self._leases.change(handle, fields.duration("invisible", self._shortest, LONGEST_INVISIBLE))
        return _refusal(handle, changed) if isinstance(changed, HandleStatus) else json_answer({"handle": changed})

    async def reconsume_later(self, request: Request) -> Response:
        """Spend one retry. Delay, level, reason and expires are read as leniently as in the answer to a push."""
        fields = await read_fields(request, ("handle", "delay", "level", "reason", "expires"))
        said = VerdictFields("retry", fields["delay"], fields["level"], fields["reason"], fields["expires"])
        return self._settle(fields.handle(), LeaseEnd.RETRIED, verdict_of(said))

    async def dead_letter(self, request: Request) -> Response:
        """Send a record to the DLQ."""
        fields = await read_fields(request, ("handle", "reason"))
        return self._settle(
            fields.handle(), LeaseEnd.CONDEMNED, verdict_of(VerdictFields("dead-letter", reason=fields["reason"]))
        )

    def _settle(self, handle: str, verdict: LeaseEnd, outcome: Outcome) -> Response:
        status = self._leases.settle(handle, verdict, outcome)
        if status is not HandleStatus.OK:
            return _refusal(handle, status)
        return json_answer({"handle": handle, "status": status})

    def _settle_all(self, handles: Sequence[str], verdict: LeaseEnd, outcome: Outcome | None) -> Response:
        """Return what became of each handle."""
        results = [{"handle": handle, "status": self._leases.settle(handle, verdict, outcome)} for handle in handles]
        if any(one["status"] in (HandleStatus.EXPIRED, HandleStatus.FENCED) for one in results):
            return _conflict("At least one lease was over; `handles` says what became of each.", results)
        return json_answer({"handles": results})


def pull_routes(
    leases: PullQueue, group: str, shortest: int, outputs: OutputTopics | None = None, most_waiting: int = MOST_WAITING
) -> list[Call]:
    """Return the routes of a sidecar in pull mode."""
    calls = PullCalls(leases, group, shortest, outputs, most_waiting)
    endpoints = (
        calls.receive,
        calls.ack,
        calls.nack,
        calls.release,
        calls.change_invisible,
        calls.reconsume_later,
        calls.dead_letter,
    )
    # Each route has room for the callers of `receive` that wait, which that call itself bounds.
    most = most_waiting + MOST
    return [_call(path, endpoint, most) for path, endpoint in zip(PATHS, endpoints, strict=True)]


def no_pull_routes(mode: str) -> list[Call]:
    """Return the same routes for a sidecar in another mode. Each answers why there is nothing to receive."""

    async def absent(_request: Request) -> Response:
        return problem(404, f"This call is for pull mode, and this sidecar runs with deliver.mode: {mode}.")

    return [_call(path, absent) for path in PATHS]


def _call(path: str, endpoint: Endpoint, most: int = MOST) -> Call:
    return Call(f"/v1/{path}", endpoint, Caller.SERVICE, "POST", most)


async def _hang_up(request: Request) -> None:
    """Return when the caller has hung up. Its body was read already."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refusal(handle: str, status: HandleStatus) -> Response:
    if status is HandleStatus.UNKNOWN:
        return problem(404, OVER[status])
    return _conflict(OVER[status], [{"handle": handle, "status": status}])


def _conflict(detail: str, results: Sequence[Mapping[str, Any]]) -> Response:
    return problem(409, detail, more={"handles": results})
