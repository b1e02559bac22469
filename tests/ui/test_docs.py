"""The pictures of docs/dashboard.md: made by a browser from the pages themselves, and all of them there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.kafka.topic_io import produce
from tests.ui.conftest import SCREENSHOTS
from tests.ui.scene import TOKEN, Scene

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "dashboard"
MOST_BYTES = 1_000_000
ZONE: dict[str, Any] = {"timezone_id": "Europe/Berlin"}


def test_the_page_shows_the_pictures_that_there_are_and_they_are_small() -> None:
    shown = set(re.findall(r"\(dashboard/([\w-]+\.png)\)", (DOCS / "dashboard.md").read_text()))
    assert shown == {file.name for file in FOLDER.iterdir()}
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < MOST_BYTES


@pytest.mark.skipif(not SCREENSHOTS, reason="UPDATE_SCREENSHOTS=1 makes the pictures of the documentation anew")
def test_the_pictures_are_made_anew(chromium: Any, scene: Scene) -> None:
    for scheme, height in (("light", 640), ("dark", 940)):
        size = {"width": 1080, "height": height}
        page = chromium.new_page(base_url=scene.url, color_scheme=scheme, viewport=size, **ZONE)
        page.goto("/")
        for part in ("#levels a", "#alarms .notice", "#fleet table"):
            page.wait_for_selector(part)
        page.screenshot(path=FOLDER / f"group-{scheme}.png", full_page=scheme == "light")
        if scheme == "dark":
            page.goto(f"/record?{urlencode({'id': scene.story})}")
            page.wait_for_selector("#journey")
            page.locator("section", has=page.locator("#journey")).screenshot(path=FOLDER / "journey.png")
            page.goto("/instances")
            page.screenshot(path=FOLDER / "instances.png", clip={"x": 0, "y": 0, "width": 1080, "height": 860})
        page.close()
    redrive(chromium, scene)
    page = chromium.new_page(base_url=scene.url, viewport={"width": 360, "height": 760}, **ZONE)
    page.goto("/")
    page.wait_for_selector("#alarms .notice")
    page.screenshot(path=FOLDER / "telephone.png")
    page.close()
    plan_reset(chromium, scene)


def signed_in(chromium: Any, scene: Scene) -> Any:
    """The list of dead letters, as alice sees it."""
    page = chromium.new_page(base_url=scene.url, viewport={"width": 1080, "height": 900}, **ZONE)
    page.goto("/sign-in")
    page.get_by_label("Your name").fill("alice")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/dlq")
    page.wait_for_selector("#alarms .notice")
    return page


def plan_reset(chromium: Any, scene: Scene) -> None:
    """The plan of a reset that skips all that a topic has."""
    produce(scene.group.bootstrap, scene.group.main, [b"waits"] * 1_200)
    page = signed_in(chromium, scene)
    page.goto("/records/reset")
    page.get_by_label("To", exact=True).fill("latest")
    page.get_by_label("Why").fill("a test has sent them")
    page.get_by_role("button", name="Plan").click()
    page.wait_for_url("**/records/reset/plan")
    page.screenshot(path=FOLDER / "reset-plan.png", clip={"x": 0, "y": 0, "width": 1080, "height": 700})
    page.close()


def redrive(chromium: Any, scene: Scene) -> None:
    """The list of dead letters, and the way of a redrive, picture by picture."""
    page = signed_in(chromium, scene)
    for row in (1, 4):
        page.locator("input[name=place]").nth(row).check()
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=FOLDER / "dead-letters.png")
    page.get_by_label("Reason").fill("timeout")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**/dlq?*")
    page.get_by_role("button", name="Plan a redrive").click()
    page.wait_for_url("**/dlq/plan")
    page.get_by_label("Dead letters per second, at most").fill("50")
    page.screenshot(path=FOLDER / "dry-run.png", clip={"x": 0, "y": 0, "width": 1080, "height": 620})
    page.close()
