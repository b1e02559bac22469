"""A sidecar and a Spark query of one group, in both orders: whoever comes second ends before its first delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from reconsume.spark.consumer.claim import Claim, RetriesOwnedError
from reconsume.topics.names import Kind
from reconsume.topics.policy_record import instance_key
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.sidecar.relay import RELAY

SOON = 20.0


@pytest.fixture
def group(new_group: FreshGroup) -> GroupTopics:
    return create_group(new_group(), also=(Kind.POLICY,))


@pytest.fixture
def claims(group: GroupTopics) -> Iterator[Callable[..., Claim]]:
    made: list[Claim] = []

    def make(*, gated: bool) -> Claim:
        client = {"bootstrap.servers": group.bootstrap}
        made.append(Claim(client, group.names, "ship", group.mains, gated=gated, application="app-7", patience=1.0))
        return made[-1]

    yield make
    for claim in made:
        claim.withdraw()


@pytest.mark.parametrize(
    ("gated", "overrides"), [(True, {}), (True, RELAY), (False, {})], ids=["gated-push", "gated-relay", "relay-push"]
)
def test_a_sidecar_that_finds_a_query_ends_with_1_and_delivers_nothing_until_the_query_has_ended(
    group: GroupTopics,
    claims: Callable[..., Claim],
    start_sidecar: StartSidecar,
    start_service: StartService,
    gated: bool,
    overrides: Any,
) -> None:
    query, service = claims(gated=gated), start_service(lambda _: 200)
    query.hold()
    produce(group.bootstrap, group.main, [b"order"])
    url = "" if overrides else service.url
    refused = start_sidecar(group, url, overrides=overrides, wait=False)
    ended = refused.wait(SOON)
    assert ended.code == 1
    [line] = [line for line in refused.log().splitlines() if "retries-owned" in line]
    assert 'are read by the Spark query "ship" (host ' in line
    assert "application app-7" in line
    assert not service.ledger.deliveries()
    query.hold()
    query.withdraw()
    start_sidecar(group, url, "pod-1", overrides)
    if url:
        until(lambda: len(service.ledger.deliveries()) == 1, SOON, "the record is delivered")


def test_a_query_that_finds_a_sidecar_is_refused_and_one_of_a_relay_shares_with_it(
    group: GroupTopics, claims: Callable[..., Claim], start_sidecar: StartSidecar
) -> None:
    relay = start_sidecar(group, "", overrides=RELAY)
    with pytest.raises(RetriesOwnedError, match="the sidecar "):
        claims(gated=True).hold()
    shared = claims(gated=False)
    shared.hold()
    assert relay.running
    assert relay.stop().code == 0
    another = start_sidecar(group, "", "pod-1", overrides=RELAY)
    shared.hold()
    assert another.running


def test_a_running_sidecar_that_finds_a_query_delivers_nothing_new_and_ends(
    group: GroupTopics, claims: Callable[..., Claim], start_sidecar: StartSidecar, start_service: StartService
) -> None:
    """It was thought to be gone: here its heartbeat was deleted, elsewhere it was frozen for three minutes."""
    service = start_service(lambda _: 200)
    sidecar = start_sidecar(group, service.url)
    instance = sidecar.status()["instance"]

    def begun() -> Claim | None:
        produce(group.bootstrap, group.names.policy, [Out(None, instance_key(instance), partition=0)])
        query = claims(gated=True)
        with suppress(RetriesOwnedError):  # the sidecar has just sent another heartbeat
            query.hold()
            return query
        return None

    query = until(begun, 30, "a query begins while nobody has heard of the sidecar")
    assert query is not None
    assert sidecar.wait(90.0).code == 1
    assert "retries-owned" in sidecar.log()
    query.hold()
