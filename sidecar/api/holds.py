"""`/v1/holds` (contract 10.5): hold records in an incident, release them, and see which holds this instance obeys.

`GET` answers by what this instance knows. `POST` and `DELETE` write to the policy topic, in a thread, and answer once
the record is in Kafka; the instances obey within 2 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.core.pace.refusals import without_text
from reconsume.sidecar.errors import ContractError, RecordError
from reconsume.sidecar.group_policy.operations import BeginHold, HoldStore, ReleaseHolds, planned_hold
from reconsume.sidecar.group_policy.state import rows_of
from reconsume.sidecar.http.audit import NO_TOKEN, TOKEN_NAME
from reconsume.sidecar.http.calls import Call, Caller, may_see_values
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import Fields, RefusedError, read_fields
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.kafka.clients import one_operation
from reconsume.sidecar.operation import carried_out
from reconsume.topics.hold_record import (
    LONGEST_HOLD_MS,
    LONGEST_KEY,
    LONGEST_LEVEL,
    LONGEST_TOPIC,
    LONGEST_WHY,
    SELECTORS,
)

PATH = "/v1/holds"
THREADS, MOST_AT_ONCE = 2, 8
"""Threads for calls that write, and calls in progress with those that wait. Each makes three clients of Kafka."""
TEXTS = {"topic": LONGEST_TOPIC, "level": LONGEST_LEVEL, "key": LONGEST_KEY, "key_base64": 2 * LONGEST_KEY}
"""Fields that say what is held, with their longest text."""
FIELDS = (*TEXTS, "all", "for", "why")


Status: TypeAlias = Callable[[], dict[str, object]]
"""Returns `holds` and `holds_ignored`, of types that JSON has. Called on the event loop."""


class HoldCalls:
    """The endpoints of holds. `store`: returns what reads and writes the policy topic, with the credentials of now.

    `topics`: the main topics, of which a hold may name one.
    """

    def __init__(self, status: Status, store: Callable[[], HoldStore], topics: Sequence[str]) -> None:
        self._status, self._store, self._topics = status, store, topics
        self._writes = BoundedThreads("holds", THREADS, MOST_AT_ONCE, one_operation)

    async def list(self, request: Request) -> Response:
        """Return the holds that this instance obeys."""
        return json_answer(shown_to(request, self._status()))

    async def begin(self, request: Request) -> Response:
        """Write a hold."""
        fields = await read_fields(request, FIELDS)
        named = {name: text_of(fields, name, longest) for name, longest in TEXTS.items()}
        lasts, why = fields.duration("for", 1_000, LONGEST_HOLD_MS), text_of(fields, "why", LONGEST_WHY)
        if why is None:
            raise RefusedError("why must say why, for whoever looks later.")
        if not isinstance(everything := fields["all"] or False, bool):
            raise RefusedError("all must be true, or left out.")
        who = author_of(request)
        if named["topic"] not in (None, *self._topics):  # the sentence of `planned_hold` repeats the caller's word
            raise RefusedError(f"topic must be one of the group's main topics: {', '.join(self._topics)}.")
        try:
            planned = planned_hold(named, everything=everything, lasts=lasts, why=why, who=who, topics=self._topics)
        except ContractError as fault:
            raise RefusedError(f"{str(fault)[0].upper()}{str(fault)[1:]}.") from None
        written = await self._writes(lambda: carried_out(BeginHold(self._store(), planned)).written)
        assert written is not None
        return json_answer(rows_of(written.records)[0], 201)

    async def release(self, request: Request) -> Response:
        """Write the release of a hold."""
        ident, who = request.path_params["id"], author_of(request)

        try:
            await self._writes(lambda: carried_out(ReleaseHolds(self._store(), [ident], who)))
        except RecordError:
            return problem(404, "No such hold is in force; GET /v1/holds lists them.")
        return Response(status_code=204)


def hold_routes(status: Status, store: Callable[[], HoldStore], topics: Sequence[str]) -> list[Call]:
    """Return the routes of holds. The arguments are those of `HoldCalls`."""
    calls = HoldCalls(status, store, topics)
    return [
        Call(PATH, calls.list, Caller.READ),
        Call(PATH, calls.begin, Caller.OPERATOR, "POST"),
        Call(PATH + "/{id}", calls.release, Caller.OPERATOR, "DELETE"),
    ]


def shown_to(request: Request, status: dict[str, object]) -> dict[str, object]:
    """Return a status without keys, the reasons of its holds and texts of the service, if the caller may not see
    them."""
    if may_see_values(request):
        return status
    rules = {"holds": _without_values, "all_refused": without_text}
    hidden = {name: list(map(rule, rows)) for name, rule in rules.items() if isinstance(rows := status.get(name), list)}
    return {**status, **hidden}


def _without_values(row: Mapping[str, object]) -> dict[str, object]:
    hidden = {**row, "key_base64": None, "why": None}
    if row["key_base64"] is not None:
        named = [f"{name}={row[name]}" for name in SELECTORS if name != "key" and row[name] is not None]
        hidden["what"] = " ".join([*named, "key=(hidden)"])
    return hidden


def author_of(request: Request) -> str:
    """Return who holds or releases: the name of the token that the call has."""
    return f"api:{request.scope.get(TOKEN_NAME, NO_TOKEN)}"


def text_of(fields: Fields, name: str, longest: int) -> str | None:
    """Return a field that is a printable text; None if it is missing. Raises RefusedError."""
    value: object = fields[name]
    if value is None:
        return None
    is_key = name.startswith("key")  # a key may be empty, and hold anything
    if isinstance(value, str) and len(value) <= longest and (is_key or (value and value.isprintable())):
        return value
    raise RefusedError(f"{name} must be a printable text of 1 to {longest} characters.")
