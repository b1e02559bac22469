"""The search of the dashboard: a record that is not done is found by its content, in a browser and by a script."""

from __future__ import annotations

import html
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconsume.sidecar.ui import find_page
from reconsume.topics.events import State
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.rings import EXAMPLES
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.redrive import dead_letter
from tests.support.view_rows import out, view_row, wall
from tests.ui.conftest import Open
from tests.ui.scene import Scene, dashboard
from tests.ui.web import Visitor

SECRET = b"iban DE89 3704"


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap), also=UNUSED)


@pytest.fixture
def shown(group: GroupTopics, tmp_path: Path) -> Iterator[Visitor]:
    with dashboard(group, tmp_path) as scene:
        yield Visitor(scene)


def page(visitor: Visitor, **query: str) -> str:
    answer = visitor.get(f"/find?{urlencode(query)}")
    assert answer.status == 200, answer.body
    return answer.body.decode()


def test_a_record_is_found_from_the_page_of_records_by_a_text_in_it(open_page: Open, scene: Scene) -> None:
    produce(scene.group.bootstrap, scene.group.main, [Out(b'{"note": "blue door"}', b"<b>customer-7</b>", (), 0)])
    browser = open_page("/records")
    browser.get_by_label("Find a record by its id, or by a text in its key, value or headers").fill("blue door")
    browser.get_by_role("button", name="Find").click()
    browser.wait_for_url("**/find?text=blue+door")
    row = browser.locator("#found tbody tr")
    assert row.count() == 1
    assert "undelivered" in row.inner_text()
    assert "<b>customer-7</b>" in row.inner_text()
    row.get_by_role("link").click()
    browser.wait_for_url(f"**/record?id={scene.group.main}*")


@given(text=st.text(st.characters().filter(str.isprintable), min_size=1, max_size=40))
@settings(max_examples=EXAMPLES, deadline=None)
@example('it\'s \\ $HOME `id` "x" !! 7')
@example("-o")
@example("orders:3:1024")
def test_the_command_that_a_page_shows_has_the_same_text_in_a_shell(text: str) -> None:
    shell = ["bash", "-c", f"reconsume() {{ printf '%s\\0' \"$@\"; }}; {find_page.command_of(text)}"]
    words = subprocess.run(shell, capture_output=True, check=True, timeout=60).stdout.split(b"\0")[:-1]
    assert words[0] == b"find"
    assert words[-1] == text.encode()
    assert words[1:-1] == ([b"--id"] if text == "orders:3:1024" else [b"--"] if text.startswith("-") else [])


def test_a_text_that_no_command_can_take_has_none() -> None:
    assert [find_page.command_of(text) for text in ("a\0b", "\ud800", "a\nb", "x" * 100_000)] == [""] * 4


def test_the_command_line_finds_what_the_page_finds(shown: Visitor, group: GroupTopics, tmp_path: Path) -> None:
    produce(group.bootstrap, group.main, [Out(b'it\'s -- "blue" & green', None, (), 0)])
    text = page(shown, text='it\'s -- "blue" &')
    command = html.unescape(text.partition('<code id="command">')[2].partition("</code>")[0])
    words = [*shlex.split(command)[1:], "-c", str(tmp_path / "reconsume.yaml"), "-o", "json"]
    found = reconsume(*words)
    assert (found.exit_code, f"{group.main}:0:0" in found.stdout, f"{group.main}:0:0" in text) == (0, True, True)


def test_a_dead_letter_that_is_found_leads_to_its_page(shown: Visitor, group: GroupTopics) -> None:
    produce(group.bootstrap, group.dlq, [dead_letter(group, 43, SECRET)])
    assert f"/dlq/letter?{urlencode({'place': f'{group.dlq}:0:0'})}" in page(shown, text="DE89")
    assert f"{group.main}:0:43" in page(shown, text=f"{group.main}:0:43")
    assert "Nothing found" in page(shown, text="no such text")


@pytest.mark.parametrize("state", [State.WAITING_RETRY, State.DLQ, State.COMMIT, State.REDRIVEN, State.DISMISSED])
def test_only_a_record_that_waits_is_due_on_its_page(shown: Visitor, group: GroupTopics, state: State) -> None:
    ident = f"{group.main}:0:7"
    row = view_row(7, state, group=group.group, id=ident, topic=group.main, due=wall() - 600_000)
    produce(group.bootstrap, group.names.view, [out(row)])

    def record() -> str:
        return shown.get(f"/record?{urlencode({'id': ident})}").body.decode()

    until(lambda: "<th>State</th>" in record(), SECONDS, "the view has it")
    assert ("<th>Due</th>" in record()) == (state is State.WAITING_RETRY)


def test_a_search_goes_on_where_its_page_ended_and_finds_each_record_once(
    shown: Visitor, group: GroupTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [Out(b"needle %03d." % number, None, (), number % 2) for number in range(120)]
    produce(group.bootstrap, group.main, records)
    text, pages = page(shown, text="needle"), 1
    seen = [number for number in range(120) if f"needle {number:03}." in text]
    assert (len(seen), "Incomplete: the newest 50 are shown" in text) == (find_page.ROWS, True)
    while (at := text.find('href="/find?')) >= 0:
        answer = shown.get(text[at + 6 : text.index('"', at + 6)].replace("&amp;", "&"))
        text, pages = answer.body.decode(), pages + 1
        seen += [number for number in range(120) if f"needle {number:03}." in text]
    assert sorted(seen) == list(range(120))
    assert pages == 3


def test_a_search_ends_in_time_and_says_what_is_left(
    shown: Visitor, group: GroupTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(group.bootstrap, group.main, [Out(b"v", None, (), 0)])
    monkeypatch.setattr(find_page, "SECONDS", -1.0)
    text = page(shown, text="v")
    assert "Incomplete: the time is over, and the older records were not searched" in text
    monkeypatch.undo()
    at = text.index('href="/find?') + 6
    assert f"{group.main}:0:0" in shown.get(text[at : text.index('"', at)].replace("&amp;", "&")).body.decode()


def test_a_reader_who_has_not_signed_in_gets_ids_and_no_content_where_values_require_it(
    group: GroupTopics, tmp_path: Path
) -> None:
    ident = f"{group.main}:0:0"
    produce(group.bootstrap, group.main, [Out(SECRET, b"customer-7", (), 0)])
    with dashboard(group, tmp_path, read="signed-in") as scene:
        visitor = Visitor(scene)
        refused = page(visitor, text="DE89")
        assert "for readers who have signed in" in refused
        assert ident not in refused
        by_id = page(visitor, text=ident)
        assert ("undelivered" in by_id, "customer-7" in by_id, "DE89" in by_id) == (True, False, False)
        visitor.sign_in()
        assert ident in page(visitor, text="DE89")


@pytest.mark.parametrize("cursor", ["", "x", "eJw=", "A" * 5_000, "eJyrrgUAAXUA-Q=="])
def test_a_forged_cursor_is_refused(shown: Visitor, cursor: str) -> None:
    assert shown.get(f"/find?{urlencode({'text': 'v', 'cursor': cursor})}").status == 400
