"""Plans and redrives behind the pages, on a real broker: what is refused, and what is told when Kafka refuses."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import MOST_WAITING, BusyError, ThreadQueries
from reconsume.sidecar.ui.letter_actions import PLAN_AGE, Job, LetterActions
from reconsume.sidecar.ui.letter_form import RefusedError, parse_search
from reconsume.sidecar.ui.queries import Queries, within
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import produce
from tests.support.sidecar.redrive import dead_letter
from tests.ui.scene import settings_of

SECONDS = 30.0
ALICE = Actor("alice", "ops", "127.0.0.1")
EVERY = parse_search({}, 0)


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """A group with two dead letters, whose ready topic is missing."""
    group = fresh_group(kafka.bootstrap, delays=(1_000,))
    create_group(group, partitions=1, leave_out=[group.names.ready])
    produce(group.bootstrap, group.dlq, [dead_letter(group, number) for number in range(2)])
    return group


@pytest.fixture
def desk(group: GroupTopics, tmp_path: Path) -> LetterActions:
    settings = settings_of(group, tmp_path)
    return LetterActions(Queries(settings, build_policy(settings, "ui")), AuditLog(tmp_path / "audit.jsonl"))


def ended(desk: LetterActions, job: Job) -> Job:
    until(lambda: job.ended is not None, SECONDS, "the redrive has ended")
    return job


def test_a_plan_means_what_was_dead_when_it_was_made(desk: LetterActions) -> None:
    plan = desk.plan_redrive(EVERY, ALICE)
    assert plan.ready == 2
    assert plan.search.filter.until == plan.at


def test_a_redrive_that_kafka_refuses_says_so_and_its_end_is_in_the_audit_log(
    desk: LetterActions, tmp_path: Path
) -> None:
    job = ended(desk, desk.begin_redrive(desk.plan_redrive(EVERY, ALICE).id, ALICE))
    assert "nothing can be redriven: " in job.error
    assert job.operation.changed == 0
    last = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["action"], last["error"]) == ("redrive-result", job.error)
    assert {name: last[name] for name in ALICE._fields} == ALICE._asdict()


def test_a_plan_is_anothers_used_up_or_too_old(desk: LetterActions) -> None:
    plan = desk.plan_redrive(EVERY, ALICE)
    for other in (ALICE._replace(who="bob"), ALICE._replace(token="bob's")):
        with pytest.raises(RefusedError, match="new dry run"):
            desk.begin_redrive(plan.id, other)
    ended(desk, desk.begin_redrive(plan.id, ALICE))
    with pytest.raises(RefusedError, match="new dry run"):
        desk.begin_redrive(plan.id, ALICE)
    old = plan._replace(made=plan.made - PLAN_AGE - 1)
    desk._plans[old.id] = old
    with pytest.raises(RefusedError, match="new dry run"):
        desk.begin_redrive(old.id, ALICE)


def test_one_redrive_at_a_time(desk: LetterActions) -> None:
    plan = desk.plan_redrive(EVERY, ALICE)
    desk._jobs["other"] = Job("other", plan, plan.operation, 0)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="under way"):
        desk.begin_redrive(plan.id, ALICE)


def test_what_waits_in_a_level_counts_before_anything_is_committed_there(group: GroupTopics, tmp_path: Path) -> None:
    settings = settings_of(group, tmp_path)
    (level,) = group.levels
    produce(group.bootstrap, level, [b"waits"] * 3)
    rows = {one.topic: (one.lag, one.fresh) for one in Queries(settings, build_policy(settings, "ui")).lags().rows}
    assert rows == {group.main: (0, 1), level: (3, 1)}


def test_a_reading_that_takes_too_long_is_ended(desk: LetterActions) -> None:
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
