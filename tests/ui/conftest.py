"""One browser and one planted group for all pages; a test skips, with the reason, where there is no Chromium."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, fresh_group
from tests.support.kafka.topic_io import SECONDS
from tests.ui.members import member
from tests.ui.scene import DELAYS, RUNNING, Scene, dashboard, plant
from tests.ui.web import Visitor

SCREENSHOTS = os.environ.get("UPDATE_SCREENSHOTS", "")
"""Where it is set, the pictures of docs/dashboard.md are made anew."""


@pytest.fixture(scope="session")
def planted(kafka: Broker) -> Iterator[GroupTopics]:
    """A group that has failed a lot, and one of whose instances runs."""
    group = fresh_group(kafka.bootstrap, mains=2, delays=DELAYS)
    if SCREENSHOTS:
        group = GroupTopics(kafka.bootstrap, "billing", ("orders", "invoices"), DELAYS)
    plant(group, hostile=not SCREENSHOTS)
    with member(group, RUNNING):
        yield group


@pytest.fixture(scope="session")
def scene(planted: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Its dashboard, with a token."""
    with dashboard(planted, tmp_path_factory.mktemp("ui")) as shown:
        until(lambda: Visitor(shown).get("/records").status == 200, SECONDS, "the view is read")
        yield shown


@pytest.fixture(scope="session")
def read_only(planted: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Its dashboard, without one."""
    with dashboard(planted, tmp_path_factory.mktemp("ui"), token=False) as shown:
        yield shown


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real Chromium. Not for the whole session: its driver keeps an event loop running in this thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None or not Path(path).exists():
        pytest.skip("there is no Chromium: install the package chromium, or set CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


MS = 60_000.0
Open = Callable[..., Any]


class Watched:
    """What a page does that it must not: errors, questions to others, scripts of records."""

    def __init__(self, page: Any, own: str) -> None:
        self.found: list[str] = []
        page.on("console", lambda message: self.found.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("dialog", lambda dialog: (self.found.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: None if request.url.startswith(own) else self.found.append(request.url))
        self._page, self._asked = page, {}
        page.on("request", lambda request: self._asked.update({request: "no answer"}))
        page.on("response", lambda response: self._asked.update({response.request: f"status {response.status}"}))
        page.on("requestfailed", lambda request: self._asked.update({request: f"failed: {request.failure}"}))

    def tell(self) -> None:
        """Print where the page is and what it asked for, which pytest shows of a test that failed."""
        asked = [f"  {one.method} {one.url}: {told}\n" for one, told in self._asked.items()]
        sys.stdout.writelines([f"{self._page.url}\n", *asked])


@pytest.fixture
def open_page(chromium: Any, scene: Scene) -> Iterator[Open]:
    """`open_page(path, **context)`: a page in a browser of its own; at the end it must not have done anything bad."""
    contexts, watched = [], []

    def opened(path: str, **options: Any) -> Any:
        contexts.append(chromium.new_context(base_url=scene.url, **options))
        contexts[-1].set_default_timeout(MS)
        page = contexts[-1].new_page()
        watched.append(Watched(page, scene.url))
        page.goto(path)
        return page

    yield opened
    for one in watched:
        one.tell()
    hurt = [page.evaluate("window.hurt") for context in contexts for page in context.pages]
    for context in contexts:
        context.close()
    assert (hurt, [one.found for one in watched]) == ([None] * len(hurt), [[]] * len(watched))
