"""The push URL: what is read, and what is refused before a record could go there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.delivery.push.target import Target, parse_target


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8080/events", Target(("127.0.0.1",), 8080, "", "127.0.0.1:8080", "/events")),
        ("http://127.0.0.1", Target(("127.0.0.1",), 80, "", "127.0.0.1", "/")),
        ("http://[::1]:8080/a?b=c", Target(("::1",), 8080, "", "[::1]:8080", "/a?b=c")),
        ("http://LOCALHOST:8080/", Target(("127.0.0.1", "::1"), 8080, "", "localhost:8080", "/")),
        ("http://127.0.0.1:8080?a", Target(("127.0.0.1",), 8080, "", "127.0.0.1:8080", "/?a")),
        ("https://LOCALHOST/", Target(("127.0.0.1", "::1"), 443, "", "localhost", "/", tls_name="localhost")),
        ("https://127.0.0.1:80/a", Target(("127.0.0.1",), 80, "", "127.0.0.1:80", "/a", tls_name="127.0.0.1")),
        ("https://[::1]:443/", Target(("::1",), 443, "", "[::1]", "/", tls_name="::1")),
        ("unix:/run/app/app.sock:/events", Target((), 0, "/run/app/app.sock", "localhost", "/events")),
        ("unix:/run/app.sock", Target((), 0, "/run/app.sock", "localhost", "/")),
    ],
)
def test_an_address_on_this_host_is_a_target(url: str, target: Target) -> None:
    """Given loopback or a Unix socket, then these are its parts."""
    assert parse_target(url, allow_remote=False) == target


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:80/", "http://service.default.svc:8080/e", "http://0.0.0.0:1/", "https://h/"]
)
def test_another_host_needs_allow_remote(url: str) -> None:
    """Given an address elsewhere, then it is refused by default, and a target when the operator says so."""
    with pytest.raises(ValueError, match="allow_remote"):
        parse_target(url, allow_remote=False)
    assert parse_target(url, allow_remote=True).allow_remote


def test_the_name_that_a_certificate_must_have_is_that_of_the_url_without_its_last_dot() -> None:
    target = parse_target("https://api.example.com.:8443/e", allow_remote=True)
    assert (target.tls_name, target.authority) == ("api.example.com", "api.example.com.:8443")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://127.0.0.1/", "not a push URL"),
        ("127.0.0.1:8080", "not a push URL"),
        ("", "not a push URL"),
        ("http://user:secret@127.0.0.1/", "user or a password"),
        ("http://127.0.0.1/#a", "fragment"),
        ("http://127.0.0.1:0/", "port"),
        ("http://127.0.0.1:70000/", "port"),
        ("http://127.0.0.1:x/", "port"),
        ("http:///events", "names no host"),
        ("http://a..b/", "names no host"),
        ("http://[::1/", "not a URL"),
        ("http://127.0.0.1/a b", "percent-encode"),
        ("http://127.0.0.1/ä", "percent-encode"),
        ("unix:app.sock:/events", "no absolute socket path"),
        ("unix:/" + "a" * 200 + ":/", "longer than"),
        ("unix:/a.sock:/a b", "percent-encode"),
        ("http://169.254.169.254/latest/meta-data", "metadata"),
        ("http://[fe80::1]/", "metadata"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://[fd00:0ec2:0:0::254]/", "metadata"),
        ("http://[fd20:ce::254]/", "metadata"),
        ("http://[::169.254.169.254]/", "metadata"),
        ("http://[64:ff9b::a9fe:a9fe]/", "metadata"),
        ("http://[2002:a9fe:a9fe::1]/", "metadata"),
        ("http://[::ffff:100.100.100.200]/", "metadata"),
        ("http://100.100.100.200/", "metadata"),
        ("http://168.63.129.16/", "metadata"),
        ("http://192.0.0.192/", "metadata"),
        ("http://169.254.0.23/", "metadata"),
    ],
)
@pytest.mark.parametrize("allow_remote", [False, True])
def test_a_url_that_is_no_target_is_refused_with_the_reason(url: str, why: str, allow_remote: bool) -> None:
    """Given such a URL, then one sentence says why, and never repeats a password."""
    with pytest.raises(ValueError, match=why) as caught:
        parse_target(url, allow_remote)
    assert "secret" not in str(caught.value)


@given(url=st.text(max_size=60) | st.text(max_size=40).map("http://127.0.0.1:8080/".__add__))
def test_no_url_puts_a_line_into_the_request(url: str) -> None:
    """Given any text, then it is refused, or its parts are visible ASCII."""
    try:
        target = parse_target(url, allow_remote=True)
    except ValueError:
        return
    assert all("!" <= sign <= "~" for sign in target.path + target.authority)
