"""The form that releases a hold, beside its banner. Each release is logged."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sidecar.errors import RecordError
from sidecar.ui.audit_log import AuditLog
from sidecar.ui.endpoint import ThreadQueries
from sidecar.ui.forms import actor_of
from sidecar.ui.plans import RefusedError
from sidecar.ui.queries import Queries
from sidecar.ui.security import Session, expect_token, read_form


class HoldForms:
    """The endpoint of this form; created only if there is a token file."""

    def __init__(self, asker: ThreadQueries, looks: Queries, audit: AuditLog) -> None:
        self._ask, self._looks, self._audit = asker, looks, audit

    async def release(self, request: Request, session: Session | None) -> Response:
        """Release a hold, then show the first page."""
        fields = (await read_form(request)).fields
        actor, ident = actor_of(request, expect_token(session, fields)), fields.get("hold", "")

        def write() -> None:
            self._audit.write("release", actor, hold=ident)
            try:
                self._looks.release(ident, f"{actor.who}@ui")
            except RecordError as fault:
                raise RefusedError(str(fault)) from fault

        await self._ask(write)
        return RedirectResponse("/", 303)
