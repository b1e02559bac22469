"""`/v1/reset` (contract 10.11): move the position of the group in a topic, and see how far that is.

`POST` plans a reset and writes it, and does not wait for the owners of the partitions: 202 with its id. `GET` tells of
each partition what became of it. Both ask Kafka, on threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.api.holds import author_of, text_of
from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ContractError, RecordError
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import RefusedError, read_fields
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.kafka.clients import one_operation
from reconsume.sidecar.operation import no_report
from reconsume.sidecar.settings import Settings
from reconsume.topics.hold_record import LONGEST_TOPIC, LONGEST_WHY
from reconsume.topics.retry_headers import LARGEST_PARTITION

if TYPE_CHECKING:
    from reconsume.sidecar.group_policy.position_reset import MovePosition, PositionStore, ResetProgress

PATH = "/v1/reset"
FIELDS = ("topic", "partition", "to", "why", "dry_run")
THREADS, MOST_AT_ONCE = 1, 4
"""Threads for these calls, and calls in progress with those that wait. Each makes clients of Kafka."""
LONGEST_TARGET = 64


class ResetCalls:
    """The endpoints of resets. `store`: returns what reads and writes them, with the credentials of now."""

    def __init__(self, settings: Settings, store: Callable[[], PositionStore]) -> None:
        self._settings, self._store = settings, store
        self._threads = BoundedThreads("reset", THREADS, MOST_AT_ONCE, one_operation)

    async def move(self, request: Request) -> Response:
        """Plan a reset and write it: 202, or 200 with `"reset": null` if it is a dry run or nothing is to be moved."""
        fields, topics = await read_fields(request, FIELDS), self._settings.topic_names
        topic, to = text_of(fields, "topic", LONGEST_TOPIC), text_of(fields, "to", LONGEST_TARGET)
        if topic not in topics:
            raise RefusedError(f"topic must be one of the group's main topics: {', '.join(topics)}.")
        if not isinstance(dry_run := fields["dry_run"] or False, bool):
            raise RefusedError("dry_run must be true, or left out.")
        number = None if fields["partition"] is None else fields.whole("partition", 0, LARGEST_PARTITION, 0)
        why, who = text_of(fields, "why", LONGEST_WHY) or "", author_of(request)
        # Not loaded before it is needed, as the clients of Kafka: both use memory.
        from reconsume.sidecar.group_policy.position_reset import FORMS, MovePosition, WantedReset, read_target

        try:
            wanted = WantedReset(topic, number, read_target(to or "", wall()), why, who)
        except ContractError:
            raise RefusedError(f"to must be {FORMS}, not in the future.") from None
        return await self._threads(lambda: _moved(MovePosition(self._store(), self._settings, wanted), dry_run=dry_run))

    async def show(self, request: Request) -> Response:
        """Return what became of a reset."""
        ident = request.path_params["id"]

        def reached() -> ResetProgress:
            store = self._store()
            return store.progress_of(ident, store.find(ident))

        try:
            return json_answer(_fields_of(await self._threads(reached)))
        except RecordError:
            return problem(404, "There is no such reset; the newest 100 are kept.")


def reset_routes(settings: Settings, store: Callable[[], PositionStore]) -> list[Call]:
    """Return the routes of resets. The arguments are those of `ResetCalls`."""
    calls = ResetCalls(settings, store)
    return [
        Call(PATH, calls.move, Caller.OPERATOR, "POST"),
        Call(PATH + "/{id}", calls.show, Caller.OPERATOR),
    ]


def _moved(operation: MovePosition, *, dry_run: bool) -> Response:
    plan = operation.plan(no_report)
    answer = {"partitions": list(plan.rows), "remarks": list(plan.remarks)}
    if dry_run or not plan.question:
        return json_answer({"reset": None, **answer})
    operation.write()
    return json_answer({"reset": operation.written.ident, **answer}, 202)


def _fields_of(reached: ResetProgress) -> dict[str, object]:
    request = reached.request
    return {
        "reset": reached.ident,
        "topic": request.topic,
        "to": request.to,
        "who": request.who,
        "why": request.why,
        "at": request.at,
        "over": reached.is_over,
        "partitions": reached.rows(),
    }
