"""The dashboard in a real Chromium: it shows, it lives, it works by keyboard and on a telephone."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.events import State, decode_event
from tests.support.kafka.topic_io import dump, produce
from tests.support.rings import inner
from tests.support.view_rows import out, view_row, wall
from tests.ui.conftest import MS, Open
from tests.ui.hostile import TOGETHER
from tests.ui.scene import AWAY, DELAYS, TOKEN, Scene, heartbeats
from tests.ui.web import Visitor

PAGES = ("/", "/records", "/dlq", "/holds", "/policy", "/instances", "/sign-in", "/activity")


def sign_in(page: Any, who: str = "alice") -> None:
    page.goto("/sign-in")
    page.get_by_label("Your name").fill(who)
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/dlq")


# --- it shows ---------------------------------------------------------------------------------------------------------


def test_the_group_shows_states_what_is_due_reasons_and_topics(open_page: Open, scene: Scene) -> None:
    page = open_page("/")
    assert int(page.inner_text("#tile-WAITING_RETRY b")) >= 420 + len(TOGETHER)
    assert page.locator("#levels a").all_inner_texts()[:5] == ["10s", "30s", "1m", "5m", "30m"]
    half_an_hour = page.locator("#levels tr", has_text="30m").first.inner_text()
    assert re.search(r"30m\s+\d+\s+due in 2\dm", half_an_hour)
    assert "Service Unavailable" in page.locator("#dead tr", has_text="http-503").inner_text()
    page.locator("#fleet tr", has_text=AWAY).get_by_text("outage").wait_for()
    assert page.locator("#reason-1").inner_text() == "http-503"
    assert page.locator("#topic-1").inner_text() == scene.group.main
    assert page.locator(".minutes rect.wait").count() > 50


def test_the_page_lives_and_the_focus_stays(open_page: Open, scene: Scene) -> None:
    page = open_page("/")
    before = int(page.inner_text("#tile-REDRIVEN b"))
    page.locator("#tile-DLQ").focus()
    row = view_row(9_001, State.REDRIVEN, group=scene.group.group)
    produce(scene.group.bootstrap, scene.group.names.view, [out(row)])
    page.wait_for_selector(f"#tile-REDRIVEN b:text-is('{before + 1}')")
    assert page.evaluate("document.activeElement.id") == "tile-DLQ"
    page.get_by_role("link", name="Pause").click()
    page.wait_for_url("**/?live=off")
    assert page.locator("[hx-trigger*=every]").count() == 0


@pytest.mark.long
def test_a_page_that_is_not_renewed_any_more_says_so(chromium: Any, scene: Scene) -> None:
    page = chromium.new_page(base_url=scene.url)
    page.goto("/")
    page.route("**/part/group", lambda route: route.abort())
    page.get_by_text("The dashboard does not answer").wait_for(timeout=MS)
    page.unroute("**/part/group")
    page.get_by_text("The dashboard does not answer").wait_for(state="hidden", timeout=MS)
    page.close()


def test_a_record_is_found_by_its_id_level_and_reason(open_page: Open, scene: Scene) -> None:
    page = open_page("/records")
    page.get_by_label("Level").fill("5m")
    page.get_by_label("Reason").fill("bad-sku")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**/records?*level=5m*")  # a click waits until the next page begins, not until all of it is there
    rows = page.locator("tbody tr").all_inner_texts()
    assert rows
    assert all("5m" in row and "bad-sku" in row for row in rows)
    page.get_by_label("Find a record").fill(scene.story)
    page.get_by_role("button", name="Find").click()
    page.get_by_role("link", name="Its journey").click()
    page.wait_for_selector("#journey")
    states = page.locator("#journey tbody .chip").all_text_contents()
    retried = ["WAITING_RETRY"] * 3
    assert states == [*retried, "DLQ", "REDRIVEN", "WAITING_RETRY", "COMMIT"]


@pytest.mark.long
def test_all_pages_of_a_long_list_are_reached(open_page: Open) -> None:
    page, seen = open_page("/records?reason=http-503"), set()
    while True:
        seen |= set(page.locator("td a.mono").all_inner_texts())
        if page.get_by_role("link", name="More").count() == 0:
            break
        page.get_by_role("link", name="More").click()
        page.wait_for_load_state()
    assert len(seen) > 100


SHADOWING = """[...document.forms].flatMap(form => [...form.elements])
    .flatMap(one => [one.name, one.id]).filter(name => name && name in HTMLFormElement.prototype)"""
"""Names of inputs that hide a member of their form from scripts."""


def test_no_input_hides_a_member_of_its_form(open_page: Open, scene: Scene) -> None:
    page = open_page("/sign-in")
    sign_in(page)
    for path in (*PAGES, "/dlq?contains=a&id=b&state=all", "/dlq?state=all"):
        page.goto(path)
        assert page.evaluate(SHADOWING) == [], path
    page.locator("table.letters a.mono").first.click()
    page.wait_for_url("**/dlq/letter*")
    assert page.evaluate(SHADOWING) == []


def test_a_search_by_the_form_shows_the_form_again_and_a_link_does_the_same(open_page: Open, scene: Scene) -> None:
    page = open_page("/dlq?contains=a&id=b")
    assert page.get_by_label("Value contains").input_value() == "a"
    assert page.get_by_label("Id or place").input_value() == "b"
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**/dlq?*text=a*record=b*")
    assert page.get_by_label("Value contains").input_value() == "a"
    assert page.get_by_label("Id or place").input_value() == "b"


def test_the_policy_shows_who_changed_what(open_page: Open) -> None:
    page = open_page("/policy")
    assert "alice@ops-1" in page.locator("main > p:not([hidden])").first.inner_text()
    assert page.locator("del").first.inner_text() == "256"
    assert page.locator("ins").first.inner_text() == "64"


def test_instances_are_shown_with_pace_heartbeat_topics_and_lag(open_page: Open, scene: Scene) -> None:
    produce(scene.group.bootstrap, scene.group.names.policy, heartbeats(scene.group, wall(), hostile=False))
    page = open_page("/instances")
    running = page.locator("tr", has_text="billing-7c9f-x2x")
    cells = running.locator("td").all_inner_texts()
    assert cells[2].split() == ["open", "31", "of", "256", "out"]
    assert cells[3] == "0"
    assert (cells[4], scene.group.main in cells[6]) == ("", True)
    assert page.locator("tr", has_text=AWAY).locator("td").nth(4).inner_text() == "1m34s"
    away = page.locator("tr", has_text=AWAY).locator("td").nth(2)
    assert "outage" in away.inner_text()
    assert away.locator(".chip").get_attribute("title") == "connection refused by 127.0.0.1:8080"
    assert "silent" in page.locator("tr", has_text="billing-6b1d-old").inner_text()
    lag = page.locator("tr", has=page.get_by_text(scene.group.names.ready, exact=True)).last
    assert int(lag.locator("td").nth(2).inner_text()) >= 12
    rows = page.locator("section[aria-label='Lag'] tbody tr td:first-child").all_inner_texts()
    names = scene.group.names
    assert rows == [*scene.group.mains, *(names.level(delay, scene.group.main) for delay in DELAYS), names.ready]


@pytest.mark.parametrize("path", inner("/records", ["/", "/records", "/dlq", "/policy"]))
def test_every_page_says_what_is_wrong_with_the_group(open_page: Open, scene: Scene, path: str) -> None:
    produce(scene.group.bootstrap, scene.group.names.policy, heartbeats(scene.group, wall(), hostile=False))
    page = open_page(path)
    outage = page.locator("#alarms .notice", has_text="Outage")
    outage.wait_for()
    assert "connection refused by 127.0.0.1:8080" in outage.inner_text()
    assert AWAY in outage.inner_text()
    assert re.search(r"Outage for \d+\w+; now ", outage.inner_text()), "the duration is the outage's"
    assert page.locator("#alarms .notice", has_text="Overdue").count() == 1


def test_without_javascript_everything_can_be_reached(open_page: Open, scene: Scene) -> None:
    page = open_page(f"/record?{urlencode({'id': scene.story})}", java_script_enabled=False)
    page.get_by_role("link", name="Show it by itself").click()
    page.wait_for_url("**/record/journey?*")
    assert page.locator("#journey").count() == 1


# --- it changes -------------------------------------------------------------------------------------------------------


def test_a_redrive_by_keyboard_alone_from_its_plan_to_each_records_result(open_page: Open, scene: Scene) -> None:
    page, group = open_page("/"), scene.group
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto("/sign-in")
    page.wait_for_selector("input:focus")  # a browser gives it the focus when it draws the page, after the load
    page.keyboard.type("alice")
    page.keyboard.press("Tab")
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_url("**/dlq")
    page.get_by_label("Reason").focus()
    page.keyboard.type("bad-sku")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Plan a redrive").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/dlq/plan")
    assert page.locator(".sign strong").inner_text().startswith("Redrive 3 dead letters to ")
    assert brought_back(scene) == {}  # a plan changes nothing
    page.wait_for_selector("button:focus")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dlq/jobs/*")
    page.wait_for_selector("text=/3 redriven to/")
    ids = {f"{group.main}:0:{number}" for number in (2_001, 2_004, 2_007)}
    assert brought_back(scene) == dict.fromkeys(ids, 1)
    assert set(page.locator("td a.mono").all_inner_texts()) == ids


def brought_back(scene: Scene) -> dict[str, int]:
    """How often each record of the reason bad-sku was brought back."""
    found: dict[str, int] = {}
    for row in dump(scene.group.bootstrap, scene.group.names.ready):
        headers = dict(row.headers)
        if wire.RETRY_REDRIVES in headers and (headers[wire.RETRY_REASON] or b"").startswith(b"bad-sku"):
            name = (headers[wire.ORIGIN_MESSAGE_ID] or b"").decode()
            found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.long
def test_a_redrive_is_in_the_audit_log_with_who_did_it_and_a_plan_is_used_once(open_page: Open, scene: Scene) -> None:
    page = open_page("/")
    sign_in(page, "bob")
    page.get_by_label("Id or place").fill(f"{scene.group.main}:0:2002")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("button", name="Plan a redrive").click()
    page.wait_for_url("**/dlq/plan")
    form = page.locator("form[action='/dlq/redrive']")
    plan, csrf = (form.locator(f"input[name={name}]").input_value() for name in ("plan", "csrf"))
    page.get_by_role("button", name="Redrive", exact=True).click()
    page.wait_for_selector("text=/1 redriven to/")
    cookie = page.context.cookies()[0]
    again = Visitor(scene)
    again.cookie = f"{cookie['name']}={cookie['value']}"
    assert again.post("/dlq/redrive", {"plan": plan, "csrf": csrf}).status == 409
    rows = [row for line in scene.audit.read_text().splitlines() if (row := json.loads(line))["who"] == "bob"]
    assert [row["action"] for row in rows] == ["sign-in", "redrive-plan", "redrive", "redrive-result"]
    assert (rows[2]["letters"], rows[3]["records"]) == (1, 1)
    told = [decode_event(row.value) for row in dump(scene.group.bootstrap, scene.group.names.events)]
    assert "redrive:bob@ui" in {getattr(event, "instance", "") for event in told}
    page.goto("/activity")
    assert page.locator("tr", has_text="redrive-result").count() >= 1


@pytest.mark.long
def test_anothers_plan_cannot_be_carried_out(open_page: Open, scene: Scene) -> None:
    page = open_page("/")
    sign_in(page, "carol")
    page.get_by_role("button", name="Plan a redrive").click()
    plan = page.locator("form[action='/dlq/redrive'] input[name=plan]").input_value()
    mallory = Visitor(scene)
    mallory.sign_in("mallory")
    assert mallory.post("/dlq/redrive", {"plan": plan, "csrf": mallory.csrf()}).status == 409


# --- on every screen --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_light_and_dark_follow_the_reader(open_page: Open) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = (open_page("/records", color_scheme=scheme).evaluate(ground) for scheme in ("light", "dark"))
    assert sum(map(int, re.findall(r"\d+", light))) > 600
    assert sum(map(int, re.findall(r"\d+", dark))) < 120


def test_every_field_has_a_label_and_every_page_one_heading(open_page: Open) -> None:
    page = open_page("/")
    sign_in(page)
    for path in PAGES:
        page.goto(path)
        assert page.locator("h1").count() == 1
        bare = "all => all.filter(one => one.type != 'hidden' && !one.labels.length).length"
        assert page.locator("input, select").evaluate_all(bare) == 0
