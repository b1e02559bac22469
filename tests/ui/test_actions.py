"""Plans and redrives behind the pages, on a real broker: what is refused, and what is told when Kafka refuses."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.sidecar.dlq.operations import Redrive
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.http.tokens import Token
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import MOST_WAITING, BusyError, Site, ThreadQueries
from reconsume.sidecar.ui.form_kinds import kinds_of
from reconsume.sidecar.ui.letter_form import RefusedError
from reconsume.sidecar.ui.operation_forms import PLAN_AGE, FormKind, Job, OperationForms, Planned
from reconsume.sidecar.ui.overview import LastAlarms
from reconsume.sidecar.ui.queries import Queries, within
from reconsume.sidecar.ui.security import Session, SignedForm, ValueGate
from reconsume.sidecar.ui.templating import Renderer
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import produce
from tests.support.sidecar.redrive import dead_letter
from tests.ui.scene import settings_of

SECONDS = 30.0
TOKEN = Token("ops", b"a-token-of-20-letters")
SESSION = Session("s", "alice", TOKEN, "c", 0.0, 0.0)
ALICE = Actor("alice", "ops", "127.0.0.1")
EVERY = SignedForm(SESSION, ALICE, {}, ())


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """A group with two dead letters, whose ready topic is missing."""
    group = fresh_group(kafka.bootstrap, delays=(1_000,))
    create_group(group, partitions=1, leave_out=[group.names.ready])
    produce(group.bootstrap, group.dlq, [dead_letter(group, number) for number in range(2)])
    return group


class Desk(NamedTuple):
    """The forms of a group, and its kinds of forms by their paths."""

    forms: OperationForms
    kinds: Mapping[str, FormKind]
    looks: Queries

    def agreed(self, planned: Planned, actor: Actor = ALICE) -> Planned:
        form = EVERY._replace(actor=actor, fields={"plan": planned.id})
        return self.forms.take_plan(self.kinds["/dlq/redrive"], form)

    def planned(self) -> Planned:
        return self.forms.plan(self.kinds["/dlq/redrive"], EVERY)


@pytest.fixture
def desk(group: GroupTopics, tmp_path: Path) -> Desk:
    settings = settings_of(group, tmp_path)
    looks, gate = Queries(settings, build_policy(settings, "ui")), ValueGate("open")
    site = Site(
        Renderer({}, gate, ""), ThreadQueries(), ThreadQueries(), looks, gate, AuditLog(tmp_path / "audit.jsonl")
    )
    return Desk(OperationForms(site), {kind.path: kind for kind in kinds_of(site, LastAlarms())}, looks)


def ended(job: Job) -> Job:
    until(lambda: job.ended is not None, SECONDS, "the redrive has ended")
    return job


def test_a_plan_means_what_was_dead_when_it_was_made(desk: Desk) -> None:
    planned = desk.planned()
    operation = planned.wanted.operation
    assert isinstance(operation, Redrive)
    assert (operation.planned.redriven, operation.request.filter.until) == (2, planned.at)


def test_a_redrive_that_kafka_refuses_says_so_and_its_end_is_in_the_audit_log(desk: Desk, tmp_path: Path) -> None:
    job = ended(desk.forms.begin_job(desk.agreed(desk.planned()), {}))
    assert "nothing can be redriven: " in job.error
    assert job.operation.changed == 0
    last = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["action"], last["error"]) == ("redrive-result", job.error)
    assert {name: last[name] for name in ALICE._fields} == ALICE._asdict()


def test_a_plan_is_anothers_used_up_or_too_old(desk: Desk) -> None:
    planned = desk.planned()
    for other in (ALICE._replace(who="bob"), ALICE._replace(token="bob's")):
        with pytest.raises(RefusedError, match="plan it again"):
            desk.agreed(planned, other)
    desk.agreed(planned)
    with pytest.raises(RefusedError, match="plan it again"):
        desk.agreed(planned)
    old = planned._replace(made=planned.made - PLAN_AGE - 1)
    desk.forms._plans[old.id] = old
    with pytest.raises(RefusedError, match="plan it again"):
        desk.agreed(old)


def test_one_redrive_at_a_time(desk: Desk) -> None:
    planned = desk.planned()
    desk.forms._jobs["other"] = Job("other", planned, planned.wanted.operation, 0)
    with pytest.raises(RefusedError, match="under way"):
        desk.agreed(planned)


def test_what_waits_in_a_level_counts_before_anything_is_committed_there(group: GroupTopics, tmp_path: Path) -> None:
    settings = settings_of(group, tmp_path)
    (level,) = group.levels
    produce(group.bootstrap, level, [b"waits"] * 3)
    rows = {one.topic: (one.lag, one.fresh) for one in Queries(settings, build_policy(settings, "ui")).lags().rows}
    assert rows == {group.main: (0, 1), level: (3, 1)}


def test_a_reading_that_takes_too_long_is_ended() -> None:
    within(SECONDS)(0, 0)
    with pytest.raises(BrokerError, match="longer than 0 s"):
        until(lambda: within(0)(0, 0), SECONDS, "it is told")


def test_one_question_too_many_is_refused_and_not_queued() -> None:
    async def ask() -> None:
        asker, answer = ThreadQueries(), threading.Event()
        asked = [asyncio.ensure_future(asker(lambda: answer.wait(3.0))) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await asker(lambda: None)
        answer.set()
        await asyncio.gather(*asked)
        asker.close()

    asyncio.run(ask())
