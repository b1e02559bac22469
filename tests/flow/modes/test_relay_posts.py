"""Posts to a relay whose Kafka answers late or not at all: each caller is told what is known, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.kafka.topic_io import Row, dump
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.relay import RELAY, now, post, post_of
from tests.support.sidecar.scene import Proxied

pytestmark = pytest.mark.usefixtures("cleared")

MANY = 60


@pytest.fixture(scope="module")
def group(proxied: Proxied) -> GroupTopics:
    return create_group(fresh_group(proxied.kafka.bootstrap))


@pytest.fixture(scope="module")
def relay(proxied: Proxied, group: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarProcess]:
    config = {**RELAY, "kafka": {"bootstrap.servers": proxied.proxy.address}}
    with SidecarProcess(group, "", tmp_path_factory.mktemp("relay"), overrides=config) as relay:
        relay.wait_ready()
        yield relay


def failed(offset: int) -> Row:
    return Row(0, offset, now(), b"k", b"v", (("tenant", b"acme"),))


def copies(group: GroupTopics, offset: int) -> int:
    ident = f"{group.main}:0:{offset}".encode()
    level = group.names.level(1_000, group.main)
    return sum(dict(row.headers).get("ORIGIN_MESSAGE_ID") == ident for row in dump(group.bootstrap, level))


def poster(group: GroupTopics, relay: SidecarProcess) -> str:
    """What the client id of posts contains, and no other does."""
    return f"{group.group}-post-{relay.pod}"


def test_posts_that_come_together_share_a_transaction(
    proxied: Proxied, group: GroupTopics, relay: SidecarProcess
) -> None:
    series = 'reconsume_transactions_total{result="committed"}'
    before = relay.metric(series)
    proxied.proxy.add(Rule(Api.END_TXN, poster(group, relay), Moment.ARRIVED, delay=0.5))
    with ThreadPoolExecutor(MANY) as pool:
        answers = list(pool.map(lambda n: post(relay, post_of(group.main, failed(n))), range(MANY)))
    assert [answer.status for answer in answers] == [201] * MANY
    assert relay.metric(series) - before < MANY / 2
    assert [copies(group, number) for number in (0, MANY - 1)] == [1, 1]


@pytest.mark.long
def test_an_end_that_nobody_knows_is_said_and_the_post_may_be_repeated(
    proxied: Proxied, group: GroupTopics, relay: SidecarProcess
) -> None:
    proxied.proxy.add(Rule(Api.END_TXN, poster(group, relay), Moment.ANSWERED, times=100_000, fate=Fate.CUT))
    answer = post(relay, post_of(group.main, failed(1_000)))
    assert answer.status == 503
    assert "not known whether it was written" in answer.json["detail"]
    proxied.proxy.clear()
    assert post(relay, post_of(group.main, failed(1_000))).status == 201
    assert copies(group, 1_000) in (1, 2)
    assert post(relay, post_of(group.main, failed(1_001))).status == 201
    assert copies(group, 1_001) == 1
