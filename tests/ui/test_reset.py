"""The position of a group is moved from the dashboard, by whoever is signed in, on a real broker. A test plays the
owner."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.names import Kind
from reconsume.topics.position_ranges import PartitionResets, ResetRange
from reconsume.topics.reset_record import ResetRequest
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.reset_notes import note_resets, topic_id
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.view_rows import out, view_row
from tests.ui.hostile import ATTACKS
from tests.ui.scene import Scene, dashboard
from tests.ui.test_browser import sign_in
from tests.ui.test_screens import fits
from tests.ui.web import Visitor

PAGE = "/records/reset"


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    """A group that has done nothing yet of the 20 records in the first of its two partitions."""
    made = create_group(fresh_group(kafka.bootstrap), partitions=2, also=[*UNUSED, Kind.POLICY])
    produce(made.bootstrap, made.main, [Out(b"value", b"key", (), 0, 1_000 * (number + 1)) for number in range(20)])
    produce(made.bootstrap, made.names.view, [out(view_row(0, group=made.group, topic=made.main))])
    return made


@pytest.fixture
def shown(group: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with dashboard(group, tmp_path_factory.mktemp("reset")) as scene:
        until(lambda: Visitor(scene).get("/records").status == 200, SECONDS, "the view is read")
        yield scene


@pytest.fixture
def signed_in(shown: Scene) -> Visitor:
    visitor = Visitor(shown)
    assert visitor.sign_in().status == 303
    return visitor


def written(group: GroupTopics) -> dict[str, ResetRequest]:
    return dict(ControlLog(Cluster({"bootstrap.servers": group.bootstrap}), group.names).read().resets)


def note_done(group: GroupTopics, ident: str, partition: int = 0) -> None:
    """Note what the owner notes that has skipped ten records of a partition."""
    note_resets(group, partition, PartitionResets(topic_id(group), 0, (), (ident,), ((0, 10),)))


def fields_of(page: str, action: str) -> dict[str, str]:
    """The hidden fields of the one form of this action."""
    (form,) = re.findall(rf'<form [^>]*action="{action}".*?</form>', page, re.DOTALL)
    return {name: unescape(text) for name, text in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)}


def asked(group: GroupTopics, visitor: Visitor, **changed: str) -> dict[str, str]:
    """What a user fills in: the first partition, to the record of the eleventh second."""
    wish = {"topic": group.main, "partition": "0", "to": "1970-01-01T00:00:11Z", "why": "the <handler> had a bug"}
    return {"csrf": visitor.csrf(), **wish, **changed}


def planned(group: GroupTopics, visitor: Visitor, **changed: str) -> dict[str, str]:
    """The fields of the form that agrees to a plan."""
    answer = visitor.post(f"{PAGE}/plan", asked(group, visitor, **changed))
    assert answer.status == 200
    return fields_of(answer.body.decode(), PAGE)


def test_a_reset_is_planned_then_written_and_its_page_follows_the_owners(
    group: GroupTopics, shown: Scene, signed_in: Visitor
) -> None:
    assert f'href="{PAGE}"' in signed_in.get("/records").body.decode()
    page = signed_in.get(PAGE).body.decode()
    assert f'<option value="{group.main}">' in page
    assert "No reset was asked for" in page
    assert fields_of(page, f"{PAGE}/plan") == {"csrf": signed_in.csrf()}
    plan = signed_in.post(f"{PAGE}/plan", asked(group, signed_in))
    page = plan.body.decode()
    assert (plan.status, "skip at most 10 records of 1 partition?" in page, written(group)) == (200, True, {})
    cells = dict(re.findall(r'<td data-label="([^"]*)"[^>]*>([^<]*)</td>', page))
    assert fields_of(page, PAGE).keys() == {"csrf", "plan"}
    assert cells == {
        "Partition": "0", "Direction": "forwards", "Position": "0", "Target": "10", "Again, at most": "0",
        "Skipped, at most": "10", "Left of earlier resets": "0", "Log": "0–20",
    }  # fmt: skip
    assert "writes what was skipped" in page
    answer = signed_in.post(PAGE, fields_of(page, PAGE))
    ((ident, request),) = written(group).items()
    assert (answer.status, answer.headers["location"]) == (303, f"{PAGE}/{ident}")
    assert (request.topic, request.who, request.why) == (group.main, "alice@ui", "the <handler> had a bug")
    assert [(part.partition, part.target) for part in request.targets] == [(0, 10)]
    waits = signed_in.get(f"{PAGE}/{ident}").body.decode()
    assert ("<strong>0</strong> of 1 partition moved" in waits, ">waiting<" in waits) == (True, True)
    assert "hx-get" in waits.partition('id="state"')[2].partition(">")[0]
    note_done(group, ident)
    done = signed_in.get(f"{PAGE}/{ident}").body.decode()
    assert ("<strong>1</strong> of 1 partition moved" in done, ">done<" in done) == (True, True)
    assert "hx-get" not in done.partition('id="state"')[2].partition(">")[0]
    assert 'data-label="Skipped, at most" class="number">10<' in done
    assert f"reset --follow {ident} --export FILE" in done
    assert f'href="{PAGE}/{ident}"' in signed_in.get(PAGE).body.decode()
    lines = [json.loads(line) for line in shown.audit.read_text().splitlines()]
    told = [(line["action"], line["who"], line.get("why"), line["what"]) for line in lines if "reset" in line["action"]]
    moved = f"{group.main}[0] to 1970-01-01T00:00:11.000Z"
    assert told == [
        ("reset-plan", "alice", None, moved),
        ("reset", "alice", "the <handler> had a bug", moved),
        ("reset-result", "alice", None, f"{ident} {moved}"),
    ]


def test_a_duration_back_means_the_time_that_the_plan_has_shown(group: GroupTopics, signed_in: Visitor) -> None:
    page = signed_in.post(f"{PAGE}/plan", asked(group, signed_in, partition="", to="2h")).body.decode()
    (shown,) = re.findall(r"to (20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z):", page)
    assert signed_in.post(PAGE, fields_of(page, PAGE)).status == 303
    ((_, request),) = written(group).items()
    assert (request.to, [part.partition for part in request.targets]) == (shown, [0])


def test_a_plan_that_another_reset_has_overtaken_writes_nothing(group: GroupTopics, signed_in: Visitor) -> None:
    agreed = planned(group, signed_in)
    note_resets(group, 0, PartitionResets(topic_id(group), 1, (ResetRange(0, 5, 1, 1),), ("other",)))
    answer = signed_in.post(PAGE, agreed)
    assert (answer.status, "since this plan was made: plan it again" in answer.body.decode()) == (409, True)
    assert written(group) == {}


def test_of_a_reset_that_another_one_has_overtaken_the_page_says_so(group: GroupTopics, signed_in: Visitor) -> None:
    where = signed_in.post(PAGE, planned(group, signed_in)).headers["location"]
    note_done(group, "other")
    page = signed_in.get(where).body.decode()
    assert ("another reset was carried out first" in page, "The others stay where they are" in page) == (True, True)


def test_where_nothing_is_to_be_moved_there_is_nothing_to_agree_to(group: GroupTopics, signed_in: Visitor) -> None:
    page = signed_in.post(f"{PAGE}/plan", asked(group, signed_in, partition="1", to="earliest")).body.decode()
    assert ("each position is there already" in page, f'action="{PAGE}"' in page) == (True, False)
    assert written(group) == {}


def test_what_cannot_be_meant_is_refused_and_nothing_is_written(group: GroupTopics, signed_in: Visitor) -> None:
    refused: list[tuple[dict[str, str], int]] = [
        ({"csrf": "x" * 43}, 403),
        ({"csrf": ""}, 403),
        ({"why": ""}, 400),
        ({"why": "x" * 1_001}, 400),
        ({"why": "a\nb"}, 400),
        ({"to": ""}, 400),
        ({"to": "yesterday"}, 400),
        ({"to": "2026-11-30T10:00:00"}, 400),
        ({"to": "2999-01-01T00:00:00Z"}, 400),
        ({"partition": "-1"}, 400),
        ({"partition": "1" * 11}, 400),
        ({"partition": "2"}, 409),
        ({"partition": "", "to": "3"}, 409),
        ({"to": "21"}, 409),
        ({"topic": "others"}, 409),
        *(({"topic": attack}, 409) for attack in ATTACKS),
        *(({"to": attack}, 400) for attack in ATTACKS),
    ]
    for changed, status in refused:
        answer = signed_in.post(f"{PAGE}/plan", asked(group, signed_in, **changed))
        assert (answer.status, b"Nothing was done" in answer.body) == (status, True), changed
        assert b"<script>window" not in answer.body
    assert signed_in.get(f"{PAGE}/nobody").status == 409
    assert signed_in.post(PAGE, {"csrf": signed_in.csrf(), "plan": "x"}).status == 409
    assert written(group) == {}


def test_nobody_else_has_the_form_nor_can_send_it(group: GroupTopics, shown: Scene, signed_in: Visitor) -> None:
    agreed, visitor = planned(group, signed_in), Visitor(shown)
    page = visitor.get(PAGE).body.decode()
    assert ("<form class" in page, "Sign in</a> to move the position" in page) == (False, True)
    assert [visitor.post(path, agreed).status for path in (f"{PAGE}/plan", PAGE)] == [403, 403]
    assert written(group) == {}


def test_without_a_token_file_there_is_no_such_form(
    group: GroupTopics, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with dashboard(group, tmp_path_factory.mktemp("reads"), token=False) as scene:
        visitor = Visitor(scene)
        assert PAGE not in visitor.get("/records").body.decode()
        assert [visitor.get(PAGE).status, visitor.post(PAGE, {}).status] == [404, 404]


@pytest.mark.long
def test_a_position_is_moved_in_a_browser_whose_page_follows_it(
    chromium: Any, group: GroupTopics, shown: Scene
) -> None:
    page = chromium.new_page(base_url=shown.url)
    sign_in(page)
    page.goto("/records")
    page.get_by_role("link", name="Move the position").click()
    page.wait_for_url(f"**{PAGE}")
    assert not fits(page)
    page.get_by_label("Topic").select_option(group.main)
    page.get_by_label("Partition").fill("0")
    page.get_by_label("To", exact=True).fill("10")
    page.get_by_label("Why").fill("w" * 1_000)
    page.get_by_role("button", name="Plan").click()
    page.wait_for_url(f"**{PAGE}/plan")
    assert not fits(page)
    assert "skip at most 10 records of 1 partition?" in page.inner_text("main")
    page.get_by_role("button", name="Move it").click()
    page.wait_for_url(re.compile(rf"{PAGE}/[0-9a-f]{{8}}$"))
    assert not fits(page)
    page.get_by_role("cell", name="waiting").wait_for()
    note_done(group, page.url.rpartition("/")[2])
    page.get_by_text("1 of 1 partition moved").wait_for()
    page.reload()
    page.get_by_role("cell", name="done").wait_for()
    page.close()
