"""Redrives from the dashboard: planned by a dry run, carried out once, with the result of each record.

A plan belongs to one user, by name and token, and is used once. Its content stays on the server; the form only names
it. `dlq/redriver.py` does the redrive, one at a time, on a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.letters import Eligibility, Letter, RedriveRequest
from reconsume.sidecar.dlq.plan import LetterGroup, PlanCounts, plan_redrive
from reconsume.sidecar.dlq.redrive_target import planned_target
from reconsume.sidecar.dlq.redriver import Redriver
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.letter_form import LetterSearch, audit_facts
from reconsume.sidecar.ui.letter_queries import until
from reconsume.sidecar.ui.plans import MOST_KEPT, Plans, RefusedError, new_id
from reconsume.sidecar.ui.queries import Queries
from reconsume.topics.events import BY_REDRIVE

MOST_RESULTS = 1_000
"""Records whose results are shown; all records are counted."""
MOST_AT_ONCE = 100_000
DRY_RUN_SECONDS = 60.0


class Plan(NamedTuple):
    """The result of a dry run. `at`: epoch ms; `made`: monotonic seconds."""

    id: str
    actor: Actor
    search: LetterSearch
    request: RedriveRequest
    counts: PlanCounts
    target: str
    at: int
    made: float

    @property
    def ready(self) -> int:
        """The number of letters that would be redriven."""
        return self.counts.of(Eligibility.READY)


class Result(NamedTuple):
    """The outcome of one dead letter."""

    id: str
    position: str
    kind: LetterGroup


class Recorded(PlanCounts):
    """Plan counts that also keep each record's result, up to MOST_RESULTS."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Result] = []

    def count(self, letter: Letter, verdict: str, error: str = "") -> None:
        """Count a letter and keep its result."""
        super().count(letter, verdict, error)
        if len(self.results) < MOST_RESULTS:
            topic = "" if letter.retry_state is None else letter.retry_state.topic
            kind = LetterGroup(str(verdict), letter.reason, topic, error or letter.fault)
            self.results.append(Result(letter.id, letter.position, kind))


@dataclass
class Job:
    """A redrive, under way or ended. `began` and `ended`: epoch ms. Its thread writes the fields, pages read them.

    `rate`: dead letters a second; None: as fast as it goes.
    """

    id: str
    plan: Plan
    actor: Actor
    began: int
    rate: float | None = None
    ended: int | None = None
    error: str = ""
    counts: Recorded = field(default_factory=Recorded)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def redriven(self) -> int:
        """The number of letters redriven so far."""
        return self.counts.of(Eligibility.READY)


class Redrives:
    """The plans and redrives of this dashboard. Any thread may call it."""

    def __init__(self, looks: Queries, audit: AuditLog) -> None:
        self._looks, self._audit = looks, audit
        self.plans: Plans[Plan] = Plans()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def plan(self, query: LetterSearch, actor: Actor) -> Plan:
        """Make a dry run. Raises RefusedError, BrokerError, ContractError or SetupError."""
        if Eligibility.READY not in query.states:
            raise RefusedError("only dead letters that are ready can be redriven: choose that state")
        at = wall()
        query = until(query, at)  # later dead letters are not part of the plan
        request = RedriveRequest(query.filter)
        self._audit.write("dry-run", actor, filter=audit_facts(query))
        counts = plan_redrive(
            self._looks.letters, self._looks.policy, request, MOST_AT_ONCE, self._looks.within(DRY_RUN_SECONDS)
        )
        target = planned_target(self._looks.policy)
        plan = Plan(new_id(), actor, query, request, counts, target, at, time.monotonic())
        with self._lock:
            self.plans.put(plan)
        return plan

    def carry_out(self, plan_id: str, actor: Actor, rate: float | None = None) -> Job:
        """Start the redrive of a plan, which cannot be used again. Raises RefusedError, SetupError.

        `rate`: dead letters a second; None: as fast as it goes.
        """
        with self._lock:
            if any(job.ended is None for job in self._jobs.values()):
                raise RefusedError("another redrive is under way: wait for its end")
            plan = self.plans.find(plan_id, actor)
            conditions = audit_facts(plan.search)
            self._audit.write("redrive", actor, filter=conditions, letters=plan.ready, target=plan.target, rate=rate)
            self.plans.drop(plan_id)
            job = Job(new_id(), plan, actor, wall(), rate)
            self._jobs[job.id] = job
            while len(self._jobs) > MOST_KEPT:
                self._jobs.popitem(last=False)
            thread = threading.Thread(target=self._run, args=(job,), name="redrive", daemon=True)
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()
        return job

    def job(self, job_id: str) -> Job | None:
        """Return a redrive, or None if it is no longer kept."""
        return self._jobs.get(job_id)

    def stop(self, job: Job, actor: Actor) -> None:
        """Stop a redrive between two transactions. Raises SetupError if the audit log cannot be written."""
        self._audit.write("redrive-stop", actor, redriven=job.redriven)
        job.stop.set()

    def close(self, seconds: float) -> None:
        """Stop every redrive between two transactions, and wait up to `seconds` for each."""
        for job in list(self._jobs.values()):
            job.stop.set()
        for thread in self._threads:
            thread.join(seconds)

    def _run(self, job: Job) -> None:
        plan, error = job.plan, ""
        policy = replace(self._looks.policy, instance=f"{BY_REDRIVE}{plan.actor.who}@ui")
        try:
            with Redriver(self._looks.letters, policy, plan.request, job.stop) as redriver:
                redriver.counts = job.counts
                redriver.run(max(1, plan.ready), job.rate, self._looks.within(inf))
        except ReconsumeError as failure:
            error = str(failure)
        except Exception as fault:  # noqa: BLE001 - the page must show it; else it would be lost with the thread
            error = f"a fault of reconsume itself: {type(fault).__name__}: {fault}"
        job.error = error
        try:
            self._audit.write("redrive-end", job.actor, redriven=job.redriven, error=error)
        except ReconsumeError as failure:
            job.error = f"{error}; {failure}" if error else str(failure)
        job.ended = wall()
