"""Who may call the API: names of this host, pages of ours, and whoever has the token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sidecar.api_calls import assert_problem, call
from tests.support.sidecar.running_api import Client, Operation


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8471", "127.0.0.1", "127.0.0.1:1", "[::1]:8471", "[0:0::1]"])
def test_every_loopback_name_is_ours(port: int, host: str) -> None:
    assert call(port, "GET", "/livez", host=host).status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("localhost.evil.example:8471", 421),
        ("127.0.0.1.nip.io", 421),
        ("169.254.169.254", 421),
        ("localhost.", 421),
        ("", 400),
        (None, 400),
        ("localhost/x", 400),
        ("user@localhost", 400),
        ("[::1", 400),
        ("[zz::1]", 400),
        ("localhost:port", 400),
    ],
)
def test_a_forged_host_is_refused(sidecar: Operation, port: int, method: str, host: str | None, status: int) -> None:
    """Given a page that made its name resolve to loopback, then no call of it gets in."""
    assert_problem(call(port, method, "/drain" if method == "POST" else "/status", host=host), status)
    assert sidecar.drains == []


def test_two_hosts_are_refused(port: int) -> None:
    assert_problem(call(port, "GET", "/status", {"Host": "localhost"}, host="localhost"), 400)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost.evil.example", "http://[", ""])
def test_a_page_of_another_origin_cannot_post(sidecar: Operation, port: int, origin: str) -> None:
    """Given a page that posts a form to loopback, where the Host is right, then it drains nothing."""
    assert_problem(call(port, "POST", "/drain", {"Origin": origin}), 403)
    assert sidecar.drains == []


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8471", 200),
        ("http://LOCALHOST:8471", 200),
        ("http://localhost:3000", 403),
        ("http://localhost", 403),
        ("https://localhost:8471", 403),
        ("http://127.0.0.1:8471", 403),
        ("localhost:8471", 403),
    ],
)
def test_an_origin_counts_whole_with_its_scheme_and_port(port: int, origin: str, status: int) -> None:
    """Given a page that another port of this host serves, then it is another origin."""
    assert call(port, "POST", "/drain", {"Origin": origin}, host="localhost:8471").status == status


@pytest.mark.parametrize(
    ("site", "status"), [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)]
)
def test_what_a_browser_says_of_where_a_call_comes_from_is_heard(port: int, site: str, status: int) -> None:
    assert call(port, "POST", "/drain", {"Sec-Fetch-Site": site}).status == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None])
def test_a_body_that_a_page_may_send_without_asking_is_refused(sidecar: Operation, port: int, kind: str | None) -> None:
    given = {} if kind is None else {"Content-Type": kind}
    with Client(port) as client:
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        client.send(f"POST /drain HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: 2\r\n\r\n{{}}".encode())
        assert_problem(client.answer(), 415)
    assert sidecar.drains == []


def test_every_changing_call_needs_the_token_from_wherever_it_comes(sidecar: Operation, guarded: int) -> None:
    """Given a token file, then a drain without it is 401 too, and whoever claims to be near is not believed."""
    for target in ("/v1/ack", "/drain"):
        answer = call(guarded, "POST", target, {"X-Forwarded-For": "127.0.0.1"})
        assert_problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert sidecar.drains == []
    assert call(guarded, "POST", "/drain", {"Authorization": "Bearer the-first-secret"}).status == 200


def test_reads_need_the_token_too_and_probes_need_none(guarded: int) -> None:
    """Given a token file, then what is told of records and policy is not told to every container of the pod."""
    for target in ("/status", "/v1/policy", "/v1/view/messages", "/nowhere"):
        assert_problem(call(guarded, "GET", target), 401)
    assert call(guarded, "GET", "/status", {"Authorization": "Bearer the-first-secret"}).status == 200
    assert [call(guarded, "GET", target).status for target in ("/livez", "/readyz", "/startupz", "/metrics")] == [
        200
    ] * 4


@pytest.mark.parametrize(
    "given",
    [
        "Bearer wrong",
        "Bearer the-first-secre",
        "Bearer the-first-secretx",
        "Bearer",
        "the-first-secret",
        "Basic the-first-secret",
        "",
    ],
)
def test_a_wrong_token_is_refused(guarded: int, given: str) -> None:
    assert_problem(call(guarded, "POST", "/v1/ack", {"Authorization": given}), 401)


def test_two_authorizations_are_refused(guarded: int) -> None:
    headers = {"Authorization": "Bearer the-first-secret", "authorization": "Bearer the-first-secret"}
    assert_problem(call(guarded, "POST", "/v1/ack", headers), 401)


def test_a_rotated_token_is_valid_at_once_and_the_old_one_as_long_as_it_is_listed(
    guarded: int, token_file: Path
) -> None:
    """Given a rotation old -> both -> new, then each step holds with the next call, without a restart."""

    def status(token: str) -> int:
        return call(guarded, "POST", "/v1/ack", {"Authorization": f"bearer {token}"}).status

    valid = 404  # let in, and then there is no such call yet
    assert [status("the-first-secret"), status("the-second-secret")] == [valid, 401]
    token_file.write_text("the-second-secret\r\n\nthe-first-secret\n")
    assert [status("the-first-secret"), status("the-second-secret")] == [valid, valid]
    swapped = token_file.with_name("new")
    swapped.write_text("the-second-secret\n")
    swapped.rename(token_file)
    assert [status("the-first-secret"), status("the-second-secret")] == [401, valid]
    token_file.unlink()
    assert status("the-second-secret") == 401


def test_an_empty_token_file_lets_nobody_in(guarded: int, token_file: Path) -> None:
    token_file.write_text("\n  \n")
    assert_problem(call(guarded, "POST", "/v1/ack", {"Authorization": "Bearer  "}), 401)
