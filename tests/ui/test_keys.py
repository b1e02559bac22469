"""The pages of an ordered group's keys, on a real broker, without a browser: what waits, and the queue of one key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from reconsume.sidecar.clock import wall
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.instance_sums import InstanceSums, TopicFailures
from reconsume.topics.policy_record import SubscriptionRecord, instance_key, render_record
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.queue_copies import AT, queue_copy
from tests.support.kafka.topic_io import Out, produce
from tests.ui.hostile import ATTACKS
from tests.ui.scene import Scene, dashboard
from tests.ui.test_screens import fits
from tests.ui.web import Visitor

BINARY = bytes(range(200, 250))
LONG = b"k" * 400


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """An ordered group in which four records of `ada` wait, one of each attack and odd key, one that is parked, and one
    that is retried in place."""
    group = create_group(replace(fresh_group(kafka.bootstrap, delays=()), queued=True), partitions=1, also=UNUSED)
    queue = group.queues[0]
    ada = [queue_copy(queue, b"ada", origin, origin == 0, topic=group.main) for origin in range(4)]
    odd = [BINARY, LONG, None, *(attack.encode() for attack in ATTACKS)]
    others = [queue_copy(queue, key, 10 + number, 2, topic=group.main) for number, key in enumerate(odd)]
    parked = queue_copy(queue, b"dan", 500, 2, topic=group.main, parked=True)
    tried = queue_copy(queue, b"eva", 600, 2, topic=group.main, due=AT)
    produce(group.bootstrap, queue, [*ada, *others, parked, tried])
    sums = InstanceSums(wall(), [TopicFailures(group.main, 37, 36, {"http-409": 36})])
    head = InPlaceTold(f"{group.main}:0:77", 12, wall() - 1, wall() - 90_000, "http-409")
    queued = InPlaceTold(f"{group.main}:0:600", 13, wall(), wall() - 1, "http-503")
    stuck = SubscriptionRecord({group.main: "*"}, wall(), sums=sums, retried_in_place=2, in_place=(head, queued))
    produce(group.bootstrap, group.names.policy, [Out(render_record(stuck), instance_key("pod-0"), partition=0)])
    return group


@pytest.fixture(scope="module")
def shown(group: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with dashboard(group, tmp_path_factory.mktemp("keys")) as scene:
        yield scene


@pytest.fixture(scope="module")
def visitor(shown: Scene) -> Visitor:
    return Visitor(shown)


def body(visitor: Visitor, path: str, status: int = 200) -> str:
    answer = visitor.get(path)
    assert answer.status == status
    return answer.body.decode()


def test_the_keys_are_listed_with_the_longest_queue_first(visitor: Visitor, group: GroupTopics) -> None:
    page = body(visitor, "/keys")
    rows = re.findall(
        r'<td data-label="Key"><a class="mono" href="([^"]+)">(.*?)</a></td>.*?class="number">(\d+)', page
    )
    assert len(rows) == 6 + len(ATTACKS)
    assert rows[0] == ("/keys/queue?base64=YWRh", "ada", "3")
    named = {unescape(text): address for address, text, _ in rows}
    assert named["(none)"].startswith("/record?id="), "a record without a key has no queue"
    assert named["k" * 79 + "…"].startswith("/record?id="), "a long key cannot be named"
    assert page.count('<span class="chip wait">parked</span>') == 1
    assert f"{6 + len(ATTACKS)} blocked keys with {9 + len(ATTACKS)} waiting records" in page
    assert '<a href="/keys" aria-current="page">Keys</a>' in page
    assert "2 records are retried in place. Each blocks its key. " in page
    [tried] = [row for row in page.split("<tr>") if f"{group.main}:0:600" in row]
    assert '<span class="chip wait">in place</span>' in tried, "one row that says both"
    assert ">13</td>" in tried
    part = body(visitor, "/part/alarms?fleet=1")
    assert (
        "36 of 37 attempts failed in 5 minutes: 36 http-409 · <strong>2 records</strong> are retried in place" in part
    )


def test_the_queue_of_a_key_has_its_records_in_their_order(visitor: Visitor, group: GroupTopics) -> None:
    for address in ("/keys/queue?key=ada", "/keys/queue?base64=YWRh"):
        page = body(visitor, address)
        ids = re.findall(r'<td data-label="Record"><a class="mono" href="[^"]+">([^<]+)</a>', page)
        assert ids == [f"{group.main}:0:{offset}" for offset in range(4)]
        assert re.findall(r'<span class="chip \w+">(\w+)</span></td>', page) == ["first", *["behind"] * 3]
        assert "http-500" in page
    assert '<span class="chip wait">parked</span>' in body(visitor, "/keys/queue?key=dan")


def test_every_key_that_is_listed_leads_to_its_queue(visitor: Visitor) -> None:
    """Given keys that are binary, or would do something in a page that does not escape them."""
    page = body(visitor, "/keys")
    assert "<script>window" not in page
    addresses = re.findall(r'href="(/keys/queue\?base64=[^"]+)"', page)
    assert len(addresses) == 4 + len(ATTACKS)
    for address in addresses:
        queue = body(visitor, unescape(address))
        assert queue.count('<td data-label="Record">') in (1, 4)
        assert "window.hurt=1</script>" not in queue


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({"key": "eve"}, 200, "Nothing of this key waits in a queue."),
        ({"key": ""}, 400, "That is no key."),
        ({}, 400, "That is no key."),
        ({"base64": "%%%"}, 400, "That is no key."),
        ({"base64": "YWRh" * 1_000}, 400, "That is no key."),
    ],
)
def test_a_key_that_is_none_or_is_free_says_so(visitor: Visitor, query: dict[str, str], status: int, text: str) -> None:
    assert text in body(visitor, f"/keys/queue?{urlencode(query)}", status)


@pytest.mark.long
def test_no_page_of_keys_is_wider_than_its_screen_or_does_anything(chromium: Any, shown: Scene) -> None:
    page = chromium.new_page(base_url=shown.url)
    paths = ["/keys", *(f"/keys/queue?{urlencode({'key': key})}" for key in ("ada", "k" * 400, *ATTACKS))]
    wide = {}
    for path in paths:
        page.goto(path)
        wide[path] = fits(page)
    assert page.evaluate("window.hurt") is None
    page.close()
    assert {path: screens for path, screens in wide.items() if screens} == {}


def test_a_group_without_order_has_no_such_pages(read_only: Scene) -> None:
    visitor = Visitor(read_only)
    assert visitor.get("/keys").status == 404
    assert "/keys" not in visitor.get("/policy").body.decode()


def test_a_record_that_is_retried_in_place_is_named_on_the_page_and_above_it(
    visitor: Visitor, group: GroupTopics
) -> None:
    page, head = body(visitor, "/keys"), body(visitor, "/part/alarms?fleet=1")
    for text in (f"{group.main}:0:77", "12 attempts failed, the last with http-409; the next one is due"):
        assert text in page, text
        assert text in head, text


def test_without_queues_the_page_says_that_failures_are_retried_in_place(kafka: Broker, tmp_path: Path) -> None:
    """Given an ordered group whose ladder keeps no order, then its page of keys is a page, and no error."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    with dashboard(group, tmp_path, in_place=True) as scene:
        shown = body(Visitor(scene), "/keys")
    assert "Without retry.ordered_ladder this group has no queues" in shown
