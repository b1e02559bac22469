"""The one mechanism behind every form that changes something: read, planned, agreed to, carried out, and logged.

A form asks for an operation (`sidecar/operation.py`), as a command does. A `FormKind` says how it is read from the
fields (`form_kinds.py` has all kinds); what follows is the same for all:

- **With a plan.** The first form is planned, and one page shows the plan of any operation (`plan.html`). What was asked
  for is kept here, and the second form names it, so that nobody can change it. It is carried out once, within
  PLAN_AGE seconds, by the user who planned it, by name and token. Of a kind that `renews` its plan, what is there then
  counts, and not what the page has shown.
- **At once.** A hold, a release and the decision about one record have no page between.
- **As a job.** What may take long runs on a thread of its own, one of its kind at a time. The page of the job reloads
  until it has ended, and `stop` ends it at a safe point. Everything else ends within seconds: what owners of partitions
  carry out is written and not waited for, and the next page shows how far it is.

Each plan and each action is a line of the audit log before anything is done. The endpoints are called on the event
loop, the rest on threads.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.kafka.clients import one_operation
from reconsume.sidecar.operation import Operation, Outcome, Plan, run_recorded
from reconsume.sidecar.ui.audit_log import Actor
from reconsume.sidecar.ui.endpoint import Page, Site, ThreadQueries, sound
from reconsume.sidecar.ui.letter_form import RefusedError
from reconsume.sidecar.ui.security import Session, SignedForm, read_signed

Facts = dict[str, object]
"""What the audit log has of an action besides what every operation says of itself."""

MOST_KEPT = 32
"""Plans and jobs that are kept."""
PLAN_AGE = 900.0
"""Seconds for which a plan may be carried out; after that its numbers are out of date."""
ENDED_WITHIN = 60.0
"""Seconds for a plan, and for what is no job."""
JOBS = "/dlq/jobs"
AT_ONCE = threading.Event()
"""The `stop` of what is no job: an operation that owners of partitions carry out is written, and not followed."""
AT_ONCE.set()


class WantedOperation(NamedTuple):
    """An operation that a form asks for, and what the audit log has of it."""

    operation: Operation
    facts: Facts


def agree_to_all(_operation: Operation, _fields: Mapping[str, str]) -> Facts:
    """Add nothing to a plan that is agreed to."""
    return {}


@dataclass(frozen=True, slots=True)
class FormKind:
    """One kind of form. `path`: where the form is sent that carries it out. `plan_path`: where the one before it is
    sent, which plans; empty: it is carried out at once.

    `read`: what a form asks for at a time (epoch ms). Raises BadFormError and RefusedError. `agree`: puts what the
    second form adds into the operation, and returns it for the audit log. Raises BadFormError. `next_page`: leads to
    what follows when it is carried out; not for a job, which has a page of its own. `renews`: whether it is planned
    again then.
    """

    path: str
    here: str
    read: Callable[[SignedForm, int], WantedOperation]
    ask: ThreadQueries
    plan_path: str = ""
    agree: Callable[..., Facts] = agree_to_all
    next_page: Callable[..., Response] | None = None
    renews: bool = False
    is_job: bool = False
    words: Mapping[str, str] = field(default_factory=dict)
    """What the page of its plan says: the `verb`, the `button`, and the input `rate` or `why` if it has one."""


class Planned(NamedTuple):
    """A plan that a page has shown. `at`: epoch ms; `made`: monotonic seconds."""

    id: str
    kind: FormKind
    form: SignedForm
    wanted: WantedOperation
    plan: Plan
    at: int
    made: float


@dataclass
class Job:
    """An operation on a thread of its own, which writes the fields; pages read them. `began`, `ended`: epoch ms."""

    id: str
    planned: Planned
    operation: Operation
    began: int
    ended: int | None = None
    error: str = ""
    outcome: Outcome | None = None
    stop: threading.Event = field(default_factory=threading.Event)


class OperationForms:
    """The plans and jobs of a group's pages, and the endpoints of its forms, which exist only if there is a token
    file."""

    def __init__(self, site: Site) -> None:
        self._render, self._ask, self._audit, self._within = site.render, site.ask, site.audit, site.looks.within
        self._plans: OrderedDict[str, Planned] = OrderedDict()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        return any(job.ended is None for job in self._jobs.copy().values())

    def pages_of(self, kinds: list[FormKind]) -> dict[str, Page]:
        """Return the endpoint of each form of these kinds, and of the one that stops a job, by their paths."""
        pages: dict[str, Page] = {f"{JOBS}/{{job}}/stop": self.stop_job}
        for kind in kinds:
            if kind.plan_path:
                pages[kind.plan_path] = partial(self._show_plan, kind=kind)
            pages[kind.path] = partial(self._agree if kind.plan_path else self._do_at_once, kind=kind)
        return pages

    # --- what threads do ---

    def plan(self, kind: FormKind, form: SignedForm) -> Planned:
        """Plan what a form asks for, and keep the plan. Nothing is written but a line of the audit log."""
        at = wall()
        wanted = kind.read(form, at)
        operation = wanted.operation
        self._audit.write(f"{operation.action}-plan", form.actor, what=operation.what, **wanted.facts)
        plan = operation.plan(self._within(ENDED_WITHIN))
        planned = Planned(secrets.token_urlsafe(16), kind, form, wanted, plan, at, time.monotonic())
        with self._lock:
            self._plans[planned.id] = planned
            while len(self._plans) > MOST_KEPT:
                self._plans.popitem(last=False)
        return planned

    def take_plan(self, kind: FormKind, form: SignedForm) -> Planned:
        """Return a plan that this user may carry out now, with what the form adds. It cannot be used again."""
        with self._lock:
            planned = self._plans.get(form.fields.get("plan", ""))
            is_good = planned is not None and planned.kind is kind and planned.form.actor[:2] == form.actor[:2]
            if planned is None or not is_good or time.monotonic() - planned.made > PLAN_AGE:
                raise RefusedError("the plan is used up or too old: plan it again")
            if not planned.plan.question:
                raise RefusedError(planned.plan.nothing)
            if kind.is_job and any(job.ended is None and job.planned.kind is kind for job in self._jobs.values()):
                raise RefusedError("another one is under way: wait for its end")
            operation, facts = planned.wanted
            facts = {**facts, **kind.agree(operation, form.fields)}
            del self._plans[planned.id]
            return planned._replace(wanted=WantedOperation(operation, facts))

    def prepare(self, kind: FormKind, form: SignedForm, at: int, fields: Mapping[str, str]) -> WantedOperation:
        """Read and plan what is to be carried out now. Raises RefusedError if there is nothing to do."""
        operation, facts = kind.read(form, at)
        facts = {**facts, **kind.agree(operation, fields)}
        plan = operation.plan(self._within(ENDED_WITHIN))
        if not plan.question:
            raise RefusedError(plan.nothing)
        return WantedOperation(operation, facts)

    def carry_out(self, wanted: WantedOperation, actor: Actor, seconds: float, stop: threading.Event) -> None:
        """Carry out what is planned, and log it."""
        recorder = self._audit.recorder(actor, **wanted.facts)
        run_recorded(wanted.operation, actor.who, recorder, self._within(seconds), stop)

    def begin_job(self, planned: Planned, fields: Mapping[str, str]) -> Job:
        """Carry out a plan on a thread of its own. `fields`: of the form that has agreed to it."""
        job = Job(secrets.token_urlsafe(16), planned, planned.wanted.operation, wall())
        thread = threading.Thread(target=self._run_job, args=(job, fields), name=job.operation.action, daemon=True)
        with self._lock:
            self._jobs[job.id] = job
            while len(self._jobs) > MOST_KEPT:
                self._jobs.popitem(last=False)
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()
        return job

    def _run_job(self, job: Job, fields: Mapping[str, str]) -> None:
        kind, form, wanted = job.planned.kind, job.planned.form, job.planned.wanted
        try:
            with one_operation():
                if kind.renews:
                    wanted = self.prepare(kind, form, job.planned.at, fields)
                    job.operation = wanted.operation
                self.carry_out(wanted, form.actor, inf, job.stop)
        except ReconsumeError as failure:
            job.error = str(failure)
        except Exception as fault:  # noqa: BLE001 - the page must show it; else it would be lost with the thread
            job.error = f"a fault of reconsume itself: {type(fault).__name__}: {fault}"
        if not job.error or job.operation.changed:
            job.outcome = job.operation.outcome()
        job.ended = wall()

    def close(self, seconds: float) -> None:
        """Stop every job at a safe point, and wait up to `seconds` for each."""
        for job in list(self._jobs.values()):
            job.stop.set()
        for thread in self._threads:
            thread.join(seconds)

    # --- endpoints ---

    async def _show_plan(self, request: Request, session: Session | None, kind: FormKind) -> Response:
        form = await read_signed(request, session)
        planned = await kind.ask(lambda: sound(lambda: self.plan(kind, form)))
        return self._render("plan.html", session=form.session, here=kind.here, planned=planned, plan=planned.plan)

    async def _agree(self, request: Request, session: Session | None, kind: FormKind) -> Response:
        form = await read_signed(request, session)
        planned = self.take_plan(kind, form)
        if kind.is_job:
            return self._render.redirect(f"{JOBS}/{self.begin_job(planned, form.fields).id}")
        await kind.ask(lambda: sound(lambda: self.carry_out(planned.wanted, form.actor, ENDED_WITHIN, AT_ONCE)))
        return self._next_page(kind, planned.wanted.operation)

    async def _do_at_once(self, request: Request, session: Session | None, kind: FormKind) -> Response:
        form = await read_signed(request, session)

        def done() -> Operation:
            wanted = self.prepare(kind, form, wall(), form.fields)
            self.carry_out(wanted, form.actor, ENDED_WITHIN, AT_ONCE)
            return wanted.operation

        return self._next_page(kind, await kind.ask(lambda: sound(done)))

    def _next_page(self, kind: FormKind, operation: Operation) -> Response:
        return self._render.redirect("/") if kind.next_page is None else kind.next_page(operation)

    async def show_job(self, request: Request, session: Session | None) -> Response:
        """Show the progress of a job, as a page or as the part of it that reloads."""
        job = self._jobs.get(request.path_params["job"])
        if job is None or session is None:
            raise RefusedError("this is not known here, or you are not signed in; the audit log has it")
        page = "job_part.html" if "hx-request" in request.headers else "job.html"
        return self._render(page, session=session, here=job.planned.kind.here, job=job)

    async def stop_job(self, request: Request, session: Session | None) -> Response:
        """Stop a job at a safe point."""
        form, job = await read_signed(request, session), self._jobs.get(request.path_params["job"])
        if job is None or job.ended is not None:
            raise RefusedError("it has ended already")
        operation = job.operation
        await self._ask(lambda: self._audit.write(f"{operation.action}-stop", form.actor, records=operation.changed))
        job.stop.set()
        return self._render.redirect(f"{JOBS}/{job.id}")
