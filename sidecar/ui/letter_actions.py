"""The forms that act on dead letters: dry runs, redrives and dismissals. Each action is logged.

What an action is for is chosen on the list of dead letters: the ticked ones, or all that match its search. It is an
operation (`sidecar/dlq/operations.py`), as for the command line. Its plan is kept here until it is carried out once, by
the user who planned it, by name and token. The form only names the plan. So nobody can change its content, and a form
that is sent twice does nothing the second time.

A dismissal cannot be taken back, so its plan says how many it is for, and a reason must be given. The letters are read
again when it is carried out: what was redriven meanwhile stays as it is. A redrive is a job on a thread of its own, one
at a time; its page reloads until it has ended.

`LetterActions` may be called on any thread; `LetterForms` is called on the event loop.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.dead_letters import DeadLetters, SearchResult, search_letters
from reconsume.sidecar.dlq.dismissals import Dismissed
from reconsume.sidecar.dlq.letters import Eligibility, RedriveRequest
from reconsume.sidecar.dlq.operations import Dismissal, Redrive
from reconsume.sidecar.dlq.settle_request import SettleRequest, fault_of_why
from reconsume.sidecar.errors import ContractError, LetterError, ReconsumeError
from reconsume.sidecar.operation import Report, run_recorded
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import ThreadQueries
from reconsume.sidecar.ui.letter_form import BadFormError, LetterSearch, RefusedError, parse_rate, parse_selection
from reconsume.sidecar.ui.letter_pages import MOST_SCANNED
from reconsume.sidecar.ui.queries import LONGEST, Queries
from reconsume.sidecar.ui.security import Session, SignedForm, read_signed
from reconsume.sidecar.ui.templating import Renderer
from reconsume.topics.decision_record import COMMIT
from reconsume.topics.events import BY_REDRIVE

MOST_KEPT = 32
"""Plans and jobs that are kept."""
PLAN_AGE = 900.0
"""Seconds for which a plan may be carried out; after that its numbers are out of date."""
MOST_RESULTS = 1_000
"""Records of a redrive whose results are shown; all records are counted."""
MOST_REDRIVEN = 100_000
MOST_DISMISSED = 1_000
DRY_RUN_SECONDS = 60.0
NOT_DISMISSED = {
    Eligibility.REDRIVEN: ("dead letter", "redriven before"),
    Eligibility.COPY: ("copy", "of another one"),
    Eligibility.DISMISSED: ("dead letter", "dismissed before"),
    Eligibility.SUPERSEDED: ("dead letter", "superseded by a reset"),
    Eligibility.UNFIT: ("dead letter", "without readable headers"),
}
"""What a dismissal leaves: the noun that is counted, in the singular, and why."""


class PlannedAction(NamedTuple):
    """What a user is about to do. `at`: epoch ms; `made`: monotonic seconds. Its letters died before `at`."""

    id: str
    actor: Actor
    search: LetterSearch
    operation: Redrive | Dismissal
    at: int
    made: float

    @property
    def ready(self) -> int:
        """The number of letters that would be redriven or dismissed."""
        operation = self.operation
        return operation.planned.redriven if isinstance(operation, Redrive) else len(operation.good)


@dataclass
class Job:
    """A redrive, under way or ended. `began` and `ended`: epoch ms. Its thread writes the fields, pages read them."""

    id: str
    plan: PlannedAction
    operation: Redrive
    began: int
    ended: int | None = None
    error: str = ""
    stop: threading.Event = field(default_factory=threading.Event)


class LetterActions:
    """The plans and redrives of this dashboard. Any thread may call it.

    Every method raises RefusedError, BrokerError, ContractError, and SetupError if the audit log cannot be written.
    """

    def __init__(self, looks: Queries, audit: AuditLog) -> None:
        self._looks, self._audit = looks, audit
        self._plans: OrderedDict[str, PlannedAction] = OrderedDict()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a redrive is under way."""
        return any(job.ended is None for job in self._jobs.copy().values())

    def plan_redrive(self, search: LetterSearch, actor: Actor) -> PlannedAction:
        """Make a dry run; nothing is written."""
        if Eligibility.READY not in search.states:
            raise RefusedError("only dead letters that are ready can be redriven: choose that state")
        return self._planned("dry-run", search, actor, self._redrive)

    def _redrive(self, search: LetterSearch, actor: Actor) -> Redrive:
        policy = replace(self._looks.policy, instance=f"{BY_REDRIVE}{actor.who}@ui")
        letters = DeadLetters(self._looks.settings.kafka, policy)
        operation = Redrive(letters, RedriveRequest(search.filter), MOST_REDRIVEN, most_results=MOST_RESULTS)
        try:
            operation.plan(self._looks.within(DRY_RUN_SECONDS))
        except LetterError as fault:
            raise RefusedError(str(fault)) from fault
        return operation

    def plan_dismissal(self, search: LetterSearch, actor: Actor) -> PlannedAction:
        """Find what would be dismissed; nothing is written."""
        return self._planned("dismissal-plan", search, actor, self._dismissal)

    def _dismissal(self, search: LetterSearch, actor: Actor, why: str = "") -> Dismissal:
        def find(report: Report) -> SearchResult:
            request = RedriveRequest(search.filter)
            result = search_letters(self._looks.letters, request, MOST_DISMISSED, MOST_SCANNED, report, search.states)
            if result.matched > MOST_DISMISSED:
                text = f"{result.matched} match, and at most {MOST_DISMISSED} are dismissed at once: narrow it"
                raise RefusedError(text)
            return result

        operation = Dismissal(self._looks.letters, find, SettleRequest("", COMMIT, why, f"{actor.who}@ui"))
        try:
            operation.plan(self._looks.within(LONGEST))
        except ContractError as fault:
            raise RefusedError(str(fault)) from fault
        return operation

    def _planned(
        self,
        action: str,
        search: LetterSearch,
        actor: Actor,
        prepare: Callable[[LetterSearch, Actor], Redrive | Dismissal],
    ) -> PlannedAction:
        """Log that a user plans an action, prepare it, and keep the plan. Later dead letters are not part of it."""
        at = wall()
        search = search._replace(filter=replace(search.filter, until=min(search.filter.until, at)))
        self._audit.write(action, actor, filter=search.facts)
        plan = PlannedAction(new_id(), actor, search, prepare(search, actor), at, time.monotonic())
        with self._lock:
            self._plans[plan.id] = plan
            while len(self._plans) > MOST_KEPT:
                self._plans.popitem(last=False)
        return plan

    def _take(self, plan_id: str, actor: Actor, kind: type[Redrive] | type[Dismissal]) -> PlannedAction:
        """Return a plan that may be carried out by this user, which cannot be used again. The caller holds the lock."""
        plan = self._plans.get(plan_id)
        is_good = plan is not None and plan.actor[:2] == actor[:2] and isinstance(plan.operation, kind)
        if plan is None or not is_good or time.monotonic() - plan.made > PLAN_AGE:
            raise RefusedError("the plan is used up or too old: make a new dry run")
        return self._plans.pop(plan_id)

    def dismiss(self, plan_id: str, why: str, actor: Actor) -> Dismissed:
        """Dismiss the letters of a plan. Raises BadFormError without a good reason."""
        if fault := fault_of_why(why):
            raise BadFormError(fault)
        with self._lock:
            plan = self._take(plan_id, actor, Dismissal)
        operation = self._dismissal(plan.search, actor, why)
        recorder = self._audit.recorder(actor, filter=plan.search.facts, letters=plan.ready)
        run_recorded(operation, actor.who, recorder, self._looks.within(LONGEST), threading.Event())
        return operation.done

    def begin_redrive(self, plan_id: str, actor: Actor, rate: float | None = None) -> Job:
        """Start the redrive of a plan. `rate`: dead letters a second; None: as fast as it goes."""
        with self._lock:
            if any(job.ended is None for job in self._jobs.values()):
                raise RefusedError("another redrive is under way: wait for its end")
            plan = self._take(plan_id, actor, Redrive)
            operation = plan.operation
            assert isinstance(operation, Redrive)
            operation.rate, operation.most = rate, max(1, plan.ready)
            job = Job(new_id(), plan, operation, wall())
            self._jobs[job.id] = job
            while len(self._jobs) > MOST_KEPT:
                self._jobs.popitem(last=False)
            thread = threading.Thread(target=self._run, args=(job,), name="redrive", daemon=True)
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()
        return job

    def _run(self, job: Job) -> None:
        plan, operation = job.plan, job.operation
        facts = {"filter": plan.search.facts, "letters": plan.ready, "target": operation.target, "rate": operation.rate}
        try:
            recorder = self._audit.recorder(plan.actor, **facts)
            run_recorded(operation, plan.actor.who, recorder, self._looks.within(inf), job.stop)
        except ReconsumeError as failure:
            job.error = str(failure)
        except Exception as fault:  # noqa: BLE001 - the page must show it; else it would be lost with the thread
            job.error = f"a fault of reconsume itself: {type(fault).__name__}: {fault}"
        job.ended = wall()

    def job(self, job_id: str) -> Job | None:
        """Return a redrive, or None if it is no longer kept."""
        return self._jobs.get(job_id)

    def stop(self, job: Job, actor: Actor) -> None:
        """Stop a redrive between two transactions."""
        self._audit.write("redrive-stop", actor, records=job.operation.changed)
        job.stop.set()

    def close(self, seconds: float) -> None:
        """Stop every redrive between two transactions, and wait up to `seconds` for each."""
        for job in list(self._jobs.values()):
            job.stop.set()
        for thread in self._threads:
            thread.join(seconds)


def new_id() -> str:
    """Return the name of a new plan or job, which nobody can guess."""
    return secrets.token_urlsafe(16)


class LetterForms:
    """The endpoints of these forms; created only if there is a token file."""

    def __init__(
        self, render: Renderer, asker: ThreadQueries, scans: ThreadQueries, looks: Queries, actions: LetterActions
    ) -> None:
        self._render, self._ask, self._scan, self._actions = render, asker, scans, actions
        self._topics = looks.letters.topics

    async def plan(self, request: Request, session: Session | None) -> Response:
        """Make a dry run of a redrive and show its plan."""
        form, search = await self._selection(request, session)
        plan = await self._scan(lambda: self._actions.plan_redrive(search, form.actor))
        return self._render("plan.html", session=form.session, here="/dlq", plan=plan, operation=plan.operation)

    async def redrive(self, request: Request, session: Session | None) -> Response:
        """Carry out the plan of a redrive."""
        form = await read_signed(request, session)
        rate = parse_rate(form.fields.get("rate", ""))
        job = await self._ask(lambda: self._actions.begin_redrive(form.fields.get("plan", ""), form.actor, rate))
        return self._render.redirect(f"/dlq/redrives/{job.id}")

    async def job(self, request: Request, session: Session | None) -> Response:
        """Show the progress of a redrive, as a page or as the part of it that reloads."""
        job = self._actions.job(request.path_params["job"])
        if job is None or session is None:
            raise RefusedError("this redrive is not known here, or you are not signed in; the audit log has it")
        page = "job_part.html" if "hx-request" in request.headers else "job.html"
        return self._render(page, session=session, here="/dlq", job=job, results=list(job.operation.counts.results))

    async def stop(self, request: Request, session: Session | None) -> Response:
        """Stop a redrive between two transactions."""
        form, job = await read_signed(request, session), self._actions.job(request.path_params["job"])
        if job is None or job.ended is not None:
            raise RefusedError("it has ended already")
        await self._ask(lambda: self._actions.stop(job, form.actor))
        return self._render.redirect(f"/dlq/redrives/{job.id}")

    async def plan_dismissal(self, request: Request, session: Session | None) -> Response:
        """Show what would be dismissed, and ask for the reason."""
        form, search = await self._selection(request, session)
        plan = await self._scan(lambda: self._actions.plan_dismissal(search, form.actor))
        operation = plan.operation
        assert isinstance(operation, Dismissal)
        reasons = Counter(letter.reason for letter in operation.good)
        kept = [
            (*NOT_DISMISSED.get(state, NOT_DISMISSED[Eligibility.UNFIT]), count)
            for state, count in operation.kept_counts.most_common()
        ]
        return self._render(
            "dismissal.html",
            session=form.session,
            here="/dlq",
            plan=plan,
            operation=operation,
            reasons=reasons,
            kept=kept,
        )

    async def dismiss(self, request: Request, session: Session | None) -> Response:
        """Carry out the plan of a dismissal."""
        form = await read_signed(request, session)
        why = form.fields.get("why", "").strip()
        done = await self._scan(lambda: self._actions.dismiss(form.fields.get("plan", ""), why, form.actor))
        return self._render("dismissed.html", session=form.session, here="/dlq", done=done, why=why)

    async def _selection(self, request: Request, session: Session | None) -> tuple[SignedForm, LetterSearch]:
        """Return a form, and the dead letters that it is for."""
        form = await read_signed(request, session)
        return form, parse_selection(form.fields, form.positions, self._topics, wall())
