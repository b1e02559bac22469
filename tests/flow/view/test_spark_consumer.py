"""Spark jobs as consumers, killed between the writes of a batch and its commit: nothing lost or twice, never early.

Both examples run as they are; only the handler, the ladder and the place to be killed are the test's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from reconsume.sidecar.java.jars import fetch
from reconsume.sidecar.java.spark_job import lock_for
from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.flow.view.spark_job import SparkJob, SparkProcess
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.raw_producer import produce_raw
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.evidence import Evidence, read_committed_progress
from tests.support.proof.invariants import altered, chain_of, due_of, lost
from tests.support.proof.ledger import TOOK
from tests.support.sidecar.relay import RELAY

pytestmark = pytest.mark.long

SPARK_LOCK = lock_for(version("pyspark"))
STARTED = 200.0
"""Seconds within which a job starts and comes so far: Spark takes 6 to 12 s on a quiet machine."""
OWN = (("trace", b"1"), ("tag", None), ("trace", b"\xff"), ("RECONSUMETIMES", b"99"))
SCRIPTS = [b"fine", b"flaky", b"poison", b"patient", b"dead", b"flaky"]
RETRIES = 2
"""max_reconsume_times."""
ENDS = {b"fine": 0, b"flaky": 1, b"patient": 1, b"dead": 0, b"poison": RETRIES, b"unreadable": -1}
"""With which RECONSUMETIMES each script ends; −1: it is never handled."""
DEAD = {b"poison": b"LookupError", b"dead": b"bad-sku", b"unreadable": b"headers-unreadable"}
"""Those that end in the DLQ, and why."""


def produce_all(group: GroupTopics) -> None:
    values = [b"%s %d" % (script, number) for number, script in enumerate(SCRIPTS)]
    records = [Out(value, b"k%d" % number, OWN, number % 2) for number, value in enumerate(values)]
    records += [Out(b"flaky without headers", None, (), 0)]
    produce(group.bootstrap, group.main, records)
    produce_raw(group.bootstrap, group.main, 0, b"unreadable", b"k", [(b"\xff", b"1")])


def collect(job: SparkJob) -> Evidence:
    """All that there is by now. The checkpoint is the job's progress; what moves level records by relay has its own."""
    group = job.group
    levels = read_committed_progress(group, group.names.retry_group, tuple(group.levels))
    progress = {**levels, **job.progress()}
    return Evidence(
        group=group,
        mains={topic: tuple(dump(group.bootstrap, topic)) for topic in group.mains},
        retries={topic: tuple(dump(group.bootstrap, topic)) for topic in group.retries},
        dlq=tuple(dump(group.bootstrap, group.dlq)),
        events=tuple(dump(group.bootstrap, group.names.events)),
        progress=progress,
        deliveries=job.deliveries(),
    )


def is_over(evidence: Evidence) -> bool:
    """Whether every record was taken or is dead, and all that lies in the topics is committed."""
    ended = {d.id for d in evidence.deliveries if d.means == TOOK} | {copy.id for copy in evidence.dead}
    rows = [
        (topic, row) for topics in (evidence.mains, evidence.retries) for topic, rows in topics.items() for row in rows
    ]
    return ended == evidence.sources.keys() and all(evidence.covers(topic, row) for topic, row in rows)


def early(evidence: Evidence) -> Iterator[str]:
    """Retries that were handled before their due time, or before their level was over."""
    for delivery in evidence.deliveries:
        chain = chain_of(evidence, delivery)
        assert (chain is not None) == (delivery.times > 0)
        if chain is not None and delivery.received < due_of(evidence, chain[:1]):
            yield f"{delivery.idempotency_key} came {due_of(evidence, chain[:1]) - delivery.received} ms early"


@pytest.fixture(scope="module")
def evidence(
    new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Evidence]:
    """What each example leaves behind, once every record has come to its end. One driver for both: it starts slowly."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("relay", "gated")}
    jobs = [SparkJob(f"examples.spark_{name}", new_group(), folder) for name, folder in folders.items()]
    for job in jobs:
        create_group(job.group, also=(Kind.POLICY,))
        produce_all(job.group)
    start_sidecar(jobs[0].group, "", overrides=RELAY)
    with SparkProcess(jobs, fetch(SPARK_LOCK), max_reconsume_times=RETRIES) as driver:
        driver.until(lambda: all(job.held for job in jobs), STARTED, "both have written and not committed")
        driver.kill()
        driver.start()
        driver.until(lambda: all(is_over(collect(job)) for job in jobs), STARTED, "every record has come to its end")
    return {job.example: collect(job) for job in jobs}


EXAMPLES = pytest.mark.parametrize("example", ["examples.spark_relay", "examples.spark_gated"])


@EXAMPLES
def test_a_killed_job_loses_nothing_and_alters_nothing(evidence: dict[str, Evidence], example: str) -> None:
    found = evidence[example]
    assert [*lost(found), *altered(found)] == []
    for identity, (_, row) in found.sources.items():
        script = (row.value or b"").split()[0]
        assert {d.times for d in found.deliveries if d.id == identity} == set(range(ENDS[script] + 1))
        dead = {(copy.times, copy.ours["RETRY_REASON"]) for copy in found.dead if copy.id == identity}
        assert dead == ({(max(ENDS[script], 0), DEAD[script])} if script in DEAD else set())


@EXAMPLES
def test_no_retry_is_handled_before_it_is_due(evidence: dict[str, Evidence], example: str) -> None:
    assert list(early(evidence[example])) == []


@EXAMPLES
def test_a_repeated_batch_writes_no_copy_twice(evidence: dict[str, Evidence], example: str) -> None:
    found = evidence[example]
    chains = [chain for life in found.lives.values() for chain in life.values()]
    assert [chain for chain in chains if len({copy.topic for copy in chain}) < len(chain)] == []
    calls = Counter((delivery.id, delivery.times) for delivery in found.deliveries)
    assert any(number > 1 for number in calls.values()), "no batch was repeated"


@EXAMPLES
def test_each_change_of_a_record_is_told_with_the_copys_due_time(evidence: dict[str, Evidence], example: str) -> None:
    found = evidence[example]
    events = [json.loads(row.value or b"") for row in found.events]
    assert max(Counter((e["id"], e["state"], e["times"]) for e in events).values()) == 1
    waiting = {(e["id"], e["times"], e["due"]) for e in events if e["state"] == "WAITING_RETRY"}
    assert waiting == {(c[0].id, c[0].times, c[0].due) for life in found.lives.values() for c in life.values()}
    ended = {(e["id"], e["state"], e["times"]) for e in events if e["state"] != "WAITING_RETRY"}
    dead = {(copy.id, "DLQ", copy.times) for copy in found.dead}
    took = {(d.id, "COMMIT", d.times) for d in found.deliveries if d.means == TOOK and d.times}
    assert ended == dead | took
