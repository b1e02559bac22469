"""What each form of the dashboard asks for, as an operation: redrive, dismiss, settle, reset, hold and release.

Each function reads the fields of one form. Every text may come from an attacker: what cannot be meant raises
BadFormError, with one sentence, and nothing is done. `operation_forms.py` plans and carries out what they return.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace
from starlette.responses import Response

from reconsume.sidecar.clock import utc_ms, wall
from reconsume.sidecar.dlq.dead_letters import DeadLetters, SearchResult, search_letters
from reconsume.sidecar.dlq.letters import Eligibility, RedriveRequest
from reconsume.sidecar.dlq.operations import Dismissal, Redrive
from reconsume.sidecar.dlq.settle_request import SettleRequest, fault_of_why, settle_request, waiting_request
from reconsume.sidecar.dlq.settle_waiting import MOST_IN_SIDECAR, SettleWaiting
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.group_policy.operations import BeginHold, ReleaseHolds, planned_hold
from reconsume.sidecar.group_policy.position_reset import MovePosition, PositionStore, WantedReset, read_target
from reconsume.sidecar.operation import Report
from reconsume.sidecar.ui.endpoint import Site
from reconsume.sidecar.ui.letter_form import BadFormError, LetterSearch, RefusedError, parse_rate, parse_selection
from reconsume.sidecar.ui.letter_pages import MOST_SCANNED
from reconsume.sidecar.ui.operation_forms import Facts, FormKind, WantedOperation
from reconsume.sidecar.ui.overview import LastAlarms
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import SignedForm
from reconsume.sidecar.ui.templating import Renderer
from reconsume.topics.decision_record import COMMIT
from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.events import BY_REDRIVE

MOST_REDRIVEN = 100_000
MOST_DISMISSED = 1_000
CONDITIONS = {"topic": "topic", "reason": "reason", "level": "level", "key": "key", "key_base64": "base64"}
"""What a hold and a decision may name, and the names of the inputs."""


def kinds_of(site: Site, last_alarms: LastAlarms) -> list[FormKind]:
    """Return the kinds of forms that the pages of a group have."""
    looks, ask, scan = site.looks, site.ask, site.scan
    shown = partial(page_after_hold, site.render, last_alarms)
    decision, reset = partial(page_of_decision, site.render), partial(page_of_reset, site.render)
    kinds = [
        FormKind(
            "/dlq/redrive",
            "/dlq",
            partial(redrive_in, looks),
            scan,
            "/dlq/plan",
            agree_to_redrive,
            is_job=True,
            words={"verb": "redrive", "button": "Redrive", "input": "rate"},
        ),
        FormKind(
            "/dlq/dismiss",
            "/dlq",
            partial(dismissal_in, looks),
            scan,
            "/dlq/dismissal",
            agree_to_dismissal,
            renews=True,
            is_job=True,
            words={"verb": "dismiss", "button": "Dismiss for good", "input": "why"},
        ),
        FormKind("/holds/begin", "/holds", partial(hold_in, looks), ask, next_page=partial(shown, "/holds")),
        FormKind("/holds/release", "/", partial(release_in, looks), ask, next_page=partial(shown, "/")),
    ]
    if not looks.settings.deliver.broadcast:
        kinds += [
            FormKind(
                "/records/settle",
                "/records",
                partial(settlement_in, looks),
                scan,
                plan_path="/records/settle/plan",
                next_page=decision,
                words={"verb": "settle", "button": "Settle"},
            ),
            FormKind("/keys/settle", "/keys", partial(settlement_of_one, looks), scan, next_page=decision),
            FormKind(
                "/records/reset",
                "/records",
                partial(reset_in, looks),
                ask,
                plan_path="/records/reset/plan",
                next_page=reset,
                words={"verb": "move", "button": "Move it"},
            ),
        ]
    return kinds


# --- dead letters ----------------------------------------------------------------------------------------------------


def search_in(looks: Queries, form: SignedForm, at: int) -> LetterSearch:
    """Return the dead letters that a form is for. Those that die later are not among them."""
    search = parse_selection(form.fields, form.positions, looks.letters.topics, at)
    return search._replace(filter=replace(search.filter, until=min(search.filter.until, at)))


def redrive_in(looks: Queries, form: SignedForm, at: int) -> WantedOperation:
    """Return the redrive that a form asks for."""
    search = search_in(looks, form, at)
    if Eligibility.READY not in search.states:
        raise RefusedError("only dead letters that are ready can be redriven: choose that state")
    policy = replace(looks.policy, instance=f"{BY_REDRIVE}{form.actor.who}@ui")
    letters = DeadLetters(looks.cluster, policy)
    return WantedOperation(Redrive(letters, RedriveRequest(search.filter), MOST_REDRIVEN), {"filter": search.facts})


def agree_to_redrive(operation: Redrive, fields: Mapping[str, str]) -> Facts:
    """Take the rate; no more are redriven than the plan has counted."""
    operation.rate, operation.most = parse_rate(fields.get("rate", "")), max(1, operation.planned.redriven)
    return {"letters": operation.planned.redriven, "target": operation.target, "rate": operation.rate}


def dismissal_in(looks: Queries, form: SignedForm, at: int) -> WantedOperation:
    """Return the dismissal that a form asks for; the reason comes with the second form."""
    search = search_in(looks, form, at)

    def find(report: Report) -> SearchResult:
        request = RedriveRequest(search.filter)
        result = search_letters(looks.letters, request, MOST_DISMISSED, MOST_SCANNED, report, search.states)
        if result.matched > MOST_DISMISSED:
            text = f"{result.matched} match, and at most {MOST_DISMISSED} are dismissed at once: narrow it"
            raise RefusedError(text)
        return result

    request = SettleRequest("", COMMIT, "", f"{form.actor.who}@ui")
    return WantedOperation(Dismissal(looks.letters, find, request), {"filter": search.facts})


def agree_to_dismissal(operation: Dismissal, fields: Mapping[str, str]) -> Facts:
    """Take the reason."""
    operation.why = fields.get("why", "").strip()
    if fault := fault_of_why(operation.why):
        raise BadFormError(fault)
    return {}


# --- what waits ------------------------------------------------------------------------------------------------------


def conditions_in(fields: Mapping[str, str]) -> dict[str, str | None]:
    """Return what a form names; an empty field is not given. A key's blanks count; no other text's do."""
    texts = {name: fields.get(given, "") for name, given in CONDITIONS.items()}
    return {name: (text if name == "key" else text.strip()) or None for name, text in texts.items()}


def settlement_in(looks: Queries, form: SignedForm, _at: int) -> WantedOperation:
    """Return the decision about all that waits and fits."""
    fields, who = form.fields, f"{form.actor.who}@ui"
    why, rate = (fields.get(name, "").strip() for name in ("why", "rate"))
    topics = looks.settings.topic_names
    try:
        request = waiting_request(conditions_in(fields), fields.get("how"), why, who, rate, topics)
    except ValueError as fault:
        raise BadFormError(str(fault)) from None
    return _settled(looks, request)


def settlement_of_one(looks: Queries, form: SignedForm, _at: int) -> WantedOperation:
    """Return the decision about the first record of a key."""
    fields, who = form.fields, f"{form.actor.who}@ui"
    try:
        request = settle_request(fields.get("record"), fields.get("how"), fields.get("why", "").strip(), who)
    except ValueError as fault:
        raise BadFormError(str(fault)) from None
    return _settled(looks, request)


def _settled(looks: Queries, request: SettleRequest) -> WantedOperation:
    operation = SettleWaiting(looks.letters, looks.settings, request, most=MOST_IN_SIDECAR)
    return WantedOperation(
        operation, {"record": request.id, "how": request.how} if request.id else {"how": request.how}
    )


def page_of_decision(render: Renderer, operation: SettleWaiting) -> Response:
    """Lead to the page that shows how far a decision is."""
    return render.redirect(f"/records/settle/{operation.decision}")


def reset_in(looks: Queries, form: SignedForm, at: int) -> WantedOperation:
    """Return the move of a position that a form asks for."""
    topic, number, to, why = (form.fields.get(name, "").strip() for name in ("topic", "partition", "to", "why"))
    if number and not (number.isascii() and number.isdecimal() and len(number) <= 10):
        raise BadFormError("a partition is a whole number; without one, all are moved")
    if bad := fault_of_why(why):
        raise BadFormError(bad)
    try:
        target = read_target(to, at)
    except ContractError as fault:
        raise BadFormError(str(fault)) from None
    if target.at is not None:  # the page shows which time "2h" means
        target = target._replace(text=utc_ms(target.at))
    wanted = WantedReset(topic, int(number) if number else None, target, why, f"{form.actor.who}@ui")
    settings = looks.settings
    return WantedOperation(MovePosition(PositionStore(looks.cluster, settings.names), settings, wanted), {})


def page_of_reset(render: Renderer, operation: MovePosition) -> Response:
    """Lead to the page that shows what became of a reset."""
    return render.redirect(f"/records/reset/{operation.written.ident}")


# --- holds -----------------------------------------------------------------------------------------------------------


def hold_in(looks: Queries, form: SignedForm, _at: int) -> WantedOperation:
    """Return the hold that a form asks for."""
    fields = form.fields
    if not (lasts := fields.get("for", "").strip()):
        raise BadFormError("say when the hold ends by itself: 1s to 7d")
    named = conditions_in(fields)
    del named["reason"]
    try:
        planned = planned_hold(
            named,
            everything=fields.get("all") == "yes",
            lasts=parse_duration(lasts),
            why=fields.get("why", "").strip(),
            who=f"{form.actor.who}@ui",
            topics=looks.settings.topic_names,
        )
    except (ContractError, ValueError) as fault:
        raise BadFormError(str(fault)) from fault
    return WantedOperation(
        BeginHold(looks.hold_store, planned), {"lasts": render_duration(planned.until - planned.since)}
    )


def release_in(looks: Queries, form: SignedForm, _at: int) -> WantedOperation:
    """Return the release that a form asks for."""
    return WantedOperation(ReleaseHolds(looks.hold_store, [form.fields.get("hold", "")], f"{form.actor.who}@ui"), {})


def page_after_hold(
    render: Renderer, last_alarms: LastAlarms, page: str, operation: BeginHold | ReleaseHolds
) -> Response:
    """Lead to this page. The head of every page has the holds of now, before it asks for all alarms."""
    assert operation.written is not None
    last_alarms.change_holds(operation.written.state.holds.in_force(wall()).records)
    return render.redirect(page)
