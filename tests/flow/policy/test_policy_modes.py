"""A policy that is changed while a sidecar runs holds in every mode, for what fails from then on."""

from __future__ import annotations

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.proof.ledger import Ledger
from tests.support.service.behaviours import FAIL
from tests.support.service.puller import PULL, Got, Puller
from tests.support.sidecar.config import Config
from tests.support.sidecar.policy import follows, set_policy, with_policy
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.relay import RELAY, post, post_of

SOON = 20.0
FAILING = {"concurrency": 2, "outage_failures": None}
"""For a service that fails everything."""


def dead(group: GroupTopics) -> list[tuple[bytes | None, bytes | None]]:
    """The value of each dead letter, and how often it was retried."""
    return sorted((row.value, dict(row.headers)["RECONSUMETIMES"]) for row in dump(group.bootstrap, group.dlq))


def waiting(group: GroupTopics, delay: int) -> list[Row]:
    return dump(group.bootstrap, group.names.level(delay, group.main))


def told(group: GroupTopics) -> bytes:
    """All that the policy topic has."""
    return b"".join(row.value or b"" for row in dump(group.bootstrap, group.names.policy))


def test_a_batch_that_fails_goes_by_the_new_ladder_and_limit(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    service = start_service(lambda _request: FAIL)
    config: Config = {"deliver": {**FAILING, "batch": {"max_size": 8}}, "retry": {"ladder": ["5s"]}}
    sidecar = start_sidecar(group, service.url, overrides=config)
    set_policy(group, ladder=["1s"], max_reconsume_times=1)
    follows(sidecar, ladder=["1s"], max_reconsume_times=1)
    produce(group.bootstrap, group.main, [b"order %d" % number for number in range(8)])
    sidecar.until(lambda: len(dead(group)) == 8, SOON, "the first retry is the last")
    assert {times for _, times in dead(group)} == {b"1"}
    assert (len(waiting(group, 1_000)), waiting(group, 5_000)) == (8, [])


def test_a_record_that_is_retried_in_place_without_limit_dies_by_a_limit_that_is_set(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """The record that stands in the way has failed too often by now; the one behind it gets all its tries."""
    group = with_policy(new_group())
    service = start_service(lambda _request: FAIL)
    config: Config = {"deliver": {**FAILING, "order": "key"}, "retry": {"ordered_interval": "50ms"}}
    sidecar = start_sidecar(group, service.url, overrides=config)
    produce(group.bootstrap, group.main, [Out(b"first", b"k"), Out(b"behind", b"k")])
    sidecar.until(lambda: len(service.ledger.deliveries()) > 10, SOON, "the first is retried again and again")
    assert {delivery.value for delivery in service.ledger.deliveries()} == {b"first"}
    sidecar.until(lambda: b'"retried_in_place":1' in told(group), 40.0, "its heartbeat says so")
    set_policy(group, ordered_max_times=3)
    sidecar.until(lambda: len(dead(group)) == 2, SOON, "both are dead")
    (_, behind), (_, first) = dead(group)
    assert behind == b"3"
    assert int(first or 0) >= 10
    assert sum(delivery.value == b"behind" for delivery in service.ledger.deliveries()) == 4


def received(puller: Puller, sidecar: SidecarProcess) -> Got:
    """The next record, alone."""
    [got] = sidecar.until(lambda: puller.receive(1, wait="1s"), SOON, "a record is received")
    return got


def test_what_a_pulling_service_asks_to_retry_goes_by_the_new_ladder_and_limit(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    group = with_policy(new_group())
    sidecar = start_sidecar(group, "", overrides={**PULL, "retry": {"ladder": ["5s"]}})
    puller = Puller(sidecar, ledger)
    set_policy(group, ladder=["1s"], max_reconsume_times=1)
    follows(sidecar, ladder=["1s"], max_reconsume_times=1)
    produce(group.bootstrap, group.main, [b"order"])
    for times in range(2):
        got = received(puller, sidecar)
        assert (got.times, puller.later(got)) == (times, "ok")
    sidecar.until(lambda: dead(group) == [(b"order", b"1")], SOON, "the first retry was the last")
    assert (len(waiting(group, 1_000)), waiting(group, 5_000)) == (1, [])


def test_what_is_posted_to_a_relay_goes_by_the_new_ladder_and_limit(
    new_group: FreshGroup, start_sidecar: StartSidecar
) -> None:
    group = with_policy(new_group())
    sidecar = start_sidecar(group, "", overrides={**RELAY, "retry": {"ladder": ["5s"]}})
    set_policy(group, ladder=["1s"], max_reconsume_times=1)
    follows(sidecar, ladder=["1s"], max_reconsume_times=1)
    produce(group.bootstrap, group.main, [b"order"])
    [main] = dump(group.bootstrap, group.main)
    assert post(sidecar, post_of(group.main, main)).json["topic"] == group.names.level(1_000, group.main)
    [copy] = sidecar.until(lambda: dump(group.bootstrap, group.names.ready), SOON, "it is forwarded when it is due")
    assert post(sidecar, post_of(group.names.ready, copy)).json["topic"] == group.dlq
    assert dead(group) == [(b"order", b"1")]
