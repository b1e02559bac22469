"""Who may call the API: names of this host, pages of ours, and whoever has the token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api_calls import assert_problem, call
from tests.support.running_api import Operation


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


def test_forwarded_headers_make_nobody_near(guarded: int) -> None:
    """Given X-Forwarded-For, then it is not believed either way: the socket alone tells who calls."""
    assert call(guarded, "POST", "/drain", {"X-Forwarded-For": "8.8.8.8"}).status == 200


def test_every_changing_call_but_drain_needs_the_token(guarded: int) -> None:
    """Given a token file, then changing calls without a token are 401, and reads and a near drain need none."""
    answer = call(guarded, "POST", "/v1/ack")
    assert_problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert call(guarded, "GET", "/status").status == 200
    assert call(guarded, "POST", "/drain").status == 200


@pytest.mark.parametrize(
    "given",
    ["Bearer wrong", "Bearer first-secre", "Bearer first-secretx", "Bearer", "first-secret", "Basic first-secret", ""],
)
def test_a_wrong_token_is_refused(guarded: int, given: str) -> None:
    assert_problem(call(guarded, "POST", "/v1/ack", {"Authorization": given}), 401)


def test_two_authorizations_are_refused(guarded: int) -> None:
    headers = {"Authorization": "Bearer first-secret", "authorization": "Bearer first-secret"}
    assert_problem(call(guarded, "POST", "/v1/ack", headers), 401)


def test_a_rotated_token_is_valid_at_once_and_the_old_one_as_long_as_it_is_listed(
    guarded: int, token_file: Path
) -> None:
    """Given a rotation old -> both -> new, then each step holds with the next call, without a restart."""

    def status(token: str) -> int:
        return call(guarded, "POST", "/v1/ack", {"Authorization": f"bearer {token}"}).status

    valid = 404  # let in, and then there is no such call yet
    assert [status("first-secret"), status("second-secret")] == [valid, 401]
    token_file.write_text("second-secret\r\n\nfirst-secret\n")
    assert [status("first-secret"), status("second-secret")] == [valid, valid]
    swapped = token_file.with_name("new")
    swapped.write_text("second-secret\n")
    swapped.rename(token_file)
    assert [status("first-secret"), status("second-secret")] == [401, valid]
    token_file.unlink()
    assert status("second-secret") == 401


def test_an_empty_token_file_lets_nobody_in(guarded: int, token_file: Path) -> None:
    token_file.write_text("\n  \n")
    assert_problem(call(guarded, "POST", "/v1/ack", {"Authorization": "Bearer  "}), 401)
