"""Nothing that a record holds does anything, in a real Chromium: not in keys, headers, values, reasons, names."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.ui.conftest import Open
from tests.ui.hostile import ATTACKS, TOGETHER
from tests.ui.scene import Scene

FOREIGN = "iframe, base, main style, main script, img"
"""What no page of ours has."""


def test_the_attacks_do_run_in_a_page_that_is_careless(chromium: Any) -> None:
    page, ran = chromium.new_page(), 0
    page.route("**/*", lambda route: route.abort())
    for attack in ATTACKS[:6]:
        page.set_content(f'<p title="{attack}">{attack}</p>')
        ran += page.evaluate("new Promise(done => setTimeout(() => done(window.hurt || 0), 30))")
        page.evaluate("window.hurt = 0")
    page.close()
    assert ran >= 5


@pytest.mark.long
def test_hostile_texts_are_shown_and_do_nothing(open_page: Open) -> None:
    page = open_page("/")
    for path in ("/", "/records", "/dlq", "/policy", "/instances"):
        page.goto(path)
        assert page.get_by_text(re.compile(r"<script>window\.hurt=1</script>|<img src=x")).count() > 0
        assert page.locator(FOREIGN).count() == 0


@pytest.mark.long
def test_a_hostile_record_and_its_journey_are_shown_and_do_nothing(open_page: Open) -> None:
    page = open_page("/records")
    for number, attack in enumerate(TOGETHER):
        page.goto(f"/record?{urlencode({'id': f'{attack}:{number}'})}")
        page.wait_for_selector("#journey, :text('events topic has nothing')")
        assert page.locator(FOREIGN).count() == 0
        assert page.inner_text("h1").count("window.hurt") == attack.count("window.hurt")


def test_hostile_dead_letters_are_shown_and_do_nothing(open_page: Open) -> None:
    page = open_page("/dlq")
    found = page.locator("tr", has_text=re.compile(r":300\d")).locator("a.mono")
    paths = found.evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert len(paths) == len(TOGETHER)
    for path in paths:
        page.goto(path)
        shown = " ".join(page.inner_text("main").split())
        assert page.locator(FOREIGN).count() == 0
        for attack in ATTACKS[:-1]:
            assert shown.count(" ".join(attack.split())) >= 2, attack  # as a header's name and as its value


def test_a_script_that_came_into_a_page_all_the_same_would_not_run(chromium: Any, scene: Scene) -> None:
    page = chromium.new_page(base_url=scene.url)
    page.goto("/records")
    refused = page.evaluate(
        """() => new Promise(done => {
            document.addEventListener('securitypolicyviolation', event => done(event.violatedDirective));
            document.body.insertAdjacentHTML('beforeend', '<img src=/nowhere onerror="window.hurt=1">');
        })"""
    )
    assert refused == "script-src-attr"
    assert page.evaluate("window.hurt") is None
    page.close()
