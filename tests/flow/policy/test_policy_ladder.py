"""A ladder that keeps the order, begun and ended by the group's policy while records are delivered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.modes.test_ordered_park import put
from tests.support.kafka.group_topics import create_specs, specs_of
from tests.support.kafka.topic_io import dump
from tests.support.proof.audited import violations
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import BadFails
from tests.support.sidecar.config import Config
from tests.support.sidecar.policy import follows, set_policy, with_policy

IN_PLACE: Config = {"deliver": {"order": "key", "outage_failures": None}, "retry": {"ordered_interval": "100ms"}}
LADDER = {"ordered_ladder": ["1s", "2s"], "max_reconsume_times": 1}


def test_a_key_that_fails_in_place_waits_in_its_queue_once_the_group_has_a_ladder_and_goes_on_without(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = with_policy(replace(new_group(), delays=(), queued=True))
    bad = BadFails()
    service = start_service(bad)
    sidecar = start_sidecar(group, service.url, overrides=IN_PLACE)
    values = (b"bad", b"behind", b"last")
    first, behind, last = put(group, *((value, b"a") for value in values))
    sidecar.until(lambda: len(service.ledger.of(first)) > 5, 20, "it is tried in place")
    assert dump(group.bootstrap, group.queues[0]) == []
    set_policy(group, **LADDER, ordered_exhausted="park")
    follows(sidecar, ordered_ladder=["1s", "2s"], ordered_exhausted="park")
    sidecar.until(lambda: sidecar.key_count("parked") == 1, 30, "it has used up its retries, and is parked")
    keys = sidecar.status()["keys"]
    assert (keys["blocked"], keys["behind"]) == (1, 2)
    assert (len(service.ledger.of(behind)), dump(group.bootstrap, group.dlq)) == (0, [])
    set_policy(group, **LADDER)
    sidecar.until(lambda: bool(service.ledger.of(behind)), 30, "it is a dead letter, and the next one goes")
    set_policy(group, ordered_ladder=None)
    follows(sidecar, ordered_ladder=None, ordered_exhausted="dead-letter")
    sidecar.until(lambda: bool(service.ledger.of(last)), 30, "what waits in the queue is delivered all the same")
    (letter,) = dump(group.bootstrap, group.dlq)
    assert dict(letter.headers)["RECONSUMETIMES"] == b"1", "tries in place are no retries of the ladder"
    (later,) = put(group, (b"bad", b"b"))
    sidecar.until(lambda: len(service.ledger.of(later)) > 3, 30, "a failure is tried in place again")
    bad.well.set()
    await_quiet(group, 30)
    assert sidecar.stop().code == 0
    assert violations(group, tmp_path, {**IN_PLACE, "retry": {"ordered_ladder": ["1s", "2s"]}}) == []


def test_a_ladder_whose_queue_topics_were_created_just_before_is_applied_and_nobody_reads_that_it_was_refused(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """An instance looks at the topics of the cluster once a minute: what it knows of them may be that old."""
    group = with_policy(replace(new_group(), delays=()))
    sidecar = start_sidecar(group, start_service(BadFails()).url, overrides=IN_PLACE)
    follows(sidecar, ordered_ladder=None)
    create_specs(group.bootstrap, [spec for spec in specs_of(replace(group, queued=True)) if spec.kind is Kind.ORDERED])
    set_policy(group, **LADDER)
    follows(sidecar, ordered_ladder=["1s", "2s"])
    assert "is not applied" not in sidecar.log()
    assert sidecar.stop().code == 0
