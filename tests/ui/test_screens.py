"""The dashboard in a real Chromium, on every screen and in every zone: nothing overflows, times are the reader's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from reconsume.topics.policy_record import PaceTold, SubscriptionRecord, instance_key, render_record
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, create_group, fresh_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.view_rows import wall
from tests.ui.conftest import Open
from tests.ui.hostile import LONG
from tests.ui.scene import Scene, dashboard, heartbeats
from tests.ui.test_browser import PAGES, sign_in
from tests.ui.web import Visitor

WIDTHS = (360, 768, 1_280)
SMALLEST = 24
"""Pixels that WCAG 2.2 (2.5.8) asks of what a finger touches; links inside a text are excepted."""
TOUCHED = "button:visible, select:visible, nav a:visible, .button:visible, label.tick:visible, .choice:visible"
SIZES = "all => all.map(one => one.getBoundingClientRect()).map(box => Math.min(box.width, box.height))"


def every_path(scene: Scene) -> list[str]:
    """Every page that is shown by its address, with the longest content that it may have."""
    record, letter = urlencode({"id": f"{LONG}:0:1"}), urlencode({"place": f"{LONG}:0:4000"})
    plain = urlencode({"place": f"{scene.group.dlq}:0:8"})
    return [
        *PAGES,
        f"/record?{record}",
        f"/record/journey?{record}",
        *(f"/dlq/letter?{one}" for one in (letter, plain)),
    ]


def fits(page: Any) -> list[tuple[int, str, int]]:
    """The screens on which the page is wider than it may be: width, colours, what it takes."""
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 740})
            taken = page.evaluate("document.documentElement.scrollWidth")
            if taken > width:
                found.append((width, scheme, taken))
    return found


def test_no_page_is_wider_than_its_screen_and_what_is_touched_is_not_too_small(chromium: Any, scene: Scene) -> None:
    """Given names, keys, reasons and values that cannot be broken, at 360, 768 and 1 280 px, light and dark."""
    produce(scene.group.bootstrap, scene.group.names.policy, heartbeats(scene.group, wall(), hostile=True))
    page, wide = chromium.new_page(base_url=scene.url), {}
    sign_in(page)
    for path in every_path(scene):
        page.goto(path)
        if path in ("/", "/instances"):
            page.locator("#alarms .notice").first.wait_for()
        if path.startswith("/record?"):
            page.wait_for_selector("#journey, :text('events topic has nothing')")
        if found := fits(page):
            wide[path[:60]] = found
        page.set_viewport_size({"width": WIDTHS[0], "height": 740})
        small = [size for size in page.locator(TOUCHED).evaluate_all(SIZES) if size < SMALLEST]
        assert small == [], path
    for action in ("Plan a redrive", "Dismiss"):
        page.goto("/dlq")
        page.get_by_role("button", name=action).click()
        page.wait_for_url("**/dlq/*")
        if found := fits(page):
            wide[action] = found
    page.close()
    assert wide == {}


def test_times_are_in_the_readers_zone_and_utc_without_a_script(open_page: Open, scene: Scene) -> None:
    path = f"/record?{urlencode({'id': scene.story})}"
    plain = open_page(path, java_script_enabled=False)
    failed = plain.locator("tr", has_text="First failed")
    shown = re.fullmatch(
        r"First failed\s+2h(?:1?\dm)? ago (\d{4}-\d\d-\d\d) (\d\d):(\d\d):(\d\d) UTC", failed.inner_text()
    )
    assert shown is not None, failed.inner_text()
    assert plain.inner_text("#zone") == "All times are UTC."
    here = open_page(path, timezone_id="Asia/Kathmandu")  # five hours and three quarters before UTC
    here.wait_for_selector("#journey")
    there = 60 * int(shown[2]) + int(shown[3]) + 345
    clock = f"{there // 60 % 24:02}:{there % 60:02}:{shown[4]}"
    assert clock in here.locator("tr", has_text="First failed").inner_text()
    assert clock in here.locator("#journey .abs").first.inner_text()
    assert "Asia/Kat" in here.inner_text("#zone")
    here.goto("/")
    here.wait_for_selector("#levels .rel:has-text('due')")
    assert "UTC" not in here.inner_text("#levels")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("path", ["/dlq", "/records"])
def test_no_choice_of_a_select_is_cut(open_page: Open, path: str, width: int) -> None:
    page = open_page(path, viewport={"width": width, "height": 800})
    cut = """all => all.flatMap(one => [...one.options].map(option => {
        const probe = one.cloneNode(false), has = one.offsetWidth;
        probe.append(option.cloneNode(true));
        probe.style.width = "max-content";
        one.parentNode.append(probe);
        const needs = probe.offsetWidth;
        probe.remove();
        return needs > has ? `${option.text}: ${needs} of ${has}` : "";
    })).filter(Boolean)"""
    assert page.locator("select").count() > 0
    assert page.locator("select").evaluate_all(cut) == []


def test_ticking_a_letter_makes_the_action_one_for_the_ticked_ones(open_page: Open) -> None:
    page = open_page("/dlq?key=customer-4")
    assert page.locator("input[type=checkbox]").count() == 0, "a visitor can choose nothing"
    sign_in(page)
    page.goto("/dlq?reason=timeout&state=all")
    picked, every = page.get_by_label("ticked"), page.get_by_label("all 3 that match")
    assert every.is_checked()
    page.locator("input[name=place]").nth(1).focus()
    page.keyboard.press("Space")
    assert (picked.is_checked(), page.inner_text("#picked")) == (True, "the 1 ticked")
    page.get_by_label("Tick all on this page").check()
    assert page.inner_text("#picked") == "the 3 ticked"
    page.get_by_label("Tick all on this page").uncheck()
    assert every.is_checked()
    page.locator("input[name=place]").first.check()
    page.get_by_role("button", name="Plan a redrive").click()
    page.wait_for_url("**/dlq/plan")


def test_from_a_journey_to_the_value_and_the_plan_of_its_redrive_and_back(open_page: Open, scene: Scene) -> None:
    letter = f"{scene.group.main}:0:2008"
    page = open_page("/")
    sign_in(page)
    page.goto(f"/record?{urlencode({'id': letter})}")
    page.get_by_role("link", name="Its dead letter").click()
    page.get_by_text("leave at the door").wait_for()
    page.get_by_role("button", name="Plan its redrive").click()
    page.wait_for_url("**/dlq/plan")
    assert page.locator(".sign strong").inner_text().startswith("Redrive 1 dead letter to ")
    page.go_back()
    page.get_by_role("link", name="Its journey").click()
    page.wait_for_url("**/record?*")
    assert page.inner_text("h1") == letter
    page.goto(f"/record/journey?{urlencode({'id': scene.story})}")
    page.get_by_role("link", name="The dead letter").wait_for()


def test_a_page_begins_with_the_alarms_that_are_known_so_that_nothing_moves_under_a_click(scene: Scene) -> None:
    visitor = Visitor(scene)
    told = visitor.get("/part/alarms").body.decode()
    assert told.count('class="notice bad"') > 0
    for path in ("/records", "/dlq", "/policy", "/instances", "/"):
        page = visitor.get(path).body.decode()
        assert page.count('class="notice bad"') == told.count('class="notice bad"'), path
        assert "Without JavaScript this page does not say" not in page


@pytest.mark.long
def test_a_time_goes_on_while_the_page_stands(open_page: Open) -> None:
    page = open_page("/dlq")
    first = page.locator("td time .rel").first
    before = first.inner_text()
    page.wait_for_function("before => document.querySelector('td time .rel').textContent !== before", arg=before)


def test_the_first_page_says_without_a_script_what_the_newest_heartbeat_says_and_how_much_is_not_delivered(
    kafka: Broker, tmp_path: Path
) -> None:
    """Given an outage that is over, then a page that is asked for now has no banner of it."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    produce(group.bootstrap, group.main, [b"%d" % number for number in range(3)])

    def say(pace: PaceTold) -> None:
        told = SubscriptionRecord({group.main: "*"}, wall(), pace)
        produce(group.bootstrap, group.names.policy, [Out(render_record(told), instance_key("pod-0"), partition=0)])

    with dashboard(group, tmp_path) as scene:
        visitor = Visitor(scene)
        say(PaceTold("outage", wall() - 90_000, cause="unreachable"))
        away = visitor.get("/").body.decode()
        say(PaceTold("open", wall()))
        well = visitor.get("/").body.decode()
    assert "the service is unreachable" in away
    assert "the service is unreachable" not in well
    assert "Without JavaScript this page does not say" not in well
    assert "<b>3</b><span>at most not delivered yet" in well
