"""The calls of pull mode (contract 6.4, 6.5): read them and answer them. `delivery/pull/queue.py` does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import utc_ms
from reconsume.sidecar.core.outcome import COMMITTED, NACKED, Committed, Outcome
from reconsume.sidecar.delivery.envelope import envelope
from reconsume.sidecar.delivery.idempotency import ProducerKey
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


class PullCalls:
    """The endpoints of pull mode. Each but `receive` takes `handles`, and returns an entry for each of them.

    `group`: whose records these are. `shortest`: the shortest invisible duration that a caller may ask for, in ms.
    `most_waiting`: callers that may wait. `outputs`: where records may go that an ack asks to be written; None:
    nowhere.
    `producer_key`: reads the producer's text for `idempotency_key`; None: the id of a record counts.
    """

    def __init__(
        self,
        leases: PullQueue,
        group: str,
        shortest: int,
        outputs: OutputTopics | None,
        most_waiting: int,
        producer_key: ProducerKey | None = None,
    ) -> None:
        self._leases, self._group, self._outputs, self._producer_key = leases, group, outputs, producer_key
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
            async with self._leases.wait_for_records(wait / 1000, gone):
                # A lease for a caller that has hung up would only expire, and count as a failure.
                received = [] if gone.done() else self._leases.receive(most, invisible)
        finally:
            gone.cancel()
        return json_answer({"records": [self._shown(one) for one in received]})

    def _shown(self, one: Received) -> dict[str, Any]:
        return {
            "handle": one.handle,
            "expires_at": utc_ms(one.expires_at_ms),
            "nacks": one.record.nacks,
            **msgspec.to_builtins(envelope(one.record, self._group, self._producer_key)),
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
        """Change the end of leases, counted from this call. Each has a new handle then."""
        fields = await read_fields(request, ("handles", "invisible"))
        handles = fields.handles()
        invisible = fields.duration("invisible", self._shortest, LONGEST_INVISIBLE)
        return _answer_of([self._change(handle, invisible) for handle in handles])

    async def reconsume_later(self, request: Request) -> Response:
        """Spend one retry. Delay, level, reason and expires are read as leniently as in the answer to a push."""
        fields = await read_fields(request, ("handles", "delay", "level", "reason", "expires"))
        said = VerdictFields("retry", fields["delay"], fields["level"], fields["reason"], fields["expires"])
        return self._settle_all(fields.handles(), LeaseEnd.RETRIED, verdict_of(said))

    async def dead_letter(self, request: Request) -> Response:
        """Send records to the DLQ."""
        fields = await read_fields(request, ("handles", "reason"))
        said = VerdictFields("dead-letter", reason=fields["reason"])
        return self._settle_all(fields.handles(), LeaseEnd.CONDEMNED, verdict_of(said))

    def _settle_all(self, handles: Sequence[str], verdict: LeaseEnd, outcome: Outcome | None) -> Response:
        settle = self._leases.settle
        return _answer_of([{"handle": handle, "status": settle(handle, verdict, outcome)} for handle in handles])

    def _change(self, handle: str, invisible: int) -> dict[str, str]:
        changed = self._leases.change(handle, invisible)
        if isinstance(changed, HandleStatus):
            return {"handle": handle, "status": changed}
        return {
            "handle": handle,
            "status": HandleStatus.OK,
            "new_handle": changed.handle,
            "expires_at": utc_ms(changed.expires_at_ms),
        }


def pull_routes(
    leases: PullQueue,
    group: str,
    shortest: int,
    outputs: OutputTopics | None = None,
    most_waiting: int = MOST_WAITING,
    producer_key: ProducerKey | None = None,
) -> list[Call]:
    """Return the routes of a sidecar in pull mode; the arguments are those of `PullCalls`."""
    calls = PullCalls(leases, group, shortest, outputs, most_waiting, producer_key)
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


def _answer_of(entries: Sequence[Mapping[str, str]]) -> Response:
    """Return what became of each handle: 409 if a lease was over."""
    if any(entry["status"] in (HandleStatus.EXPIRED, HandleStatus.FENCED) for entry in entries):
        detail = "At least one lease was over; `handles` says what became of each."
        return problem(409, detail, more={"handles": entries})
    return json_answer({"handles": entries})
