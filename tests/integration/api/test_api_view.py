"""`/v1/view/*` over a real server and a real file: what is told, its age, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.api.view import no_view_routes, view_routes
from reconsume.sidecar.errors import BusyError
from reconsume.sidecar.http.access import LOOPBACK_NAMES
from reconsume.sidecar.view.copy import ViewCopy, open_copy
from reconsume.sidecar.view.follower import CopyStatus
from reconsume.sidecar.view.query import MOST_WAITING, QueryPool, ViewQuery
from reconsume.sidecar.view.source import Source
from reconsume.topics.events import State
from reconsume.topics.view_record import ViewRow, encode_row
from tests.support.kafka.view_topics import event
from tests.support.sidecar.running_api import Answer, Client, Operation, serving
from tests.support.view_copy import take, take_counts
from tests.support.view_rows import GROUP, view_row, wall


class View:
    """The copy as a thread would show it."""

    def __init__(self, store: ViewCopy) -> None:
        self.store = store
        self.status = CopyStatus(store.path, wall() - 2_000, "", {})

    def take(self, *rows: ViewRow) -> None:
        take(self.store, *rows)

    def count(self, minutes_ago: int, **fields: str) -> None:
        """An event of so long ago."""
        take_counts(self.store, event(GROUP, 1, at=wall() - minutes_ago * 60_000, **fields))


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    view = View(open_copy(tmp_path, GROUP, Source.SPARK))
    yield view
    view.store.close()


@pytest.fixture
def client(view: View) -> Iterator[Client]:
    app = build_app(Operation(), lambda: b"", Access(None, LOOPBACK_NAMES), calls=view_routes(QueryPool(view)))
    with serving(app) as place, Client(place) as client:
        yield client


def get(client: Client, path: str) -> Answer:
    return client.call("GET", f"/v1/view/{path}")


@pytest.mark.parametrize(
    ("source", "since"), [(Source.SPARK, 0), (Source.EVENTS, 0), (Source.EVENTS, 1_763_000_000_000)]
)
def test_each_answer_says_what_the_view_is_made_from_and_since_when_it_is_complete(
    view: View, client: Client, source: Source, since: int
) -> None:
    row = view_row(1)
    view.take(row)
    view.status = view.status._replace(
        source=source, since=since, sums_since=since, shortfall="some are left out" if since else ""
    )
    for path in ("messages", "stats"):
        shown = get(client, path)
        assert shown.json["source"] == source
        assert shown.json["complete_since"] == (since or None)
        assert shown.json["shortfall"] == ("some are left out" if since else None)
    for path in ("messages", "stats", f"messages/{row.id}", "messages/x:0:9"):
        assert get(client, path).headers["reconsume-view-source"] == source


def test_a_message_is_the_views_value_with_its_age_beside_it(view: View, client: Client) -> None:
    row = view_row(1)
    view.take(row)
    shown = get(client, f"messages/{row.id}")
    assert (shown.status, shown.body) == (200, encode_row(row))
    assert shown.headers["reconsume-as-of"] == str(view.status.as_of)
    assert 2 <= int(shown.headers["age"]) < 60


@pytest.mark.parametrize("key", ["orders:0:9", "a/b", "%ff", "%00", "x" * 3_000, quote("é:1:2"), "%ED%A0%80"])
def test_what_the_view_does_not_have_is_404(view: View, client: Client, key: str) -> None:
    view.take(view_row(1))
    shown = get(client, f"messages/{key}")
    assert (shown.status, shown.headers["content-type"]) == (404, "application/problem+json")


def test_a_list_is_filtered_and_paged_and_says_how_old_it_is(view: View, client: Client) -> None:
    rows = [view_row(number, due=1_000 + number, level="10s" if number % 2 else "1m") for number in range(10)]
    view.take(*rows, view_row(99, State.DLQ))
    found, cursor = [], ""
    while True:
        page = get(client, f"messages?state=waiting_retry&level=1m&due_before=1007&limit=2{cursor}").json
        assert (page["as_of"], page["age_seconds"] >= 2) == (view.status.as_of, True)
        found += [message["offset"] for message in page["messages"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert found == [0, 2, 4, 6]
    assert len(get(client, "messages").json["messages"]) == 11
    assert get(client, "messages?due_before=1970-01-01T00:00:01.002Z").json["messages"][0]["offset"] == 0


@pytest.mark.parametrize(
    "query",
    [
        "state=SLEEPING",
        "state=",
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=ten",
        "limit=%D9%A3",
        "limit=1&limit=2",
        "due_before=soon",
        "due_before=2026-01-01T00:00:00",
        "due_before=9999999999999999999",
        "due_before=-5",
        "cursor=x",
        "cursor=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "unknown=1",
        f"reason={'x' * 5_000}",
    ],
)
def test_what_is_not_well_formed_is_400_and_never_repeated(view: View, client: Client, query: str) -> None:
    view.take(view_row(1), view_row(2))
    shown = get(client, f"messages?{query}")
    assert (shown.status, shown.json["status"]) == (400, 400)
    assert "SLEEPING" not in shown.json["detail"]


def test_what_is_no_cursor_is_400(view: View, client: Client) -> None:
    view.take(*(view_row(number) for number in range(3)))
    cursor = get(client, "messages?limit=1").json["cursor"]
    assert get(client, f"messages?limit=2&cursor={cursor}").status == 200
    refused = get(client, "messages?limit=1&cursor=abc")
    assert (refused.status, "Cursor must be" in refused.json["detail"]) == (400, True)


def test_sums_are_those_since_then(view: View, client: Client) -> None:
    view.count(1)
    view.count(30, reason="timeout")
    view.count(120)
    shown = get(client, "stats?since=1h").json
    assert [row["reason"] for row in shown["stats"]] == ["timeout", "http-500"]
    assert shown["cursor"] is None
    assert shown["as_of"] == view.status.as_of
    assert len(get(client, "stats?since=3h").json["stats"]) == 3
    page = get(client, "stats?since=3h&limit=2").json
    assert len(get(client, f"stats?since=3h&limit=2&cursor={page['cursor']}").json["stats"]) == 1


@pytest.mark.parametrize("query", ["since=0s", "since=8d", "since=5", "since=-1h", "state=DLQ", "limit=1001"])
def test_sums_refuse_what_is_not_well_formed(view: View, client: Client, query: str) -> None:
    assert get(client, f"stats?{query}").status == 400


@pytest.mark.parametrize("path", ["messages", "messages/orders:0:1", "stats"])
def test_a_view_of_which_nothing_is_known_is_503_with_the_reason(view: View, client: Client, path: str) -> None:
    view.status = CopyStatus(view.store.path, None, "nothing was ever written to billing-RETRY-VIEW", {})
    shown = get(client, path)
    assert (shown.status, shown.headers["retry-after"]) == (503, "5")
    assert "nothing was ever written" in shown.json["detail"]


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"junk" * 999)])
def test_a_file_that_is_gone_or_broken_is_503_until_it_is_rebuilt(view: View, client: Client, harm: object) -> None:
    view.store.close()
    harm(view.store.path)  # type: ignore[operator]
    assert get(client, "messages").status == 503
    view.store.path.unlink(missing_ok=True)
    view.store = open_copy(view.store.path.parent.parent, GROUP, Source.SPARK)
    view.take(view_row(1))
    assert len(get(client, "messages").json["messages"]) == 1


@pytest.mark.parametrize("path", ["messages", "messages/orders:0:1", "stats"])
def test_without_a_view_the_calls_say_so(path: str) -> None:
    app = build_app(Operation(), lambda: b"", Access(None, LOOPBACK_NAMES), calls=no_view_routes())
    with serving(app) as place, Client(place) as client:
        shown = get(client, path)
        assert (shown.status, "view.enabled is false" in shown.json["detail"]) == (404, True)


def test_nothing_can_be_changed_here(client: Client) -> None:
    assert client.call("POST", "/v1/view/messages").status == 405


def test_slow_questions_stand_neither_in_the_loops_way_nor_without_end_in_line(view: View) -> None:
    let_go = threading.Event()

    def slow(query: ViewQuery) -> bool:
        return let_go.wait(60)

    async def crowd() -> int:
        readers = QueryPool(view)
        asked = [asyncio.ensure_future(readers.ask(slow)) for _ in range(MOST_WAITING + 5)]
        await asyncio.sleep(0)  # each has come as far as it can: the loop itself waits for nobody
        refused = [call for call in asked if call.done()]
        assert all(isinstance(call.exception(), BusyError) for call in refused)
        let_go.set()
        await asyncio.gather(*(call for call in asked if call not in refused))
        readers.close()
        return len(refused)

    assert asyncio.run(crowd()) == 5
