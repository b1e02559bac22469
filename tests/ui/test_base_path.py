"""The dashboard below a path of its host (`ui.base_path`): behind real proxies that strip the path, and that do not."""

from __future__ import annotations

import ast
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.sections import PAGES
from reconsume.sidecar.ui.templating import FOLDER
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, create_group, fresh_group
from tests.support.kafka.topic_io import produce
from tests.support.rings import inner
from tests.support.service.real_services import program, until_it_listens
from tests.support.sidecar.redrive import dead_letter
from tests.support.sidecar.settings import problems, write_good
from tests.ui.conftest import MS, Watched
from tests.ui.scene import TOKEN, Scene, dashboard
from tests.ui.web import Visitor

BASE = "/tools/reconsume"
LINK = re.compile(r"""(?<=\s)(?:href|src|action|formaction|hx-(?:get|post|put|delete))=(["'])(.*?)\1""")
SHOWN = ("/", "/records", "/dlq", "/holds", "/policy", "/instances", "/activity", "/find", "/part/group",
         "/part/instances", "/part/alarms?fleet=1", "/nowhere", "/record?id=orders:0:1", "/sign-in")  # fmt: skip
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location {base}/ {{ proxy_pass {upstream}; proxy_set_header Host $http_host; }}
  }}
}}
"""
"""A proxy that serves nothing but what is below the base path, so that a link without it fails."""


@pytest.fixture(scope="module")
def below(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The dashboard of a group with two dead letters, below a path."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    produce(group.bootstrap, group.dlq, [dead_letter(group, number, reason="bad-sku") for number in range(2)])
    with dashboard(group, tmp_path_factory.mktemp("below"), base_path=BASE) as scene:
        yield scene


# --- one place builds every address -----------------------------------------------------------------------------------


def test_no_template_writes_an_address_that_is_not_built_by_url() -> None:
    templates = sorted((FOLDER / "templates").glob("*.html"))
    written = re.compile(
        r"""\b(href|src|action|formaction|hx-(?:get|post|put|delete))=["'](?!\{\{ url(?:_of_all)?\(|\#)([^"']*)"""
    )
    found = [(file.name, match[2]) for file in templates for match in written.finditer(file.read_text())]
    # The label of a group may lead to its runbook, which is elsewhere.
    assert found == [("group.html", "{{ value }}")]
    assert sum(file.read_text().count('="{{ url(') for file in templates) > 60


def test_no_code_builds_an_address_or_a_redirect_elsewhere() -> None:
    """Paths are in Python as routes and as the current page; a path with something added is only for `redirect`."""
    found = []
    for file in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(file.read_text())
        given = {id(call.args[0]) for call in ast.walk(tree) if isinstance(call, ast.Call) and call.args
                 and isinstance(call.func, ast.Attribute) and call.func.attr == "redirect"}  # fmt: skip
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        # A link that signs in is made by a program that has no dashboard, of the address that it prints.
        if file.name not in ("templating.py", "sign_in.py"):
            found += [(file.name, name) for name in names & {"RedirectResponse", "urlencode", "quote"}]
        if file.name in ("templating.py", "app.py"):  # app.py has the routes
            continue
        for node in ast.walk(tree):
            text = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
            written = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            made = isinstance(node, ast.JoinedStr) or "?" in written
            if re.match(r"/[a-z]", written) and made and id(node) not in given:
                found.append((file.name, written))
    assert not found


# --- what is served ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", BASE], ids=["stripped", "not stripped"])
def test_every_page_is_served_with_and_without_the_path_and_every_link_has_it(below: Scene, prefix: str) -> None:
    visitor = Visitor(below)
    assert visitor.sign_in().headers["location"] == f"{BASE}/dlq"
    for path in SHOWN:
        answer = visitor.get(prefix + path)
        links = [match[2] for match in LINK.finditer(answer.body.decode()) if not match[2].startswith("#")]
        assert answer.status == (404 if path == "/nowhere" else answer.status)
        assert links or path.startswith("/part/")
        assert [link for link in links if not link.startswith(f"{BASE}/")] == [], path
        assert {link[len(BASE) :].split("/")[1].partition("?")[0] for link in links} <= {*PAGES, ""}, path
    assert visitor.get(f"{prefix}/static/style.css").status == 200
    assert visitor.get(BASE).status == visitor.get(f"{BASE}/").status == 200


@pytest.mark.parametrize("path", [f"{BASE}s/dlq", f"{BASE}{BASE}/dlq", f"/x{BASE}/dlq", "/tools/dlq"])
def test_only_that_path_is_taken_away_and_once(below: Scene, path: str) -> None:
    assert Visitor(below).get(path).status == 404


def test_the_cookie_is_sent_to_no_other_tool_of_the_host(below: Scene, tmp_path: Path) -> None:
    cookie = Visitor(below).sign_in().headers["set-cookie"].lower()
    assert {f"path={BASE}", "httponly", "samesite=strict"} <= set(cookie.split("; "))
    with dashboard(below.group, tmp_path, listen="0.0.0.0:0", base_path=BASE) as far:
        cookie = Visitor(far).sign_in().headers["set-cookie"]
        assert cookie.startswith("__Secure-"), "a browser refuses __Host- with another path than /"
        assert {"secure", f"path={BASE}"} <= set(cookie.lower().split("; "))
        assert Visitor(far).get("/dlq").headers["location"] == f"{BASE}/sign-in"


# --- a browser behind a proxy -----------------------------------------------------------------------------------------


@pytest.fixture(params=inner("strips it", ["strips it", "passes it on"]))
def outside(request: pytest.FixtureRequest, below: Scene, tmp_path: Path) -> Iterator[str]:
    """The address that users call: that of nginx."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    upstream = below.url + ("/" if request.param == "strips it" else "")
    conf = tmp_path / "nginx.conf"
    conf.write_text(NGINX.format(folder=tmp_path, port=port, base=BASE, upstream=upstream))
    command = [program("nginx"), "-e", str(tmp_path / "error.log"), "-c", str(conf)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            until_it_listens(process, port)
            yield f"http://127.0.0.1:{port}{BASE}/"
        finally:
            process.terminate()  # a killed master would leave its workers


def test_behind_nginx_all_that_a_user_does_works(chromium: Any, outside: str, below: Scene) -> None:
    """Given a proxy that serves only the base path, then all of the dashboard works."""
    context = chromium.new_context()
    context.set_default_timeout(MS)
    page = context.new_page()
    watched = Watched(page, outside)
    with page.expect_response("**/part/alarms?fleet=1") as live:
        page.goto(outside)
    assert live.value.status == 200
    assert page.evaluate("getComputedStyle(document.querySelector('header')).display") == "flex"
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("Your name").fill("alice")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{outside}dlq")
    (cookie,) = context.cookies()
    assert cookie["path"] == BASE
    page.locator("tbody a.mono").first.click()
    page.get_by_role("link", name="Its journey").click()
    page.get_by_text("The events topic has nothing of it").wait_for()
    page.goto(f"{outside}dlq")
    page.get_by_role("button", name="Plan a redrive").click()
    page.get_by_role("link", name="Not now").click()
    page.get_by_label("Reason").fill("bad-sku")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(outside)
    assert context.cookies() == []
    watched.tell()
    context.close()
    assert watched.found == []


# --- the setting ------------------------------------------------------------------------------------------------------


def written(folder: Path, path: object) -> Path:
    """A configuration with this `ui.base_path`."""
    return write_good(folder, f"ui: {json.dumps({'base_path': path})}\n")


@pytest.mark.parametrize("path", ["", "/reconsume", "/a/b-c_d.e~f", "/billing/dlq", "/Dlq"])
def test_a_path_is_taken_as_it_is_written(tmp_path: Path, path: str) -> None:
    assert load(written(tmp_path, path), (), {}).ui.base_path == path


@pytest.mark.parametrize(
    "path",
    ["/", "reconsume", "/reconsume/", "//reconsume", "/a//b", "/..", "/a/../b", "/.", "/a b", "/a?b", "/a#b", "/%61",
     "/ä", '/"><script>', "https://tools.example.org/reconsume", "/" + 200 * "a", 7, None, "/a\n"],
)  # fmt: skip
def test_what_is_no_path_is_refused(tmp_path: Path, path: object) -> None:
    (problem,) = problems(written(tmp_path, path))
    assert "ui.base_path" in problem


@pytest.mark.parametrize("page", PAGES)
def test_a_path_that_begins_like_a_page_is_refused(tmp_path: Path, page: str) -> None:
    (problem,) = problems(written(tmp_path, f"/{page}/x"))
    assert f"begins with /{page}, which is a page of the dashboard" in problem


def test_every_page_is_among_those_that_no_path_begins_with() -> None:
    trees = [ast.parse((FOLDER / name).read_text()) for name in ("app.py", "groups_app.py")]
    texts = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    routes = [text for text in texts if re.match(r"/[a-z]", text)]
    assert {text.split("/")[1] for text in routes} == set(PAGES)
