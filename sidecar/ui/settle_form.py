"""The form that settles the first record of a key, beside its queue. Each decision is logged, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.dlq.decisions import Decided
from reconsume.sidecar.dlq.dismissal import fault_of_why
from reconsume.sidecar.dlq.queue_settler import ENDS, QueueSettler
from reconsume.sidecar.errors import RecordError
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import ThreadQueries
from reconsume.sidecar.ui.letter_form import BadFormError
from reconsume.sidecar.ui.plans import RefusedError
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import Session, actor_of, expect_token, read_form
from reconsume.sidecar.ui.templating import Renderer
from reconsume.sidecar.view.journey import events_since
from reconsume.topics.policy_record import LONGEST_ID
from reconsume.topics.retry_headers import ID


class Decision(NamedTuple):
    """A user's decision about the record with this id. `how`: one of WAYS."""

    id: str
    how: str
    why: str


class SettleForm:
    """The endpoint of this form; created only if there is a token file, and for an ordered group."""

    def __init__(self, render: Renderer, scans: ThreadQueries, looks: Queries, audit: AuditLog) -> None:
        # On the thread of the scans: it reads a queue, and holds it in memory meanwhile.
        self._render, self._scan, self._audit = render, scans, audit
        settings = looks.settings
        events = events_since(settings.kafka, settings.names)
        self._queue_settler = QueueSettler(looks.letters, lambda: looks.policy, settings.order_by, events)

    async def settle(self, request: Request, session: Session | None) -> Response:
        """Settle a record, then show what became of it."""
        fields = (await read_form(request)).fields
        signed_in = expect_token(session, fields)
        wanted, actor = decision_in(fields), actor_of(request, signed_in)
        decided = await self._scan(lambda: self._settle(wanted, actor))
        return self._render(
            "settled.html",
            session=signed_in,
            here="/keys",
            wanted=wanted,
            end=ENDS[wanted.how],
            is_done=decided.as_decided,
            coded=fields.get("base64", ""),
        )

    def _settle(self, wanted: Decision, actor: Actor) -> Decided:
        """Settle a record. Raises RefusedError if it cannot be, BrokerError, ContractError and SetupError."""
        self._audit.write("settle", actor, record=wanted.id, how=wanted.how, why=wanted.why)
        try:
            with self._audit.ending("settle", actor, record=wanted.id, done=False) as end:
                decided = self._queue_settler.settle(wanted.id, wanted.how, wanted.why, f"{actor.who}@ui")
                end["done"] = decided.as_decided
        except RecordError as fault:
            raise RefusedError(str(fault)) from fault
        return decided


def decision_in(fields: Mapping[str, str]) -> Decision:
    """Return what a form decides. Raises BadFormError."""
    ident, how, why = fields.get("record", ""), fields.get("how", ""), fields.get("why", "").strip()
    if len(ident) > LONGEST_ID or ID.fullmatch(ident.encode(errors="replace")) is None:
        raise BadFormError("that is no id of a record")
    if how not in ENDS:
        raise BadFormError("say whether it is tried now, a dead letter, or done")
    if fault := fault_of_why(why):
        raise BadFormError(fault)
    return Decision(ident, how, why)
