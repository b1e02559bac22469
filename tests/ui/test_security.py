"""Who may see and who may change: every way around it that does not need a browser."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from starlette.requests import Request

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.http.tokens import Token, Tokens
from reconsume.sidecar.settings.addresses import parse_listen
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.ui.app import Dashboard, DashboardOptions
from reconsume.sidecar.ui.security import COOKIE, IDLE, MOST_SESSIONS, MOST_TRIES, Sessions
from reconsume.sidecar.ui.sign_in import VALID_S, query_of_link
from tests.support.kafka.group_topics import GroupTopics
from tests.support.sidecar.settings import good
from tests.ui.scene import TOKEN, Scene, dashboard
from tests.ui.web import Visitor

NOBODYS = Token("", b"")
CHANGING = (
    *("/sign-out", "/dlq/plan", "/dlq/redrive", "/dlq/jobs/x/stop"),
    *("/dlq/dismissal", "/dlq/dismiss", "/holds/begin", "/holds/release"),
)
PAGES = (
    "/",
    "/part/group",
    "/records",
    "/record?id=x",
    "/dlq",
    "/holds",
    "/policy",
    "/instances",
    "/sign-in",
    "/nowhere",
)


@pytest.fixture
def visitor(scene: Scene) -> Visitor:
    return Visitor(scene)


@pytest.mark.parametrize("page", PAGES)
def test_every_answer_forbids_inline_scripts_frames_and_caches(visitor: Visitor, page: str) -> None:
    headers = visitor.get(page).headers
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


@pytest.mark.parametrize("page", ["/", "/records", "/dlq", "/holds", "/policy", "/instances", "/sign-in"])
def test_no_page_has_an_inline_script_or_style_or_asks_elsewhere(visitor: Visitor, page: str) -> None:
    body = visitor.get(page).body.decode()
    assert body.count("<script") == body.count('<script src="/static/')
    assert "<style" not in body
    assert " style=" not in body
    assert 'href="http' not in body


@pytest.mark.parametrize("page", ["/", "/records", "/dlq", "/policy", "/instances"])
def test_no_page_has_a_sign_that_a_reader_does_not_see(visitor: Visitor, page: str) -> None:
    text = visitor.get(page).body.decode()
    assert "window.hurt" in text
    assert {sign for sign in text if not sign.isprintable()} == {"\n"}


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.", ""])
def test_a_foreign_host_is_refused(visitor: Visitor, host: str) -> None:
    assert visitor.get("/", {"host": host}).status in (400, 421)


@pytest.mark.parametrize("path", ["/", "/part/group?x=evil", "/static/style.css", "/evil"])
def test_a_name_that_is_not_allowed_gets_a_page_that_names_the_repair_and_nothing_else(
    visitor: Visitor, path: str
) -> None:
    visitor.sign_in()
    answer = visitor.get(path, {"host": "evil.example:8473"})
    body = answer.body.decode()
    assert (answer.status, answer.headers["content-type"]) == (421, "text/html; charset=utf-8")
    assert ("--host NAME" in body, "ui.hosts" in body) == (True, True)
    planted = visitor.get("/").body.decode()
    (group,) = re.findall(r'<div class="brand">.*?<strong>([^<]+)</strong>', planted, re.DOTALL)
    for secret in ("evil", "alice", group, "href=", "src=", "csrf"):
        assert secret not in body, secret
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert visitor.post("/dlq/plan", {"csrf": visitor.csrf()}, {"host": "evil.example"}).status == 421


@pytest.mark.parametrize("path", CHANGING)
def test_nothing_changes_without_a_session(visitor: Visitor, path: str) -> None:
    assert visitor.post(path, {"csrf": "x"}).status == 403


@pytest.mark.parametrize("path", CHANGING)
def test_nothing_changes_on_get(visitor: Visitor, path: str) -> None:
    visitor.sign_in()
    assert visitor.get(path).status == 405


@pytest.mark.parametrize("path", CHANGING)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"origin": None},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"content-type": "text/plain"},
    ],
    ids=str,
)
def test_a_form_of_another_page_changes_nothing(visitor: Visitor, path: str, headers: dict[str, str | None]) -> None:
    visitor.sign_in()
    assert visitor.post(path, {"csrf": visitor.csrf()}, headers).status == 403


@pytest.mark.parametrize("path", CHANGING)
def test_a_form_with_another_sessions_token_changes_nothing(visitor: Visitor, scene: Scene, path: str) -> None:
    other = Visitor(scene)
    other.sign_in("mallory")
    visitor.sign_in()
    for csrf in (other.csrf(), "", "\u00e9"):
        assert visitor.post(path, {"csrf": csrf}).status == 403


def test_a_picture_on_another_page_reads_nothing(visitor: Visitor) -> None:
    assert visitor.get("/dlq", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status == 403
    assert visitor.get("/dlq", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status == 200


def test_the_cookie_is_no_scripts_and_no_other_sites(visitor: Visitor) -> None:
    attributes = visitor.sign_in().headers["set-cookie"].lower().split("; ")
    assert {"httponly", "samesite=strict", "path=/"} <= set(attributes)


def test_a_wrong_token_is_refused_written_down_and_not_tried_for_ever(planted: GroupTopics, tmp_path: Path) -> None:
    with dashboard(planted, tmp_path) as scene:
        visitor = Visitor(scene)
        codes = [visitor.sign_in(token=f"guess-{number}").status for number in range(MOST_TRIES + 1)]
        assert codes == [403] * MOST_TRIES + [429]
        assert visitor.sign_in().status == 303, "nobody locks out the right one by guessing"
        elsewhere = Visitor(scene, "127.0.0.2")
        assert elsewhere.sign_in(token="guess").status == 403, "another address has tries of its own"
        rows = [json.loads(line) for line in scene.audit.read_text().splitlines()]
    assert [row["action"] for row in rows] == [*["sign-in-refused"] * MOST_TRIES, "sign-in", "sign-in-refused"]
    assert "guess" not in json.dumps(rows)


def test_signing_out_ends_the_session(visitor: Visitor) -> None:
    visitor.sign_in()
    csrf, cookie = visitor.csrf(), visitor.cookie
    assert visitor.post("/sign-out", {"csrf": csrf}).status == 303
    visitor.cookie = cookie
    assert visitor.post("/dlq/plan", {"csrf": csrf}).status == 403


def test_a_session_ends_with_its_token_and_another_tokens_session_stays(planted: GroupTopics, tmp_path: Path) -> None:
    """Given a token that is taken out of the file, then who signed in by it reads and changes nothing any more."""
    other = "another-token-for-tests"
    with dashboard(planted, tmp_path) as scene:
        file = tmp_path / "token"
        file.write_text(f"{TOKEN}\n{other}\n")
        leaked, kept = Visitor(scene), Visitor(scene)
        leaked.sign_in()
        kept.sign_in("bob", other)
        csrf, good = leaked.csrf(), kept.csrf()
        file.write_text(f"{other}\n")
        assert leaked.post("/dlq/plan", {"csrf": csrf}).status == 403
        assert b"alice" not in leaked.get("/").body
        assert kept.post("/dlq/plan", {"csrf": good}).status == 200


def test_without_a_token_file_there_is_no_way_to_change_anything(read_only: Scene) -> None:
    visitor = Visitor(read_only)
    assert {visitor.post(path, {"csrf": "x"}).status for path in ("/sign-in", *CHANGING)} == {404}
    assert b"read-only" in visitor.get("/").body
    assert not read_only.audit.exists()


def test_an_action_that_cannot_be_written_down_does_not_happen(planted: GroupTopics, tmp_path: Path) -> None:
    with dashboard(planted, tmp_path) as scene:
        visitor = Visitor(scene)
        visitor.sign_in()
        csrf = visitor.csrf()
        scene.audit.unlink()
        scene.audit.mkdir()
        answer = visitor.post("/dlq/plan", {"csrf": csrf})
    assert answer.status == 502
    assert b"audit log" in answer.body


def test_the_network_is_not_listened_to_without_a_token(tmp_path: Path) -> None:
    settings = good(tmp_path)
    wanted = DashboardOptions(parse_listen("0.0.0.0:0"), None, tmp_path / "audit")
    with pytest.raises(ConfigError, match="--token-file"):
        Dashboard(settings, build_policy(settings, "ui"), wanted)


def test_over_the_network_only_those_who_signed_in_read_and_the_cookie_needs_tls(
    planted: GroupTopics, tmp_path: Path
) -> None:
    with dashboard(planted, tmp_path, listen="0.0.0.0:0") as scene:
        visitor = Visitor(scene)
        assert {visitor.get(page).status for page in PAGES if page not in ("/sign-in", "/nowhere")} == {303}
        part = visitor.get("/part/group", {"hx-request": "true"})
        assert (part.status, b"not signed in" in part.body) == (200, True)
        cookie = visitor.sign_in().headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert {"secure", "path=/"} <= set(cookie.lower().split("; "))
        assert visitor.get("/policy").status == 200


def test_only_our_own_files_are_served(visitor: Visitor) -> None:
    assert visitor.get("/static/htmx.min.js").status == 200
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/base.html", "/static/"):
        assert visitor.get(path).status == 404


def test_there_are_only_so_many_sessions_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(None)
    first = sessions.open("first", NOBODYS)
    for number in range(MOST_SESSIONS):
        sessions.open(str(number), NOBODYS)
    assert first.id not in sessions._sessions
    assert len(sessions._sessions) == MOST_SESSIONS
    later = time.monotonic() + IDLE + 1
    monkeypatch.setattr("time.monotonic", lambda: later)
    sessions.open("late", NOBODYS)
    assert len(sessions._sessions) == 1


def test_a_part_that_renews_itself_keeps_no_session_alive(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"alice: {TOKEN}\n")
    sessions = Sessions(Tokens(file))
    session = sessions.open("alice", Token("alice", TOKEN.encode()))
    session.seen = before = session.seen - 60
    headers = [(b"cookie", f"{COOKIE}={session.id}".encode())]
    assert sessions.of(Request({"type": "http", "headers": [*headers, (b"hx-request", b"true")]})) is session
    assert session.seen == before
    assert sessions.of(Request({"type": "http", "headers": headers})) is session
    assert session.seen > before


def test_a_link_signs_in_once_and_shows_nothing_of_the_token(planted: GroupTopics, tmp_path: Path) -> None:
    """Given a link as `dev up` prints it, then it opens a session of its own name; used again, changed, too old or made
    from another token it opens none, and each such try is written down."""
    with dashboard(planted, tmp_path, read="signed-in") as scene:
        query = query_of_link(TOKEN, "dev", time.time())
        assert TOKEN not in query
        visitor = Visitor(scene)
        assert visitor.get(f"/sign-in?{query}").status == 303
        assert visitor.get("/activity").status == 200
        assert "Sign out" in visitor.get("/").body.decode()
        others = (
            query,
            query_of_link(TOKEN, "dev", time.time()).replace("who=dev", "who=root"),
            query_of_link(TOKEN, "dev", time.time() - VALID_S),
            query_of_link(TOKEN, "dev", time.time() + VALID_S),
            query_of_link("another-token-of-nobody", "dev", time.time()),
        )
        for other in others:
            stranger = Visitor(scene)
            answer = stranger.get(f"/sign-in?{other}")
            assert (answer.status, stranger.cookie) == (403, "")
        rows = [json.loads(line) for line in scene.audit.read_text().splitlines()]
    assert [(row["action"], row["who"]) for row in rows] == [("sign-in", "dev"), *[("sign-in-refused", "")] * 5]
