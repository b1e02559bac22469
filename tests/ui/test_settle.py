"""The first record of a key is settled from the page of its queue, by whoever is signed in, on a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from reconsume.topics.decision_record import DecisionHeard, DecisionRecord
from reconsume.topics.policy_record import parse_record
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.level_copies import Owner, decisions_of
from tests.support.kafka.queue_copies import queue_copy
from tests.support.kafka.topic_io import dump, produce
from tests.ui.hostile import ATTACKS
from tests.ui.scene import TOKEN, Scene, dashboard
from tests.ui.test_screens import fits
from tests.ui.web import Visitor

PATH = "/keys/queue?base64=YWRh"


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """An ordered group in which two records of `ada` wait."""
    group = create_group(replace(fresh_group(kafka.bootstrap, delays=()), queued=True), partitions=1, also=UNUSED)
    queue = group.queues[0]
    produce(group.bootstrap, queue, [queue_copy(queue, b"ada", at, at == 0, topic=group.main) for at in range(2)])
    return group


@pytest.fixture(scope="module")
def shown(group: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with dashboard(group, tmp_path_factory.mktemp("settle")) as scene:
        yield scene


@pytest.fixture
def signed_in(shown: Scene) -> Visitor:
    visitor = Visitor(shown)
    assert visitor.sign_in().status == 303
    return visitor


@pytest.fixture
def fields(group: GroupTopics, signed_in: Visitor) -> dict[str, str]:
    """The fields of the form as the page has them, with a reason and a decision."""
    page = signed_in.get(PATH).body.decode()
    (form,) = re.findall(r'<form class="card" method="post" action="/keys/settle">.*?</form>', page, re.DOTALL)
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
    assert (hidden["record"], hidden["base64"]) == (f"{group.main}:0:0", "YWRh")
    assert re.findall(r'<button name="how" value="([\w-]+)"', form) == ["retry-now", "dead-letter", "commit"]
    return {**hidden, "how": "commit", "why": "paid <by> hand"}


def test_a_record_is_settled_and_the_page_of_the_decision_says_what_became_of_it(
    group: GroupTopics, shown: Scene, signed_in: Visitor, fields: dict[str, str]
) -> None:
    answer = signed_in.post("/keys/settle", fields)
    assert answer.status == 303
    page = signed_in.get(answer.headers["location"]).body.decode()
    assert ("<strong>0</strong> records settled so far" in page, "paid &lt;by&gt; hand" in page) == (True, True)
    Owner(group).note(next(iter(decisions_of(group))), 1)
    page = signed_in.get(answer.headers["location"]).body.decode()
    assert ("<strong>1</strong> record settled" in page, "Nothing is left to do" in page) == (True, True)
    (decision,) = written(group)
    told = (decision.how, decision.who, decision.why, decision.id, decision.redrives, decision.times)
    assert told == ("commit", "alice@ui", "paid <by> hand", fields["record"], 0, 1)
    lines = [json.loads(line) for line in shown.audit.read_text().splitlines()]
    assert [
        (line["action"], line["record"], line["who"], line.get("why"), line.get("records"))
        for line in lines
        if line["action"].startswith("settle") and line.get("record")
    ] == [
        ("settle", fields["record"], "alice", "paid <by> hand", None),
        ("settle-result", fields["record"], "alice", None, 0),
    ]


def written(group: GroupTopics) -> list[DecisionRecord]:
    """The decisions that were written, also those that have ended."""
    rows = [parse_record(row.key, row.value) for row in dump(group.bootstrap, group.names.policy) if not row.partition]
    return [one.record for one in rows if isinstance(one, DecisionHeard) and one.record is not None]


def test_what_fits_is_planned_and_settled_and_its_decision_has_a_page(group: GroupTopics, signed_in: Visitor) -> None:
    """The plan writes nothing; its form names it; the page of the decision can end it."""
    before = written(group)
    page = signed_in.get("/records/settle").body.decode()
    assert "No decision is open" in page
    (form,) = re.findall(r'<form [^>]*action="/records/settle/plan".*?</form>', page, re.DOTALL)
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
    asked = {**hidden, "key": "ada", "level": "", "rate": "5/m", "why": "the <ledger> is back", "how": "dead-letter"}
    planned = signed_in.post("/records/settle/plan", asked)
    page = planned.body.decode()
    assert (planned.status, "Settle 2 waiting records, so that each is a dead letter?" in page) == (200, True)
    assert written(group) == before
    (form,) = re.findall(r'<form [^>]*action="/records/settle">.*?</form>', page, re.DOTALL)
    fields = {name: unescape(text) for name, text in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
    settled = signed_in.post("/records/settle", fields)
    assert settled.status == 303
    (decision,) = written(group)[len(before) :]
    assert (decision.how, decision.key, decision.rate, decision.who) == ("dead-letter", b"ada", "5/m", "alice@ui")
    where = settled.headers["location"]
    shown = signed_in.get(where).body.decode()
    assert "<strong>0</strong> records settled so far" in shown
    assert "the &lt;ledger&gt; is back" in shown
    assert f'href="{where}"' in signed_in.get("/records/settle").body.decode()
    csrf = {"csrf": asked["csrf"]}
    assert signed_in.post(f"{where}/end", csrf).status == 303
    assert "decision" in signed_in.get(where).body.decode()
    assert decisions_of(group) == {}
    assert signed_in.post(f"{where}/end", csrf).status == 409, "it is not open any more"


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"csrf": "x" * 43}, 403),
        ({"how": ""}, 400),
        ({"why": ""}, 400),
        ({"level": "main"}, 400),
        ({"topic": "others"}, 400),
        ({"rate": "50"}, 400),
        ({"base64": "?"}, 400),
        ({"reason": "a\nb"}, 400),
        *(({"reason": attack}, 409) for attack in ATTACKS if attack.isprintable()),
        ({"reason": "http-404"}, 409),
    ],
)
def test_what_cannot_be_meant_is_refused(
    group: GroupTopics, signed_in: Visitor, fields: dict[str, str], changed: dict[str, str], status: int
) -> None:
    before = written(group)
    asked = {**fields, "why": "x", **changed}
    answer = signed_in.post("/records/settle/plan", asked)
    if status == 409:  # it can be meant, and there is nothing to do
        assert (answer.status, b"Nothing to settle" in answer.body) == (200, True)
        answer = signed_in.post("/records/settle", {**asked, "plan": "x"})
    assert (answer.status, b"Nothing was done" in answer.body) == (status, True)
    assert written(group) == before


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"csrf": "x" * 43}, 403),
        ({"csrf": ""}, 403),
        ({"how": ""}, 400),
        ({"how": "redrive"}, 400),
        ({"why": " "}, 400),
        ({"why": "x" * 1_001}, 400),
        ({"why": "a\nb"}, 400),
        ({"record": "orders"}, 400),
        ({"record": "orders:0:" + "9" * 400}, 400),
        *(({"record": attack}, 400) for attack in ATTACKS),
        ({"record": "others:0:0"}, 409),
    ],
)
def test_what_is_no_decision_is_refused_and_nothing_is_written(
    group: GroupTopics, signed_in: Visitor, fields: dict[str, str], changed: dict[str, str], status: int
) -> None:
    before = written(group)
    answer = signed_in.post("/keys/settle", {**fields, **changed})
    assert (answer.status, b"Nothing was done" in answer.body) == (status, True)
    assert b"<script>window" not in answer.body
    assert written(group) == before


def test_what_waits_behind_cannot_be_tried_first(
    group: GroupTopics, signed_in: Visitor, fields: dict[str, str]
) -> None:
    answer = signed_in.post("/keys/settle", {**fields, "record": f"{group.main}:0:1", "how": "retry-now"})
    assert (answer.status, f"{group.main}:0:0" in answer.body.decode()) == (409, True)


def test_nobody_else_has_the_form_nor_can_send_it(shown: Scene, fields: dict[str, str]) -> None:
    visitor = Visitor(shown)
    page = visitor.get(PATH).body.decode()
    assert ("/keys/settle" in page, "Sign in</a> to settle" in page) == (False, True)
    assert visitor.post("/keys/settle", fields).status == 403


def test_without_a_token_file_there_is_no_such_form(
    group: GroupTopics, fields: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with dashboard(group, tmp_path_factory.mktemp("reads"), token=False) as scene:
        visitor = Visitor(scene)
        assert "ettle" not in visitor.get(PATH).body.decode()
        assert visitor.post("/keys/settle", fields).status == 404


@pytest.mark.long
def test_the_form_fits_every_screen_and_what_it_cannot_do_is_said(
    chromium: Any, group: GroupTopics, shown: Scene
) -> None:
    page = chromium.new_page(base_url=shown.url)
    page.goto("/sign-in")
    page.fill("[name=who]", "alice")
    page.fill("[name=token]", TOKEN)
    page.click("main button")
    page.wait_for_url("**/dlq")
    page.goto(PATH)
    assert not fits(page)
    page.fill("[name=why]", "w" * 1_000)
    page.evaluate("document.querySelector('[name=record]').value = 'others:0:0'")
    page.click("text=To the dead letters")
    page.wait_for_url("**/keys/settle")
    assert "Nothing was done: others:0:0 does not wait in this group" in page.inner_text("main")
    page.close()
