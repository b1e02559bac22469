"""The view against the truth: real sidecars that fail and are killed, and a job that is killed again and again, which a
supervisor starts again, and whose VIEW topic is recreated. At rest it must be what the full dumps say, row by row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from reconsume.sidecar.view.query import Filters
from reconsume.sidecar.view.reader import looking
from reconsume.sidecar.view.source import Source
from reconsume.topics.names import Kind, Names
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, Row, delete_topics, dump, produce
from tests.support.kafka.view_topics import Value, create_view_topics, folded, view_of
from tests.support.proof.checker import check
from tests.support.proof.evidence import Evidence, collect
from tests.support.proof.load import Load, uneven
from tests.support.proof.quiet import await_quiet
from tests.support.sidecar.view_process import GONE_SECONDS, SELDOM, START_SECONDS, Batches, ViewProcess

pytestmark = pytest.mark.long

RATE = 60
"""Records a second; a good third of them fails."""
SOON = 90.0
QUIET = 60.0
REPEATED = 20
DEATHS = ("java", "driver", "java", "driver")


def recreate_view(bootstrap: str, group: str) -> None:
    """Delete the VIEW topic and create it again, faster than the job looks: its rows must all come again."""
    delete_topics(bootstrap, Names(group).view)
    create_view_topics(bootstrap, group, [Kind.VIEW])


class Truth(NamedTuple):
    """What is in the topics at rest."""

    evidence: Evidence
    events: list[Row]
    view: dict[str, Value]
    kills: list[str]
    folded_view: dict[str, Value]


def crash(job: ViewProcess, there: Callable[[], object], what: str) -> None:
    """SIGKILL where the query is `there`: Java stands still while that is seen, as nothing is left of it later."""
    for _ in range(100):
        java = job.java()
        job.until(there, SOON, what)
        java.suspend()
        if there():
            job.crash()
            return
        java.resume()
    raise AssertionError(f"no kill came while {what}")


def kill_and_restart(job: ViewProcess, which: str) -> None:
    """SIGKILL of Java or of the driver, and a new start, as a supervisor does it."""
    if which == "java":
        job.java().kill()
        assert job.process.wait(GONE_SECONDS) == 1
    else:
        job.driver().kill()
        assert job.process.wait(GONE_SECONDS) == 1
    job.await_gone()
    job.start()


def settle(job: ViewProcess, bootstrap: str, group: str, events_topic: str) -> None:
    """Wait until the view has a row for each record that the events tell of, with the same state."""

    def same() -> bool:
        truth = folded(dump(bootstrap, events_topic))
        return view_of(bootstrap, group) == truth

    try:
        job.until(same, SOON, "the view is what the events say", SELDOM)
    except AssertionError as late:
        truth, view = folded(dump(bootstrap, events_topic)), view_of(bootstrap, group)
        wrong = [(identity, view.get(identity), row) for identity, row in truth.items() if view.get(identity) != row]
        late.add_note(f"{len(wrong)} of {len(truth)} rows differ in a view of {len(view)}: {wrong[:2]}")
        raise


@pytest.fixture(scope="module")
def truth(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, folder: Path) -> Truth:
    group = create_group(new_group(), also=(Kind.VIEW,))
    names, kills, chance = group.names, list[str](), Random(5)
    batches = Batches(folder / "view")
    service = start_service(uneven)
    with ViewProcess(group.bootstrap, folder / "view", group=group.group) as job:
        sidecar = start_sidecar(group, service.url)
        with Load(group, RATE):
            job.until(lambda: view_of(group.bootstrap, group.group), START_SECONDS, "the view has rows", SELDOM)
            crash(job, batches.inside, "a batch is under way")  # begun, and never done
            kills.append("inside")
            sidecar.kill()
            sidecar.start()
            job.start()
            for which in DEATHS:
                job.until(batches.done, START_SECONDS, "it has gone on")
                time.sleep(chance.random())  # it dies at any moment of a batch, or between two
                kill_and_restart(job, which)
                kills.append(which)
            job.until(batches.done, START_SECONDS, "it has gone on")
            recreate_view(group.bootstrap, group.group)
            kills.append("view recreated")
        await_quiet(group, QUIET)
        evidence = collect(group, service.ledger)
        crash(job, batches.between, "no batch is under way")
        kills.append("between")
        recreate_view(group.bootstrap, group.group)
        # An event that is written again changes no row.
        rows = dump(group.bootstrap, names.events)
        again = [Out(row.value, row.key, partition=row.partition, timestamp=row.timestamp) for row in rows[:REPEATED]]
        produce(group.bootstrap, names.events, again)
        job.start()
        settle(job, group.bootstrap, group.group, names.events)
        assert job.stop() == 0
    sidecar.stop()
    view, events = view_of(group.bootstrap, group.group), dump(group.bootstrap, names.events)
    return Truth(evidence, events, view, kills, read_events_once(group.bootstrap, names))


def read_events_once(bootstrap: str, names: Names) -> dict[str, Value]:
    """The rows as a reader folds them that needs no job."""
    with looking({"bootstrap.servers": bootstrap}, names, Source.EVENTS) as look:
        look.read_all(lambda read, total: None)
        with look.questions() as ask:
            rows = [json.loads(value) for value in ask.every_message(Filters())]
    return {row["id"]: row for row in rows}


def test_the_view_is_what_the_events_say_row_by_row(truth: Truth) -> None:
    assert truth.kills == ["inside", *DEATHS, "view recreated", "between"]
    assert truth.view == folded(truth.events)
    assert len(truth.view) > 100


def test_the_view_is_what_the_topics_of_records_say(truth: Truth) -> None:
    """Not only the events: a dead letter is DLQ, every other record that was ever retried is COMMIT at rest."""
    dead = {copy.id for copy in truth.evidence.dead}
    retried = {identity for identity, _ in truth.evidence.lives}
    states = {identity: value["state"] for identity, value in truth.view.items() if identity != "none:0:1"}
    assert states == {**dict.fromkeys(retried, "COMMIT"), **dict.fromkeys(dead, "DLQ")}
    assert dead
    assert check(truth.evidence).waiting == 0


def test_the_form_without_a_job_says_the_same_row_by_row(truth: Truth) -> None:
    assert truth.folded_view == truth.view
